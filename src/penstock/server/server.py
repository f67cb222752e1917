"""Listeners and the connections that came through them.

A `Server` knows the wire and one function, `handle(request)`. It accepts, bounds and drains; it does not know
what requests mean.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from penstock.server.connection import Connection
from penstock.server.entrance import OPEN, Entrance
from penstock.server.half_open import HalfOpen
from penstock.server.limits import Limits
from penstock.server.memory import Memory, give_back_memory
from penstock.server.rates import ConnectionRates
from penstock.server.requests import Requests
from penstock.server.sizes import SCRATCH_BYTES
from penstock.wire.buffers import Buffer
from penstock.wire.exchange import Reply, Request

if TYPE_CHECKING:
    from penstock.server.handshakes import Handshakes

log = logging.getLogger(__name__)

UNLIMITED = 2_147_483_647

Handle = Callable[[Request], list[Buffer] | Reply | None]


_SHED_SECONDS = 0.05
"""How soon memory that is short is looked at again."""
_GIVE_BACK_SECONDS = 0.25
"""What a crowd of peers held and nobody needed for so long is given back to the system."""


class ListenError(Exception):
    """An address cannot be listened on. The message is one sentence for a person."""


class Bound(NamedTuple):
    """An address that a listener was given; the port is the real one where 0 was asked for."""

    name: str
    host: str
    port: int


class Server:
    def __init__(self, handle: Handle, limits: Limits | None = None) -> None:
        self.handle = handle
        """May be replaced until `start`; each connection takes the one it finds."""
        self.limits = limits if limits is not None else Limits()
        self.scratch = bytearray(SCRATCH_BYTES)
        self.scratch_view = memoryview(self.scratch)
        self.memory = Memory(self.limits.memory_bytes_max, self._relieve, self._run_short, self._watch_crowd)
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self.later = self._loop.call_soon
        self.cipher_view = memoryview(b"")
        """Where ciphertext is received, if a listener speaks TLS."""
        self.handshakes: Handshakes
        self.half_open = HalfOpen(self)
        self.wake = self._loop.call_at
        """Call a function at a time of `now`."""
        self.rate_of_host: Callable[[str], float | None] | None = None
        """How many connections in a second an address may open, if there are such quotas."""
        self._rates = ConnectionRates(self.now)
        self._sockets: list[tuple[str, Entrance, socket.socket]] = []
        self._listeners: list[asyncio.Server] = []
        self._connections: dict[Connection, None] = {}
        self._hosts: dict[str, int] = {}
        self._marked: list[Requests] = []
        self._relieving = False
        self._shedding: asyncio.Handle | None = None
        self._giving_back: asyncio.TimerHandle | None = None
        self._crowd_bytes = 0
        """The most in use since memory was last given back."""
        self._draining = False
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None
        self.accepted = 0
        self.refused = 0
        self.closed = {"idle": 0, "stalled": 0, "protocol": 0}
        """Connections, for metrics: those that came, those closed on arrival, and those closed later, by
        reason."""

    # -- listening ------------------------------------------------------------------------------------

    def bind(self, name: str, host: str, port: int, entrance: Entrance = OPEN) -> Bound:
        """Reserve an address without accepting yet, so that it can be told to others beforehand."""
        try:
            found = socket.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
            )
        except socket.gaierror as error:
            raise ListenError(
                f"The listen address {host}:{port} cannot be resolved: {error.strerror}."
            ) from error
        family, _type, _proto, _canonical, address = found[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # "::" serves IPv4 as well, as it does for a Java broker.
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            # Accepted connections inherit these.
            if self.limits.send_buffer_bytes > 0:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.limits.send_buffer_bytes)
            if self.limits.receive_buffer_bytes > 0:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.limits.receive_buffer_bytes)
            listener.bind(address)
        except OSError as error:
            listener.close()
            raise ListenError(bind_failure(host, port, error)) from error
        listener.setblocking(False)
        self._sockets.append((name, entrance, listener))
        return Bound(name, host, listener.getsockname()[1])

    async def start(self) -> None:
        """Accept connections on every address that was bound."""
        for name, entrance, listener in self._sockets:
            try:
                # uvloop says nothing of an address on which somebody else has begun to listen meanwhile.
                listener.listen(self.limits.accept_queue)
                self._listeners.append(
                    await self._loop.create_server(
                        self._factory(name, entrance), sock=listener, backlog=self.limits.accept_queue
                    )
                )
            except OSError as error:
                address = listener.getsockname()
                raise ListenError(bind_failure(address[0], address[1], error)) from error
        self._sockets.clear()
        self._sweep()

    def _factory(self, name: str, entrance: Entrance) -> Callable[[], asyncio.BufferedProtocol]:
        if entrance.context is None:
            return lambda: Connection(self, name, entrance)
        from penstock.server.handshakes import Handshakes
        from penstock.server.tls import CIPHER_BYTES, TlsTransport

        if not self.cipher_view:
            self.cipher_view = memoryview(bytearray(CIPHER_BYTES))
            self.handshakes = Handshakes(self._loop, self.limits.handshakes_max)
        return lambda: TlsTransport(self, entrance, Connection(self, name, entrance))

    # -- connections ----------------------------------------------------------------------------------

    def admit(self, connection: Connection) -> str | None:
        """Count a new connection in, or say why not."""
        host = connection.session.peer_host
        same_host = self._hosts.get(host, 0)
        self._connections[connection] = None
        self._hosts[host] = same_host + 1
        connection.idle_since = self._loop.time()
        self.accepted += 1
        if self._draining:
            return "the broker is stopping"
        if len(self._connections) > self.limits.connections_max:
            return f"there are {self.limits.connections_max} connections already (max.connections)"
        limits = self.limits
        if same_host >= limits.connections_of_hosts.get(host, limits.connections_per_host_max):
            return f"this address has {same_host} connections already (max.connections.per.ip)"
        if not connection.entrance.is_open:
            self.half_open.add(connection)
        if limits.connection_rate_max < UNLIMITED or self.rate_of_host is not None:
            self._rate(connection, host)
        return None

    def _rate(self, connection: Connection, host: str) -> None:
        """A connection that comes too early waits. If its address has a rate of its own it is closed then,
        because those who wait would only become more."""
        rate = None if self.rate_of_host is None else self.rate_of_host(host)
        if rate is not None:
            delay = self._rates.delay_of_host(host, rate)
            if delay > 0:
                connection.mute(2 * delay)  # It must not wake before it is closed.
                self._loop.call_later(delay, connection.abort)
                return
        if self.limits.connection_rate_max < UNLIMITED:
            delay = self._rates.delay(max(self.limits.connection_rate_max, 0.001))
            if delay > 0:
                connection.mute(delay)

    def let_in(self, connection: Connection) -> None:
        """A connection has shown all that its listener asks for."""
        self.half_open.remove(connection)

    def review_logins(self) -> None:
        """Users or tokens were removed: their connections end."""
        for connection in list(self._connections):
            connection.review_login()

    def release(self, connection: Connection) -> None:
        del self._connections[connection]
        self.half_open.remove(connection)
        host = connection.session.peer_host
        left = self._hosts[host] - 1
        if left:
            self._hosts[host] = left
        else:
            del self._hosts[host]
        if not self._connections and self._emptied is not None:
            self._emptied.set()

    @property
    def connections(self) -> int:
        return len(self._connections)

    def mark(self, connection: Requests) -> None:
        """A connection has an answer to send. All that come up in one turn of the loop go together."""
        if not self._marked:
            self._loop.call_soon(self._flush_marked)
        self._marked.append(connection)

    def _flush_marked(self) -> None:
        marked, self._marked = self._marked, []
        for connection in marked:
            if connection.dirty:
                self.flush(connection)

    def flush(self, connection: Requests) -> None:
        """Let a connection send. Its trouble is not that of the caller, who may be serving others too."""
        try:
            connection.flush()
        except Exception:
            log.exception("sending failed; peer=%s", connection.session.peer_host)
            connection.abort()

    def _relieve(self) -> None:
        """Memory has become free, or another frame may go on: let those go on that were held back."""
        if not self._relieving:
            self._relieving = True
            self._loop.call_soon(self._proceed_all)

    def _proceed_all(self) -> None:
        self._relieving = False
        for connection in list(self._connections):
            connection.proceed()

    def _run_short(self) -> None:
        if self._shedding is None:
            self._shedding = self._loop.call_soon(self.shed)

    def shed(self) -> None:
        """While memory is short: hurry who can be answered, close who holds it and does not get on, and look
        again soon."""
        self._shedding = None
        memory = self.memory
        if not memory.short:
            give_back_memory()
            return
        now = self._loop.time()
        holding = []
        for connection in list(self._connections):
            connection.hurry()
            ends = connection.patience_ends(now)
            if ends is not None and ends <= now:
                holding.append((ends, connection))
        holding.sort(key=lambda one: one[0])
        # What is aborted gives its memory back after this call.
        left = memory.used
        for _ends, connection in holding:
            if left <= memory.resume_at:
                break
            left -= connection.held_bytes
            log.warning("closed a stalled connection to free memory; peer=%s", connection.session.peer_host)
            self.closed["stalled"] += 1
            connection.abort()
        self._shedding = self._loop.call_later(_SHED_SECONDS, self.shed)
        self._relieve()

    def _watch_crowd(self) -> None:
        if self._giving_back is None:
            self._giving_back = self._loop.call_later(_GIVE_BACK_SECONDS, self._give_back)

    def _give_back(self) -> None:
        """Return to the system what nobody needed lately, and look again until the crowd is gone."""
        memory = self.memory
        recent, memory.peak = memory.peak, memory.used
        self._crowd_bytes = max(self._crowd_bytes, recent)
        if recent <= max(memory.crowd, self._crowd_bytes // 2):
            give_back_memory()
            self._crowd_bytes = recent
        self._giving_back = None
        if recent > memory.crowd:
            self._watch_crowd()

    def _sweep(self) -> None:
        """Close the idle."""
        now = self._loop.time()
        idle = self.limits.idle_timeout_ms / 1000
        for connection in list(self._connections):
            if connection.active:
                connection.active = False
                connection.idle_since = now
                continue
            silent = now - connection.idle_since
            if silent >= idle and (connection.stalled or not connection.waiting):
                log.info("closed an idle connection; peer=%s", connection.session.peer_host)
                self.closed["idle"] += 1
                connection.abort()
        self._sweeper = self._loop.call_later(min(5.0, idle / 4), self._sweep)

    # -- the end --------------------------------------------------------------------------------------

    async def drain(self, seconds: float) -> bool:
        """Stop accepting, answer what is under way, close. True if all was answered in time."""
        self._draining = True
        self._stop_listening()
        self._emptied = asyncio.Event()
        for connection in list(self._connections):
            connection.stop()
        if self._connections:
            try:
                async with asyncio.timeout(seconds):
                    await self._emptied.wait()
            except TimeoutError:
                log.warning(
                    "closed connections that did not finish in time; count=%d", len(self._connections)
                )
        all_answered = not self._connections
        await self.abort()
        return all_answered

    async def abort(self) -> None:
        """Stop accepting and close every connection at once."""
        self._draining = True
        self._stop_listening()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if self._shedding is not None:
            self._shedding.cancel()
        if self._giving_back is not None:
            self._giving_back.cancel()
        self.half_open.stop()
        if self._connections:
            self._emptied = asyncio.Event()
            for connection in list(self._connections):
                connection.abort()
            await self._emptied.wait()

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for _name, _entrance, unused in self._sockets:
            unused.close()
        self._sockets.clear()


def bind_failure(host: str, port: int, error: OSError, option: str = "--listen") -> str:
    """Why an address cannot be listened on, in one sentence. `option` chooses another address."""
    if error.errno == errno.EADDRINUSE:
        return f"The address {host}:{port} is in use by another process; choose another with {option}."
    if error.errno == errno.EACCES:
        return f"This user may not listen on {host}:{port}."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"The address {host} does not belong to this machine."
    return f"Listening on {host}:{port} failed: {error.strerror}."
