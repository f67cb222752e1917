"""Connections without sockets: the real server and its connections, with transports made of callbacks.

Bytes arrive in order and after a delay. A client may be cut off from a broker: the bytes of both wait until
the cut heals, as with TCP, and an impatient side gives up. A connection may break: what is on its way is
lost, and nobody can tell whether it was a request or an answer. A broker that died resets its connections. A
paused one accepts them, as its kernel would, and finds the requests when it wakes.

Brokers are clients of other brokers too (`peering.py`).
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import deque
from collections.abc import Iterable
from typing import Any, TypeVar

from penstock.server.connection import Connection
from penstock.server.entrance import OPEN, Entrance
from penstock.server.limits import Limits
from penstock.server.server import Bound, Handle, Server
from penstock.wire.buffers import Buffer
from simulation.loop import CURRENT, Process, World

DELAY_SECONDS_MAX = 0.003
RESET_SECONDS = 0.001
_SIZE = struct.Struct(">i")

L = TypeVar("L", bound="Link")


class Network:
    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self._listening: dict[str, SimulatedServer] = {}
        self._links: list[Link] = []
        self._cuts: set[tuple[str, str]] = set()
        self._slow: dict[tuple[str, str], float] = {}

    def delay(self, client: str = "", host: str = "") -> float:
        """How long bytes are on their way between these two."""
        delay = self.rng.random() * DELAY_SECONDS_MAX
        return delay + self._slow.get((client, host), 0.0) if self._slow else delay

    # The brokers' side.

    def listen(self, host: str, server: SimulatedServer) -> None:
        self._listening[host] = server

    def forget(self, host: str, server: SimulatedServer) -> None:
        if self._listening.get(host) is server:
            del self._listening[host]

    def reset(self, process: Process) -> None:
        """The process died."""
        for host, server in list(self._listening.items()):
            if server.process is process:
                del self._listening[host]
        for link in self._links:
            if link.server.process is process:
                link.lose()
            elif link.client is process:
                link.abandon()
        self._links = [link for link in self._links if not link.over or link.has_late]

    # The clients' side.

    async def connect(self, client: Process, host: str) -> Link:
        return self.add(Link(self, client, host, await self.reach(client, host)))

    async def reach(self, client: Process, host: str) -> SimulatedServer:
        """Whoever listens there; ConnectionRefusedError if nobody does."""
        await asyncio.sleep(self.delay(client.host, host))
        if self.is_cut(client.host, host):
            await asyncio.sleep(3600)
        server = self._listening.get(host)
        if server is None or server.process.dead:
            raise ConnectionRefusedError(f"nobody listens at {host}")
        return server

    def add(self, link: L) -> L:
        self._links = [one for one in self._links if not one.over or one.has_late]
        self._links.append(link)
        return link

    # Cuts.

    def is_cut(self, client: str, host: str) -> bool:
        return bool(self._cuts) and (client, host) in self._cuts

    def cut(self, client: str, host: str) -> None:
        self._cuts.add((client, host))

    def heal(self, client: str, host: str) -> None:
        self._cuts.discard((client, host))
        for link in self._between(client, host):
            link.go_on()

    def heal_all(self) -> None:
        for client, host in sorted(self._cuts):
            self.heal(client, host)
        self._slow.clear()

    def slow_down(self, client: str, host: str, seconds: float) -> None:
        """What is sent from now on is late; nothing overtakes."""
        self._slow[client, host] = seconds

    def speed_up(self, client: str, host: str) -> None:
        self._slow.pop((client, host), None)

    def break_off(self, client: str, host: str) -> None:
        """All connections between these two break."""
        for link in self._between(client, host):
            link.break_off()

    def _between(self, client: str, host: str) -> list[Link]:
        return [link for link in self._links if link.client.host == client and link.host == host]


class Link:
    """One connection, seen from its client."""

    def __init__(self, network: Network, client: Process, host: str, server: SimulatedServer) -> None:
        self._network = network
        self._world = network.world
        self.client = client
        self.host = host
        self.server = server
        self.over = False
        self.broken = False
        """Nothing arrives any more, either way."""
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._held: list[tuple[bool, Any]] = []
        self._there = self._back = 0.0
        self._received = bytearray()
        self._transport = _Transport(self)
        self.send(None)

    def ask(self, frame: bytes) -> asyncio.Future[bytes]:
        """Send a request; its answer, without the size before it, or ConnectionError."""
        answer: asyncio.Future[bytes] = self._world.create_future()
        if self.over:
            answer.set_exception(ConnectionResetError("the connection is closed"))
            answer.exception()
            return answer
        self._waiting.append(answer)
        self.send(_SIZE.pack(len(frame)) + frame)
        return answer

    def close(self) -> None:
        """The client gives up."""
        if not self.over:
            self._end("the connection was closed here")
            if not self._network.is_cut(self.client.host, self.host):
                self._hang_up(0.0)

    # Between the two.

    def send(self, data: bytes | None) -> None:
        """To the server; None: the connection begins."""
        if self._network.is_cut(self.client.host, self.host):
            self._held.append((True, data))
            return
        self._there = max(self._there, self._world.time() + self._network.delay(self.client.host, self.host))
        self.server.process.post_at(self._there, self._transport.receive, data)

    def to_client(self, data: bytes | None) -> None:
        """From the server; None: it closed the connection."""
        if self._network.is_cut(self.client.host, self.host):
            self._held.append((False, data))
            return
        self._back = max(self._back, self._world.time() + self._network.delay(self.client.host, self.host))
        self.client.post_at(self._back, self._receive, data)

    @property
    def has_late(self) -> bool:
        """Whether it holds a request that arrives when the cut heals, also if its client gave up since."""
        return any(to_server for to_server, _data in self._held)

    def go_on(self) -> None:
        held, self._held = self._held, []
        for to_server, data in held:
            if to_server:
                self.send(data)
            else:
                self.to_client(data)
        if self.over:
            self._hang_up(0.0)

    def lose(self) -> None:
        """The other end is gone."""
        if not self._network.is_cut(self.client.host, self.host):
            self.client.post_at(self._world.time() + RESET_SECONDS, self._end, "the connection was reset")

    def abandon(self) -> None:
        """This end is gone."""
        self.over = True
        if not self._network.is_cut(self.client.host, self.host):
            self._hang_up(RESET_SECONDS)

    def _hang_up(self, seconds: float) -> None:
        """The server sees the end of the connection, behind all that was sent through it."""
        when = self._world.time() + seconds
        self.server.process.post_at(max(when, self._there), self._transport.lost)

    def break_off(self) -> None:
        self.broken = True
        self._held.clear()
        when = self._world.time() + RESET_SECONDS
        self.client.post_at(when, self._end, "the connection was reset")
        self.server.process.post_at(when, self._transport.lost)

    def _receive(self, data: bytes | None) -> None:
        if self.over or self.broken:
            return
        if data is None:
            self._end("the broker closed the connection")
            return
        received = self._received
        received += data
        while len(received) >= 4:
            size = _SIZE.unpack_from(received)[0]
            if len(received) < 4 + size:
                break
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_result(bytes(received[4 : 4 + size]))
            del received[: 4 + size]

    def _end(self, why: str) -> None:
        self.over = True
        waiting, self._waiting = self._waiting, deque()
        for answer in waiting:
            if not answer.done():
                answer.set_exception(ConnectionResetError(why))
                answer.exception()


class _Transport(asyncio.Transport):
    """The server's end of a connection."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self._connection: Connection | None = None
        self._unread: list[bytes] = []
        self._reading = True
        self._closing = False

    def receive(self, data: bytes | None) -> None:
        """In the broker's process. None: the connection begins."""
        server = self._link.server
        if self._link.broken or self._closing:
            return
        if data is None:
            if server.accepts:
                self._connection = Connection(server, "PLAINTEXT")
                self._connection.connection_made(self)
            else:
                self._link.to_client(None)
            return
        self._unread.append(data)
        self._read()

    def _read(self) -> None:
        connection = self._connection
        while self._unread and self._reading and not self._closing and connection is not None:
            data = self._unread.pop(0)
            buffer = connection.get_buffer(-1)
            size = min(len(data), len(buffer))
            buffer[:size] = data[:size]
            if size < len(data):
                self._unread.insert(0, data[size:])
            connection.buffer_updated(size)

    def lost(self) -> None:
        """The client is gone, or this end is closed."""
        connection, self._connection = self._connection, None
        self._closing = True
        if connection is not None:
            connection.connection_lost(None)

    # What the connection calls.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self._link.client.host, 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The network takes everything."""

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Buffer) -> None:
        if not self._closing:
            self._link.to_client(bytes(data))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._link.server.process.post(self._read)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._link.to_client(None)
            self._link.server.process.post(self.lost)

    abort = close


class SimulatedServer(Server):
    """The real server, which listens at a name of the simulated network."""

    def __init__(self, network: Network, handle: Handle, limits: Limits) -> None:
        super().__init__(handle, limits)
        self.process = CURRENT.get()
        self.accepts = False
        self._network = network
        self._names: list[str] = []

    def bind(self, name: str, host: str, port: int, entrance: Entrance = OPEN) -> Bound:
        self._names.append(host)
        return Bound(name, host, port)

    async def start(self) -> None:
        self.accepts = True
        for host in self._names:
            self._network.listen(host, self)
        self._sweep()

    def _stop_listening(self) -> None:
        self.accepts = False
        for host in self._names:
            self._network.forget(host, self)
