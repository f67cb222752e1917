"""One client connection: bytes in, requests to `handle`, answers out in order.

Theory of operation. All connections of a server share one scratch buffer, because the event loop reads one
socket at a time and hands us the bytes before it reads the next. Whole frames are handled where they lie in
the scratch. The connection keeps the remaining bytes: a few in `_backlog`, or, for a frame too large for
that, in a buffer of its own into which the rest is then received directly. So an idle connection holds no
buffer at all, and a large batch is not copied on its way to the log.

A frame's own buffer grows with the bytes that really came (`incoming`). `requests` starts the requests and
has their answers in order, `outgoing` sends them. Here is what comes in, and when a request is held back
(`_backlog` then keeps whole frames), namely while

- an exclusive reply is under way (Kafka's rule: the next request of a connection starts after it);
- too many replies are under way;
- its socket has not taken every byte of earlier answers (the transport called pause_writing), which is
  Kafka's rule too;
- more than a little of its answers is complete and waits for an earlier answer;
- the connection has had its time in this turn of the loop, and others wait for theirs;
- the server holds too many bytes for its peers, and it is not this connection's turn to go on (`memory`).

So a peer that asks and does not listen holds one answer and a little more, however much it asks for. While
requests are held back the connection goes on reading up to a limit, so it notices a vanished peer.

This is the hot path: it is written plainly, with few calls per request. A connection is one object, and its
three parts are one class each that the next one extends, because a part that is asked costs a call.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from struct import Struct
from time import perf_counter
from typing import TYPE_CHECKING, cast

from penstock.security.addresses import canonical
from penstock.server.entrance import OPEN, Entrance
from penstock.server.incoming import IncomingFrame
from penstock.server.outgoing import pack_size
from penstock.server.requests import Requests
from penstock.server.sizes import (
    FRAME_BYTES_MIN,
    JOINED_BYTES_MAX,
    KEPT_BYTES_MAX,
    PROGRESS_BYTES,
    TRUSTED_MAX,
    TURN_REQUESTS,
    TURN_SECONDS,
)

if TYPE_CHECKING:
    from penstock.server.server import Handle, Server

log = logging.getLogger(__name__)

_unpack_size = Struct(">i").unpack_from


class Connection(Requests):
    __slots__ = (
        "_backlog",
        "_eof",
        "_frame",
        "_frame_max",
        "_frame_min",
        "_halted",
        "_held_bytes",
        "_kept",
        "_login",
        "_muted_until",
        "_reading",
        "_stalled_at",
        "_trusted",
        "_waits_its_turn",
        "entrance",
        "idle_since",
    )

    def __init__(self, server: Server, listener: str, entrance: Entrance = OPEN) -> None:
        super().__init__(server, listener)
        self._frame_min, self._frame_max = FRAME_BYTES_MIN, server.limits.frame_bytes_max
        self.entrance = entrance
        self._kept = self._held_bytes = 0
        self._backlog = bytearray()
        self._frame: IncomingFrame | None = None
        self._trusted = 0
        """How large a frame the peer has sent before."""
        self._stalled_at = 0.0
        """When the peer last began to hold memory of ours, or took some of what it holds."""
        self._waits_its_turn = False
        self._reading = True
        self._halted = False
        """The peer takes no answers, or the connection is muted: start no further request."""
        self._muted_until = self.idle_since = 0.0
        self._eof = False
        """The peer sends no more: close when all is answered."""
        self._login = None if entrance.logins is None else entrance.logins.begin(self, server)
        self.session.mute = self.mute

    # -- the transport calls these --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.session.peer_host = canonical(peer[0]) if peer else ""
        # pause_writing is called if anything is left, resume_writing when nothing is.
        self._transport.set_write_buffer_limits(high=0)
        refusal = self._server.admit(self)
        if refusal is not None:
            log.warning("refused a connection: %s; peer=%s", refusal, self.session.peer_host)
            self._server.refused += 1
            self._stopping = self._closed = True
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stopping = self._closed = True
        self._server.release(self)
        self._drop_frame()
        self._memory.free(self._unsent + self._queued_bytes)
        self._unsent = self._queued_bytes = 0
        self._queued.clear()
        self._backlog = bytearray()
        self._out = []
        self.session.fast = self.session.mute = None
        if self._login is not None:
            self._login.lost()
        queue, self._queue = self._queue, deque()
        for reply in queue:
            if not reply.done and reply.on_abandon is not None:
                reply.on_abandon()

    def eof_received(self) -> bool:
        """The peer will send no more. What it sent before is still handled and answered."""
        self._eof = True
        if self._busy is not None and self._busy.on_hurry is not None:
            self._busy.on_hurry()
        return bool(self._queue) or self._write_paused

    def pause_writing(self) -> None:
        self._write_paused = self._halted = True
        self._stalled_at = self._server.now()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._halted = self._muted_until > 0.0
        self.active = True
        self._memory.free(self._unsent)
        self._unsent = 0
        self.proceed()

    def get_buffer(self, sizehint: int) -> memoryview:
        frame = self._frame
        if frame is not None:
            if frame.is_full:
                frame.grow()
                self._account(len(frame.buffer))
            return memoryview(frame.buffer)[frame.filled :]
        server = self._server
        kept = len(self._backlog)
        if kept == 0:
            self._kept = 0
            return server.scratch_view if not self._memory.short else server.scratch_view[:KEPT_BYTES_MAX]
        if kept > KEPT_BYTES_MAX or self._held_back():
            self._kept = 0
            return server.scratch_view[: server.limits.backlog_bytes]
        # A frame that began in the last read: its bytes go before the new ones.
        server.scratch[:kept] = self._backlog
        self._kept = kept
        return server.scratch_view[kept:]

    def buffer_updated(self, nbytes: int) -> None:
        if self._stopping:
            return
        self.active = True
        if self._frame is not None:
            self._frame_updated(self._frame, nbytes)
            return
        server = self._server
        end = nbytes
        if self._backlog:
            if self._kept == 0:
                self._backlog += server.scratch_view[:nbytes]
                if len(self._backlog) >= server.limits.backlog_bytes:
                    self._pause_reading()
                return
            end += self._kept
            self._backlog = bytearray()
        at = self._take(server.scratch, server.scratch_view, end)
        if at < end:
            self._keep(server.scratch_view[at:end])
        if self._out:
            self._send()

    # -- receiving ------------------------------------------------------------------------------------

    def _held_back(self) -> bool:
        return self._must_not_start() or (self._memory.short and not self._memory.may_go_on(self))

    def _must_not_start(self) -> bool:
        """Whatever memory there is."""
        return (
            self._busy is not None
            or self._halted
            or self._waits_its_turn
            or len(self._queue) >= self._server.limits.requests_in_flight_max
            or self._queued_bytes > self._server.limits.write_buffer_bytes
        )

    def _take(self, data: bytearray, view: memoryview, end: int) -> int:
        """Start the requests that lie whole in data[:end]; where the first unstarted byte is."""
        at = 0
        limits = self._server.limits
        frame_min = self._frame_min
        frame_max = self._frame_max
        in_flight_max = limits.requests_in_flight_max
        queue = self._queue
        memory = self._memory
        ready_max = limits.write_buffer_bytes
        started = 0
        began = 0.0
        while end - at >= 4:
            # As `_held_back`, without the call; and a whole request may draw on the reserve.
            if (
                self._busy is not None
                or self._halted
                or len(queue) >= in_flight_max
                or self._queued_bytes > ready_max
                or (memory.short and not memory.may_start(self))
            ):
                break
            size = _unpack_size(data, at)[0]
            if not frame_min <= size <= frame_max:
                self._reject(f"a frame of {size} bytes was announced")
                return end
            stop = at + 4 + size
            if stop > end:
                break
            self._start(view[at + 4 : stop], False)
            if self._stopping:
                return end
            at = stop
            if self._ready > ready_max:
                self._send()  # and learn whether the peer takes it
            started += 1
            if started % TURN_REQUESTS == 0:
                now = perf_counter()
                if not began:
                    began = now
                elif now - began > TURN_SECONDS:
                    self._waits_its_turn = True
                    self._server.later(self._have_turn)
                    break
        return at

    def _have_turn(self) -> None:
        self._waits_its_turn = False
        self.proceed()

    def _keep(self, rest: memoryview) -> None:
        """Hold on to what could not be started: whole frames that wait, or the beginning of one."""
        if self._held_back():
            if len(rest) >= self._server.limits.backlog_bytes:
                self._pause_reading()
        elif len(rest) >= 4:
            size = _unpack_size(rest)[0]
            if size + 4 > KEPT_BYTES_MAX:
                self._begin_frame(size, rest[4:])
                return
        self._backlog = bytearray(rest)

    def _begin_frame(self, size: int, beginning: memoryview) -> None:
        self._frame = IncomingFrame(size, beginning, self._trusted)
        self._stalled_at = self._server.now()
        self._memory.queue_up(self)
        self._account(len(self._frame.buffer))

    def _frame_updated(self, frame: IncomingFrame, nbytes: int) -> None:
        frame.filled += nbytes
        if frame.filled < frame.size:
            if self._memory.short and not self._memory.may_go_on(self):
                self._pause_reading()
            return
        self._trusted = max(self._trusted, min(frame.size, TRUSTED_MAX))
        self._drop_frame()
        if not self._stopping:
            self._start(memoryview(frame.buffer), True)
        if self._out:
            self._send()

    def _drop_frame(self) -> None:
        if self._frame is not None:
            self._frame = None
            self._memory.leave(self)
            self._account(0)

    def _account(self, held_bytes: int) -> None:
        """Tell the server how many bytes the frame on its way in occupies now."""
        change = held_bytes - self._held_bytes
        self._held_bytes = held_bytes
        if change > 0:
            self._memory.hold(change)
        else:
            self._memory.free(-change)

    def review_login(self) -> None:
        """Users were removed. End the connection if it is one of theirs."""
        if self._login is not None and not self._stopping:
            self._login.review()

    def serve(self, handle: Handle, frame_min: int, frame_max: int) -> None:
        """From here on requests go to `handle`, and have these sizes."""
        self._handle = handle
        self._frame_min = frame_min
        self._frame_max = frame_max

    # -- flow -----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send the answers whose turn has come, then go on with what was held back."""
        self.dirty = False
        queue = self._queue
        out = self._out
        while queue and queue[0].done and not self._closed:
            reply = queue.popleft()
            if self._queued:
                self._leave_queue(reply)
            buffers = reply.buffers
            if buffers is not None and len(buffers) == 1 and len(buffers[0]) <= JOINED_BYTES_MAX:
                out.append(pack_size(len(buffers[0])))
                out.append(buffers[0])
            else:
                self._finish(reply)
                out = self._out
        if self._busy is not None and self._busy.done:
            self._busy = None
        if self._out:
            self._send()
        if self._backlog or self._stopping or self._eof or not self._reading:
            self.proceed()

    def proceed(self) -> None:
        """Go on with requests that were held back, if nothing holds them back any more."""
        if self._closed:
            return
        if self._backlog and not self._stopping and not self._must_not_start():
            data, self._backlog = self._backlog, bytearray()
            with memoryview(data) as view:
                at = self._take(data, view, len(data))
                if at < len(data):
                    self._keep(view[at:])
            if self._out:
                self._send()
        if (self._stopping or (self._eof and not self._held_back())) and not self._queue:
            self.close()
        elif not self._reading and not self._stopping and not self._eof and not self._must_wait():
            self._reading = True
            self._stalled_at = self._server.now()
            self._transport.resume_reading()

    def _must_wait(self) -> bool:
        if self._frame is not None:
            return self._muted_until > 0.0 or (self._memory.short and not self._memory.may_go_on(self))
        return len(self._backlog) >= self._server.limits.backlog_bytes and self._held_back()

    def _pause_reading(self) -> None:
        if self._reading and not self._closed:
            self._reading = False
            self._transport.pause_reading()

    def mute(self, seconds: float) -> None:
        """Start no further request for so long: this client has used more than its quota. Answers go out."""
        until = self._server.now() + seconds
        if self._closed or until <= self._muted_until:
            return
        had_timer = self._muted_until > 0.0
        self._muted_until = until
        self._halted = True
        if self._frame is not None:
            self._pause_reading()
        if not had_timer:
            self._server.wake(until, self._unmute)

    def _unmute(self) -> None:
        if self._closed:
            return
        if self._server.now() < self._muted_until:
            # Muted for longer meanwhile; or the loop, whose clock counts milliseconds, called too early.
            self._server.wake(self._muted_until, self._unmute)
            return
        self._muted_until = 0.0
        self._halted = self._write_paused
        self.proceed()

    # -- the end --------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Start no further request; close once those under way are answered."""
        self._stopping = True
        self._backlog = bytearray()
        if self._busy is not None and self._busy.on_hurry is not None:
            self._busy.on_hurry()
        if self._queue:
            self._pause_reading()
        else:
            self.close()

    @property
    def waiting(self) -> bool:
        """Is an answer under way, so that silence of the peer is not idleness?"""
        return bool(self._queue)

    @property
    def stalled(self) -> bool:
        """Does the peer hold memory of ours, by a frame half sent or an answer not taken?"""
        return self._frame is not None or self._write_paused

    @property
    def held_bytes(self) -> int:
        """What would be free if it were gone."""
        return self._held_bytes + self._unsent + self._queued_bytes

    def patience_ends(self, now: float) -> float | None:
        """Until when the peer may hold what it holds though memory is short; None if it holds nothing."""
        limits = self._server.limits
        if self._write_paused:
            untaken = self._transport.get_write_buffer_size()
            if self._untaken - untaken >= PROGRESS_BYTES:
                self._untaken = untaken
                self._stalled_at = now
            return self._stalled_at + limits.untaken_timeout_ms / 1000
        if self._frame is None:
            return None
        if self._reading:
            if self._frame.filled - self._frame.seen >= PROGRESS_BYTES:
                self._frame.seen = self._frame.filled
                self._stalled_at = now
            return self._stalled_at + limits.stalled_timeout_ms / 1000
        return self._stalled_at + limits.paused_timeout_ms / 1000
