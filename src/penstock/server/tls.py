"""TLS between a socket and a `Connection`, by OpenSSL's memory buffers.

Theory of operation. To the event loop a `TlsTransport` is the protocol of a socket; to its connection it is
the transport. Loops have TLS of their own, and this is here for what they do not offer:

- ciphertext is received into one buffer that all connections share, and decrypted to where the connection
  wants the bytes, so that an idle connection holds no buffer and a large batch is not copied;
- a large answer is encrypted as the peer takes it, a stretch in each turn of the loop. What is not encrypted
  is what `get_write_buffer_size` counts, beside what the kernel has not taken;
- handshakes are done a few in each turn (`server.handshakes`), so that a crowd at the door does not hold up
  those inside;
- a peer that says nothing, or only half of its first message, costs a socket and the bytes that it sent;
- each connection takes the context of the moment when its first message is complete;
- ciphertext that holds next to no data, such as thousands of key updates, is decrypted a little in each turn
  of the loop, and a peer that sends much of it is closed. OpenSSL takes any number of them in one call.

Bytes that are no TLS are not answered: the connection is closed on the first of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from penstock.wire.buffers import Buffer

if TYPE_CHECKING:
    from penstock.server.ends import Side, Upper
    from penstock.server.entrance import Entrance

log = logging.getLogger(__name__)

CIPHER_BYTES = 262_144
"""What one read takes at most, as in plain."""
RECORD_BYTES = 16_384
"""What one record of TLS holds at most. Pieces that are smaller than half of it are sent together."""
CIPHER_BYTES_MIN = 32_768
"""What one read takes at first, and again from a peer whose ciphertext held little: twice as much after each
that was full of data."""
WASTE_RATIO_MAX = 16
"""So many bytes of ciphertext for a byte of data are honest: small requests in records of their own take two
or three."""
WASTE_BYTES_MAX = 65_536
"""Who sends so much more is closed: some 2,400 key updates, or four records that are not complete."""
STRETCH_BYTES = 262_144
"""So much is encrypted before the kernel is given it."""
TURN_BYTES = 1_048_576
"""So much of one connection's answers is encrypted in one turn of the loop: about a millisecond."""
HANDSHAKE_BYTES_MAX = 131_072
"""What a peer may send before it has shaken hands: long chains of certificates are a tenth of it."""
CONTROL_BYTES_MAX = 65_536
"""What TLS itself may want to send while the peer takes nothing."""

_HANDSHAKE = 0x16
_HEADER_BYTES = 5


