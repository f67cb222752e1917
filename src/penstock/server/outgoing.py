"""Answers on their way out of one connection: what is sent next, and what the peer has not taken yet.

If the kernel has taken all of an answer except its last bytes, the answer still holds all of its buffers. So
it counts in full until the last byte is taken, however large the kernel's buffers are.
"""

from __future__ import annotations

import asyncio
import sys
from struct import Struct
from typing import TYPE_CHECKING

from penstock.server.memory import pinned_bytes
from penstock.server.sizes import JOINED_BYTES_MAX, JOINED_PIECE_BYTES
from penstock.wire.buffers import Buffer

if TYPE_CHECKING:
    from penstock.server.server import Server

_VERSION = sys.version_info
_WRITELINES_NEVER_PAUSES = (3, 12) <= _VERSION < (3, 12, 9) or (3, 13) <= _VERSION < (3, 13, 2)
"""CVE-2024-12254: writelines of asyncio's own transports does not look whether the peer takes what it is sent
(uvloop's does). Setting the limits again makes it look."""

pack_size = Struct(">i").pack


class Outgoing(asyncio.BufferedProtocol):
    __slots__ = (
        "_closed",
        "_large",
        "_memory",
        "_out",
        "_ready",
        "_server",
        "_stopping",
        "_transport",
        "_unsent",
        "_untaken",
        "_write_paused",
        "active",
    )

    def __init__(self, server: Server) -> None:
        self._server = server
        self._memory = server.memory
        self._transport: asyncio.Transport
        self._out: list[Buffer] = []
        self._large = False
        """Something in `_out` is better not copied."""
        self._ready = 0
        """Bytes in `_out`, of answers that were there at once."""
        self._unsent = 0
        """Bytes that answers hold which the transport has, and of which the peer has not taken all."""
        self._untaken = 0
        """How much of that was in the transport when it was last looked at."""
        self._write_paused = False
        """The peer takes no answers."""
        self._stopping = False
        """Start no further request: close when what is under way is answered."""
        self._closed = False
        """Nothing more can be sent."""
        self.active = True
        """Bytes moved since the server last looked."""

    def _put(self, buffers: list[Buffer]) -> None:
        """Add one answer, with its length before it, to what is sent next."""
        size = 0
        for buffer in buffers:
            size += len(buffer)
        self._out.append(pack_size(size))
        self._ready += size
        if size > JOINED_BYTES_MAX:
            self._large = True
            if size < JOINED_PIECE_BYTES * len(buffers):
                self._out.append(b"".join(buffers))
                return
        self._out += buffers

    def _send(self) -> None:
        """Send what is ready. Small answers go as one piece: cheaper than to describe them to the kernel."""
        out, self._out = self._out, []
        large, self._large = self._large, False
        self._ready = 0
        self.active = True
        if self._closed:
            return
        if large:
            self._transport.writelines(out)
            if _WRITELINES_NEVER_PAUSES:
                self._transport.set_write_buffer_limits(high=0)
            if self._write_paused:
                self._hold_unsent(pinned_bytes(out))
        else:
            joined = b"".join(out)
            self._transport.write(joined)
            if self._write_paused:
                self._hold_unsent(len(joined))

    def _hold_unsent(self, size: int) -> None:
        """The peer did not take all of an answer: until it has, all of its buffers are held."""
        self._unsent += size
        self._untaken = self._transport.get_write_buffer_size()
        self._memory.hold(size)

    def close(self) -> None:
        """Send what is ready, then close. Requests under way go on, but nobody hears of them."""
        if self._out:
            self._send()
        if not self._closed:
            self._stopping = self._closed = True
            self._transport.close()

    def abort(self) -> None:
        """Close now, whatever is unsent."""
        self._stopping = self._closed = True
        self._transport.abort()
