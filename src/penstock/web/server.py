"""An HTTP server on the caller's loop: uvicorn's protocol, with limits that uvicorn leaves open.

It is handed one ASGI application. It binds before it starts, so that a used port is told early, and installs
no signal handlers. There are few connections, since only probes, collectors of metrics and people's browsers
come here. Beyond the limit the one that was idle longest makes room, and if all are being answered the new
one is closed on arrival. A head has a size and a time to arrive in, an idle connection ends, and so does one
whose peer takes nothing of its answer any more.

With a certificate it speaks the TLS of the brokers' listeners (`https`). A changed one is taken up: each
handshake uses the context of the moment.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from penstock.server.server import ListenError, bind_failure

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

    from penstock.certificates import Certificates
    from penstock.web.https import Https

HEAD_BYTES_MAX = 16_384
"""A browser's cookies and languages take a few kilobytes."""
HEAD_SECONDS = 10.0
"""From the first byte of a request, or from the connection, to the end of its head."""
IDLE_SECONDS = 120.0
"""Collectors of metrics keep their connection and come back each minute."""
STUCK_SECONDS = 60.0
"""A peer that has taken nothing of its answer for so long is gone."""
HALF_OPEN_MAX = 256
"""Connections that have not shaken hands."""
_ABSENT = object()

_quiet = logging.getLogger("uvicorn.error")
_quiet.setLevel(logging.ERROR)  # what a peer did wrong is no event of ours
logging.getLogger("uvicorn.access").disabled = True


class HttpServer:
    def __init__(
        self,
        application: ASGI3Application,
        connections_max: int,
        certificates: Certificates | None = None,
        flag: str = "--http",
    ) -> None:
        """`certificates`: for https. `flag`: the option that says where to listen, for those who are told
        that it cannot be had."""
        self.connections_max = connections_max
        self.refused = 0
        """Connections that were closed on arrival."""
        self._certificates = certificates
        self._https: Https | None = None
        self._watch: asyncio.Future[None] | None = None
        self._flag = flag
        self._config = Config(
            application,
            interface="asgi3",
            lifespan="off",
            forwarded_allow_ips="127.0.0.1,::1",  # a proxy on this machine may say that it speaks TLS
            ws="none",
            log_config=None,
            access_log=False,
            timeout_keep_alive=int(IDLE_SECONDS),
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
        self._state = ServerState()
        self.open: dict[HttpConnection, None] = {}
        """The connections, those that were answered longest ago first."""
        self._socket: socket.socket | None = None
        self._listener: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        return len(self.open)

    def admit(self, connection: HttpConnection) -> bool:
        """Make room for one more; False if there is none."""
        if len(self.open) >= self.connections_max:
            idle = next((one for one in self.open if one.idle), None)
            if idle is None:
                self.refused += 1
                return False
            del self.open[idle]
            idle.transport.abort()
        self.open[connection] = None
        return True

    def bind(self, host: str, port: int) -> int:
        """Reserve the address; the port, which the system chose where 0 was asked for."""
        try:
            found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except socket.gaierror as error:
            raise ListenError(f"The address {host}:{port} cannot be resolved: {error.strerror}.") from error
        family, _type, _proto, _canonical, address = found[0]
        # Of sockets that say that they are TCP's, asyncio sends small answers at once.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            listener.close()
            raise ListenError(bind_failure(host, port, error, self._flag)) from error
        listener.setblocking(False)
        self._socket = listener
        bound: int = listener.getsockname()[1]
        return bound

    async def start(self) -> None:
        assert self._socket is not None, "no address is bound"
        self._config.load()
        loop = asyncio.get_running_loop()
        make: Callable[[], asyncio.BaseProtocol] = self._connection
        if self._certificates is not None:
            from penstock.web.https import Https

            self._https = Https(loop, self._certificates, HALF_OPEN_MAX)
            make = partial(self._https.transport, self._connection)
        try:
            self._socket.listen()  # uvloop says nothing of an address on which somebody else listens already
            self._listener = await loop.create_server(make, sock=self._socket)
        except OSError as error:
            host, port = self._socket.getsockname()[:2]
            raise ListenError(bind_failure(host, port, error, self._flag)) from error
        if self._certificates is not None:
            self._watch = asyncio.ensure_future(self._certificates.watch())

    def _connection(self) -> HttpConnection:
        return HttpConnection(self, self._config, self._state)

    async def close(self) -> None:
        """Accept no more and close what is open, answered or not."""
        if self._watch is not None:
            self._watch.cancel()
        if self._listener is not None:
            self._listener.close()
        elif self._socket is not None:
            self._socket.close()
        if self._https is not None:
            self._https.close()
        for connection in list(self.open):
            connection.transport.abort()
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        watch = [] if self._watch is None else [self._watch]
        await asyncio.gather(*tasks, *watch, return_exceptions=True)


class HttpConnection(H11Protocol):
    """uvicorn's, which bounds neither how long a head may take nor how long an answer may not be taken."""

    def __init__(self, server: HttpServer, config: Config, state: ServerState) -> None:
        super().__init__(config, state, {})
        self._http = server
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if not self._http.admit(self):
            transport.abort()
            return
        super().connection_made(transport)
        self._within(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._http.open.pop(self, None)
        self._stop_timer()
        self._unset_keepalive_if_required()
        if self.transport is not None:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport is None or self.transport.is_closing():
            return  # it was refused, or is over
        if self.idle and self._timer is None:
            self._within(HEAD_SECONDS)
        super().data_received(data)
        if not self.idle:
            self._stop_timer()

    def on_response_complete(self) -> None:
        if self._http.open.pop(self, _ABSENT) is None:
            self._http.open[self] = None
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._within(STUCK_SECONDS)

    def resume_writing(self) -> None:
        self._stop_timer()
        super().resume_writing()

    @property
    def idle(self) -> bool:
        """No request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _within(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def https_certificates(key_file: str) -> Certificates:
    """From a PEM file with a key and its certificates. TlsError says what is wrong with it."""
    from penstock.certificates import Certificates
    from penstock.settings.doors import TlsSettings

    return Certificates(
        "HTTP",
        TlsSettings(
            key_file=key_file,
            key_pem=None,
            chain_pem=None,
            key_password=None,
            trust_file=None,
            trust_pem=None,
            client_auth="none",
            versions=("TLSv1.2", "TLSv1.3"),
            mapping_rules="DEFAULT",
            checks_names=False,
        ),
    )