class TlsTransport(asyncio.BufferedProtocol):
    __slots__ = (
        "_app_paused",
        "_chunk",
        "_closing",
        "_connection",
        "_control_bytes",
        "_early",
        "_entrance",
        "_incoming",
        "_listed",
        "_object",
        "_open",
        "_outgoing",
        "_pending",
        "_pending_bytes",
        "_pumping",
        "_read",
        "_reading",
        "_server",
        "_transport",
        "_wasted",
        "_write",
        "_write_paused",
    )

    def __init__(self, server: Side, entrance: Entrance, connection: Upper) -> None:
        self._server = server
        self._entrance = entrance
        self._connection = connection
        self._transport: asyncio.Transport
        self._early: bytearray | None = bytearray()
        """What came of the first message; None once it is complete."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object: ssl.SSLObject | None = None
        self._listed = False
        """Its handshake goes on when its turn comes."""
        self._open = False
        self._reading = True
        self._chunk = CIPHER_BYTES_MIN
        """What the next read takes at most."""
        self._wasted = 0
        """Ciphertext beyond what its data needed."""
        self._pending: deque[memoryview] = deque()
        self._pending_bytes = 0
        self._pumping = False
        """It goes on encrypting in the next turn of the loop."""
        self._write_paused = False
        """The socket has not taken all."""
        self._app_paused = False
        """The connection was told to wait."""
        self._control_bytes = 0
        self._closing = False

    @property
    def peer_host(self) -> str:
        return self._connection.session.peer_host

    # -- the socket's transport calls these ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connection.connection_made(cast(asyncio.BaseTransport, self))

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._server.handshakes.ended(self)
        self._pending.clear()
        self._pending_bytes = 0
        if self._open:
            del self._read, self._write
        self._object = self._early = None  # They are large, and need not wait for the collector of cycles.
        self._connection.connection_lost(exc)

    def eof_received(self) -> bool:
        if not self._open:
            return False
        return not self._closing and self._connection.eof_received()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._control_bytes = 0
        self._pump()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.cipher_view[: self._chunk]

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return
        if self._open:
            self._incoming.write(self._server.cipher_view[:nbytes])
            self._receive()
        else:
            self._greeted(self._server.cipher_view[:nbytes])

    # -- handshake -----------------------------------------------------------------------------------------

    def _greeted(self, data: memoryview) -> None:
        """Take what came before the handshake is over."""
        early = self._early
        if early is None:
            self._incoming.write(data)
            if self._incoming.pending > HANDSHAKE_BYTES_MAX:
                self._refuse("too much came before the handshake was over")
                return
        else:
            if not early and data[0] != _HANDSHAKE:
                self._refuse("what came is not TLS")
                return
            early += data
            if len(early) < _HEADER_BYTES:
                return
            size = int.from_bytes(early[3:5])
            if size > RECORD_BYTES:
                # It would be kept until it is complete, of thousands of peers that never finish it.
                self._refuse("what came is not TLS")
                return
            if len(early) < _HEADER_BYTES + size:
                return
            self._early = None
            self._incoming.write(early)
        if not self._listed:
            self._listed = True
            self._server.handshakes.add(self)

    def shake(self) -> None:
        """Go on with the handshake, as far as what came allows."""
        self._listed = False
        if self._closing:
            return
        try:
            found = self._object
            if found is None:
                assert self._entrance.context is not None
                context = self._entrance.context()
                found = self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
                self._server.handshakes.begun(self)
            found.do_handshake()
        except ssl.SSLWantReadError:
            self._flush_control()
            return
        except (ssl.SSLError, OSError) as error:
            self._flush_control()  # It says why, to those who understand it.
            self._refuse(getattr(error, "reason", None) or "the handshake failed")
            return
        self._flush_control()
        self._server.handshakes.ended(self)
        self._let_in(found)

    def _let_in(self, found: ssl.SSLObject) -> None:
        principal = self._entrance.principal
        if principal is not None:
            try:
                name = principal(found.getpeercert(binary_form=True))
            except Exception:
                log.exception("a certificate could not be judged")
                name = None
            if name is None:
                self._refuse("its certificate is over, or no principal follows from it")
                return
            self._connection.session.principal = name
        # An SSLObject hands on to what it wraps. Some clients send records of 4 KB, 250 to the megabyte, and
        # half of what each costs beyond its decryption would be that call.
        wrapped: Any = getattr(found, "_sslobj", found)
        self._read, self._write = wrapped.read, wrapped.write
        self._open = True
        if self._entrance.logins is None:
            self._server.let_in(self._connection)
        if self._incoming.pending or found.pending():
            self._receive()

    def _refuse(self, why: str) -> None:
        session = self._connection.session
        log.info(
            "refused a TLS connection: %s; peer=%s listener=%s", why, session.peer_host, session.listener
        )
        self._closing = True
        # What was said last goes out first, if the kernel takes it.
        self._transport.close()

    # -- receiving -----------------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Decrypt what came, to where the connection wants it."""
        connection, incoming, found = self._connection, self._incoming, self._object
        if found is None or self._closing:
            return
        read = self._read
        more = ended = False
        came, received = incoming.pending, 0
        try:
            while self._reading and not self._closing:
                view = connection.get_buffer(-1)
                size = len(view)
                filled = 0
                more = True
                try:
                    while filled < size:
                        count: int = read(size - filled, view[filled:])
                        if not count:
                            ended = True
                            break
                        filled += count
                        if not incoming.pending and not found.pending():
                            more = False
                            break
                except ssl.SSLWantReadError:
                    more = False
                except ssl.SSLZeroReturnError:
                    ended = True
                if filled:
                    received += filled
                    connection.buffer_updated(filled)
                if ended or not more:
                    break
        except ssl.SSLError as error:
            self._flush_control()
            self._refuse(error.reason or "what came cannot be decrypted")
            return
        if self._outgoing.pending:
            self._flush_control()
        self._weigh(came - incoming.pending, received)
        if ended and not self._closing and not connection.eof_received():
            self.close()

    def _weigh(self, taken: int, received: int) -> None:
        """Judge a peer by how much ciphertext it took for how much data."""
        self._wasted = max(0, self._wasted + taken - received * WASTE_RATIO_MAX)
        if self._wasted > WASTE_BYTES_MAX:
            if not self._closing:
                self._refuse("what came held next to no data")
        elif 2 * received < taken - RECORD_BYTES:  # One record may be incomplete, and gives its data later.
            self._chunk = CIPHER_BYTES_MIN
            if self._reading and not self.is_closing():
                # Everybody else has a turn before more of it is read.
                self._transport.pause_reading()
                self._server.later(self._read_on)
        elif taken > self._chunk // 2:
            self._chunk = min(2 * self._chunk, CIPHER_BYTES)

    def _read_on(self) -> None:
        if self._reading and not self.is_closing():
            self._transport.resume_reading()

    # -- sending -------------------------------------------------------------------------------------------

    def _flush_control(self) -> None:
        """Send what TLS itself has to say."""
        data = self._outgoing.read()
        if not data or self._transport.is_closing():
            return
        self._transport.write(data)
        if self._write_paused:
            self._control_bytes += len(data)
            if self._control_bytes > CONTROL_BYTES_MAX:
                self.abort()

    def _pump(self) -> None:
        """Encrypt and send, as much as the peer takes and this turn allows."""
        self._pumping = False
        left = TURN_BYTES
        pending = self._pending
        try:
            while pending and not self._write_paused and left > 0 and not self._transport.is_closing():
                left -= self._encrypt()
                self._transport.write(self._outgoing.read())
        except ssl.SSLError as error:
            self._refuse(error.reason or "what was to be sent cannot be encrypted")
            return
        if pending and not self._write_paused:
            self._pumping = True
            self._server.later(self._go_on)
        waits = bool(pending) or self._write_paused
        if waits and not self._app_paused:
            self._app_paused = True
            self._connection.pause_writing()
        elif not waits:
            if self._app_paused:
                self._app_paused = False
                self._connection.resume_writing()
            if self._closing and not self._pending:
                # Not here: asyncio's transports must not be closed while they say that they may be written.
                self._server.later(self._say_goodbye)

    def _go_on(self) -> None:
        if self._pumping:
            self._pump()

    def _encrypt(self) -> int:
        """Encrypt a stretch of what is pending; how much it was."""
        pending, write = self._pending, self._write
        done = 0
        while pending and done < STRETCH_BYTES:
            data = pending.popleft()
            if len(data) < RECORD_BYTES // 2 and pending and len(pending[0]) < RECORD_BYTES // 2:
                pieces = [data]
                size = len(data)
                while pending and size < RECORD_BYTES and len(pending[0]) < RECORD_BYTES // 2:
                    data = pending.popleft()
                    pieces.append(data)
                    size += len(data)
                data = memoryview(b"".join(pieces))
            at, end = 0, min(len(data), STRETCH_BYTES)
            while at < end:
                at += write(data[at:end])
            if end < len(data):
                pending.appendleft(data[end:])
            done += end
        self._pending_bytes -= done
        return done

    # -- the connection calls these, as it calls a socket's transport --------------------------------------

    def write(self, data: Buffer) -> None:
        if self._pending or self._write_paused:
            self.writelines((data,))
            return
        if len(data) > STRETCH_BYTES or not self._open:
            self.writelines((data,))
            return
        view = memoryview(data)
        at, end = 0, len(view)
        try:
            while at < end:
                at += self._write(view[at:] if at else view)
        except ssl.SSLError as error:
            self._refuse(error.reason or "what was to be sent cannot be encrypted")
            return
        self._transport.write(self._outgoing.read())
        if self._write_paused and not self._app_paused:
            self._app_paused = True
            self._connection.pause_writing()

    def writelines(self, buffers: Iterable[Buffer]) -> None:
        if not self._open or self._closing:
            return
        for buffer in buffers:
            if len(buffer):
                self._pending.append(memoryview(buffer))
                self._pending_bytes += len(buffer)
        if not self._pumping:
            self._pump()

    def get_write_buffer_size(self) -> int:
        return self._pending_bytes + self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        self._reading = False
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._reading = True
        if self._incoming.pending or (self._open and self._object is not None and self._object.pending()):
            self._server.later(self._receive)
        self._transport.resume_reading()

    def close(self) -> None:
        """Send what is pending, say goodbye and close."""
        if self._closing:
            return
        self._closing = True
        if not self._pending:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        if self._open and self._object is not None and not self._transport.is_closing():
            # The other end does not answer goodbyes, and needs not.
            with contextlib.suppress(ssl.SSLError, OSError):
                self._object.unwrap()
            data = self._outgoing.read()
            if data:
                self._transport.write(data)
        self._transport.close()

    def abort(self) -> None:
        self._closing = True
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._object
        if name == "sslcontext" and self._object is not None:
            return self._object.context
        return self._transport.get_extra_info(name, default)
