"""The requests of one connection that are under way, and their answers in order.

Requests are started one after the other. `_queue` holds the answers that are not sent yet, in request order.
An exclusive reply keeps the next request from being started (Kafka's rule); others are under way together.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.server.framed import FramedRequest
from penstock.server.memory import pinned_bytes
from penstock.server.outgoing import Outgoing
from penstock.server.sizes import JOINED_BYTES_MAX, KEPT_BYTES_MAX
from penstock.wire.buffers import Buffer
from penstock.wire.errors import WireError
from penstock.wire.exchange import Reply, Session

if TYPE_CHECKING:
    from penstock.server.server import Server

log = logging.getLogger("penstock.server.connection")


class Requests(Outgoing):
    __slots__ = (
        "_busy",
        "_done",
        "_handle",
        "_queue",
        "_queued",
        "_queued_bytes",
        "_under_way",
        "dirty",
        "listener",
        "session",
    )

    def __init__(self, server: Server, listener: str) -> None:
        super().__init__(server)
        self._handle = server.handle
        self._done: Callable[[Reply], None] = self._on_done
        """Bound once, not once per request. Given up with the connection, for it refers to it."""
        self._queue: deque[Reply] = deque()
        self._queued: dict[Reply, int] = {}
        """Those in `_queue` that are complete and not small, with the bytes they hold."""
        self._queued_bytes = 0
        self._busy: Reply | None = None
        self._under_way = 0
        """Replies in `_queue` that are not complete."""
        self.dirty = False
        """A reply of this connection was completed and the server will call `flush`."""
        self.listener = listener
        self.session = Session(listener)
        self.session.memory = server.memory

    @abstractmethod
    def flush(self) -> None:
        """Send the answers whose turn has come, then go on with what was held back."""

    @abstractmethod
    def stop(self) -> None:
        """Start no further request; close once those under way are answered."""

    def hurry(self) -> None:
        """Memory is short: what waits for more, with a large request, is answered with what there is."""
        busy = self._busy
        if busy is not None and busy.weight > KEPT_BYTES_MAX and busy.on_hurry is not None:
            busy.on_hurry()

    def _start(self, frame: memoryview, owned: bool) -> None:
        try:
            fast = self.session.fast
            answer: list[Buffer] | Reply | None = None
            if fast is not None:
                answer = fast(frame, owned)
            if answer is None:
                answer = self._handle(FramedRequest(self.session, frame, owned))
        except WireError as error:
            self._reject(str(error))
            return
        except Exception:
            log.exception("a request failed outside its handler; peer=%s", self.session.peer_host)
            self._reject("the request failed")
            return
        if isinstance(answer, Reply):
            if answer.done:
                self._add_done(answer)
                return
            self._queue.append(answer)
            self._under_way += 1
            if answer.exclusive:
                self._busy = answer
            answer.weight = weight = len(frame) if answer.holds_request else 0
            memory = self._memory
            memory.used += weight
            if memory.used > memory.limit and not memory.short:
                memory.run_short()
            answer.when_done(self._done)
        elif answer is not None:
            reply = Reply()
            reply.complete(answer)
            self._add_done(reply)

    def _add_done(self, reply: Reply) -> None:
        if not self._queue:
            self._finish(reply)
            return
        self._queue.append(reply)
        self._count_queued(reply)
        if reply.closed:
            self.stop()

    def _count_queued(self, reply: Reply) -> None:
        """A complete answer waits for one before it."""
        size = pinned_bytes(reply.buffers) if reply.buffers is not None else 0
        if size > JOINED_BYTES_MAX:
            self._queued[reply] = size
            self._queued_bytes += size
            self._memory.hold(size)

    def _leave_queue(self, reply: Reply) -> None:
        size = self._queued.pop(reply, 0)
        self._queued_bytes -= size
        self._memory.free(size)

    def _on_done(self, reply: Reply) -> None:
        """A reply that was under way is complete. Send it with the others that come up in this turn of the
        loop; at once if it is the last that was under way."""
        memory = self._memory
        if memory.short:
            memory.free(reply.weight)
        else:
            memory.used -= reply.weight
        self._under_way -= 1
        if reply.exclusive and self._queue and self._queue[0] is not reply:
            self._count_queued(reply)  # Those that are not are Produce's, and small.
        if not self._under_way:
            # Nothing else of this connection is coming up.
            self._server.flush(self)
        elif not self.dirty:
            self.dirty = True
            self._server.mark(self)

    def _finish(self, reply: Reply) -> None:
        if reply.closed:
            self.close()
        elif reply.buffers is not None:
            self._put(reply.buffers)

    def _reject(self, why: str) -> None:
        """Nothing that follows can be understood: answer what came before, then close."""
        log.info("closed a connection: %s; peer=%s listener=%s", why, self.session.peer_host, self.listener)
        self._server.closed["protocol"] += 1
        self.stop()
