"""TLS of the HTTP port: the one that brokers' listeners have, under uvicorn's protocol.

asyncio and uvloop have TLS of their own. It reads as much as there is before anybody else has a turn, and a
peer that sends key updates without end would hold up the broker whose loop it is.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from penstock.server.entrance import Entrance
from penstock.server.handshakes import Handshakes
from penstock.server.tls import CIPHER_BYTES, TlsTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.certificates import Certificates

SHAKE_SECONDS: Final = 10.0
"""From the connection to the end of its handshake."""
DATA_BYTES: Final = 65_536


class _Peer:
    """What is known of a visitor."""

    __slots__ = ("listener", "peer_host", "principal")

    def __init__(self) -> None:
        self.peer_host = self.principal = ""
        self.listener = "HTTP"


class Https:
    """What the connections of one port share."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, certificates: Certificates, half_open_max: int
    ) -> None:
        """`half_open_max`: beyond so many that have not shaken hands the oldest of them is closed."""
        self.loop = loop
        self.later = loop.call_soon
        self.cipher_view = memoryview(bytearray(CIPHER_BYTES))
        self.data_view = memoryview(bytearray(DATA_BYTES))
        self.handshakes = Handshakes(loop, half_open_max)
        self._entrance = Entrance(context=certificates.current)
        self._half_open_max = half_open_max
        self._half_open: dict[HttpsConnection, None] = {}
        """The oldest first."""

    def transport(self, above: Callable[[], asyncio.Protocol]) -> TlsTransport:
        """The protocol of a new socket. `above` makes the one that is given the data."""
        return TlsTransport(self, self._entrance, HttpsConnection(self, above))

    def let_in(self, connection: HttpsConnection) -> None:
        self.forget(connection)
        connection.open()

    def came(self, connection: HttpsConnection) -> None:
        self._half_open[connection] = None
        if len(self._half_open) > self._half_open_max:
            next(iter(self._half_open)).abort()

    def forget(self, connection: HttpsConnection) -> None:
        self._half_open.pop(connection, None)

    def close(self) -> None:
        for connection in list(self._half_open):
            connection.abort()


class HttpsConnection:
    """Hands data on to a protocol that is made when the handshake is over."""

    def __init__(self, side: Https, above: Callable[[], asyncio.Protocol]) -> None:
        self.session = _Peer()
        self._side = side
        self._make = above
        self._above: asyncio.Protocol | None = None
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.session.peer_host = str((transport.get_extra_info("peername") or ("",))[0])
        self._timer = self._side.loop.call_later(SHAKE_SECONDS, self.abort)
        self._side.came(self)

    def open(self) -> None:
        """The handshake is over."""
        self._timer.cancel()
        self._above = self._make()
        self._above.connection_made(self._transport)

    def abort(self) -> None:
        self._side.forget(self)
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._side.forget(self)
        self._timer.cancel()
        if self._above is not None:
            self._above.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._side.data_view

    def buffer_updated(self, nbytes: int) -> None:
        if self._above is not None:
            self._above.data_received(bytes(self._side.data_view[:nbytes]))

    def eof_received(self) -> bool:
        return self._above is not None and bool(self._above.eof_received())

    def pause_writing(self) -> None:
        if self._above is not None:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        if self._above is not None:
            self._above.resume_writing()
