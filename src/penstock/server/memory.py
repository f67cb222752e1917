"""The account of request bytes that the server holds, over all connections.

Counted are frames on their way in that have a buffer of their own, requests that are not answered yet,
and answers that a peer does not take. Beyond the limit nothing new is started and reading stops, until
the sum has fallen again. So that frames which are half received cannot hold all memory and wait for each
other, the one that began first may always go on; the sum stays below the limit plus one frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.server.connection import Connection


class Memory:
    __slots__ = ("_on_relief", "_resume_at", "limit", "line", "short", "used")

    def __init__(self, limit: int, on_relief: Callable[[], None]) -> None:
        self.limit = limit
        self._resume_at = limit - limit // 4
        self._on_relief = on_relief
        self.used = 0
        self.short = False
        self.line: dict[Connection, None] = {}
        """Connections with a frame half received, the one that began first in front."""

    def hold(self, size: int) -> None:
        self.used += size
        if self.used > self.limit:
            self.short = True

    def free(self, size: int) -> None:
        self.used -= size
        if self.short and self.used <= self._resume_at:
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
