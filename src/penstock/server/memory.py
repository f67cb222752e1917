"""The account of bytes that the server holds for its peers, over all connections.

It counts frames on their way in that have a buffer of their own, requests that are not answered yet, reads
for answers that are being built, and answers, in full, until a peer has taken the last byte. No connection
can hold much more than one request and one answer, but hundreds that send half a request, or never read, can
hold all there is. So beyond the limit

- a connection that holds memory by half a frame, or by an answer not taken, is not served any further;
- others are served as long as a reserve lasts: requests that came whole are started;
- the half-received frame that began first may always go on, so such frames cannot wait for each other;
- requests that wait for more than there is, with a large frame, are answered with what there is;
- the server closes connections that hold memory and do not get on, the longest first, until the sum has
  fallen (`Server.shed`): only they could give it back.

When a crowd is gone, the server gives its memory back to the system, even if the crowd stayed within the
limit: the C library would keep it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.server.connection import Connection
    from penstock.wire.buffers import Buffer


def give_back_memory() -> None:
    """Return freed memory to the system, where the C library can: it keeps much of what a crowd of peers held
    for a moment, and nobody may need that again."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def pinned_bytes(buffers: Iterable[Buffer]) -> int:
    """What these keep in memory: a view keeps all of the buffer that it is a view of, once."""
    size = 0
    owners: dict[int, int] = {}
    for buffer in buffers:
        if type(buffer) is memoryview:
            owner = buffer.obj
            owners[id(owner)] = memoryview(owner).nbytes
        else:
            size += len(buffer)
    return size + sum(owners.values())


class Memory:
    __slots__ = (
        "_on_crowd",
        "_on_relief",
        "_on_short",
        "_reserve",
        "crowd",
        "limit",
        "line",
        "peak",
        "resume_at",
        "short",
        "used",
    )

    def __init__(
        self,
        limit: int,
        on_relief: Callable[[], None],
        on_short: Callable[[], None],
        on_crowd: Callable[[], None],
    ) -> None:
        self.limit = limit
        self.resume_at = limit - limit // 4
        self.crowd = limit // 4
        """Only those who hold more than this together leave enough behind to be given back."""
        self._reserve = limit // 4
        self._on_relief = on_relief
        self._on_short = on_short
        self._on_crowd = on_crowd
        self.used = 0
        self.peak = 0
        """The most that was in use since the server last looked."""
        self.short = False
        self.line: dict[Connection, None] = {}
        """Connections with a frame half received, the one that began first in front."""

    def hold(self, size: int) -> None:
        self.used = used = self.used + size
        if used > self.peak:
            self.peak = used
            if used > self.crowd:
                self._on_crowd()
        if used > self.limit and not self.short:
            self.run_short()

    def run_short(self) -> None:
        self.short = True
        self._on_short()

    def free(self, size: int) -> None:
        self.used -= size
        if self.short and self.used <= self.resume_at:
            self.short = False
            self._on_relief()

    def queue_up(self, connection: Connection) -> None:
        self.line[connection] = None

    def leave(self, connection: Connection) -> None:
        """The frame is complete or its connection is gone; the next in line may go on."""
        if connection in self.line:
            del self.line[connection]
            if self.short:
                self._on_relief()

    def may_go_on(self, connection: Connection) -> bool:
        """Is it this connection whose frame is to be completed although memory is short?"""
        return next(iter(self.line), None) is connection

    @property
    def exhausted(self) -> bool:
        """Is the reserve used up as well? Then nothing is read for anybody until some is given back."""
        return self.used > self.limit + self._reserve

    def may_start(self, connection: Connection) -> bool:
        """May a request of this connection that came whole be started although memory is short?"""
        if not connection.stalled and not self.exhausted:
            return True
        return self.may_go_on(connection)
