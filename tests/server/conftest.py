"""A server without a broker behind it: what it is asked and what it answers is in the tests' hands."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from penstock.server.limits import Limits
from penstock.server.loop import new_event_loop
from penstock.server.server import Handle, Server
from penstock.wire.buffers import Buffer
from penstock.wire.exchange import Reply, Request
from penstock.wire.headers import request_header

ECHO = 3
"""The api key that the tests' handle answers at once with the body of the request."""
HOLD = 0
"""The api key whose answers the test completes; several may be under way."""
HOLD_ALONE = 1
"""The same, but exclusive."""
BIG = 2
"""Answered at once with as many zeros as the body says."""
CLOSE = 8
"""Answered by closing the connection."""
SILENT = 9
"""Not answered at all."""


def frame(key: int, correlation_id: int, body: bytes = b"") -> bytes:
    message = request_header(key, 0, correlation_id, "tests") + body
    return struct.pack(">i", len(message)) + message


class Desk:
    """The handle function of a test server, with the requests that wait for the test."""

    def __init__(self) -> None:
        self.held: list[tuple[Request, bytes, Reply]] = []
        self.seen: list[int] = []
        self.abandoned: list[int] = []
        self.arrived = asyncio.Event()

    def handle(self, request: Request) -> list[Buffer] | Reply | None:
        body = bytes(request.frame[request.body_at :])
        self.seen.append(request.correlation_id)
        prefix = struct.pack(">i", request.correlation_id)
        if request.api_key == ECHO:
            return [prefix, body]
        if request.api_key == BIG:
            return [prefix, bytes(int(body))]
        if request.api_key == SILENT:
            return None
        reply = Reply()
        if request.api_key == CLOSE:
            reply.close()
            return reply
        reply.exclusive = request.api_key == HOLD_ALONE
        reply.on_abandon = lambda: self.abandoned.append(request.correlation_id)
        self.held.append((request, body, reply))
        self.arrived.set()
        return reply

    def complete(self, at: int = 0) -> None:
        request, body, reply = self.held.pop(at)
        reply.complete([struct.pack(">i", request.correlation_id), body])


class Peer:
    """A raw client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))
        await self.writer.drain()

    async def receive(self) -> tuple[int, bytes]:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        message = await self.reader.readexactly(size)
        return struct.unpack_from(">i", message)[0], message[4:]

    async def closed(self) -> bool:
        """True once the server has closed this connection without sending anything more."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True

    async def closed_after_anything(self) -> None:
        """Return once the server has closed this connection, whatever it said before."""
        with contextlib.suppress(ConnectionError):
            await self.reader.read()

    def reset(self) -> None:
        """Vanish without a word: the server gets a reset, not an end of stream."""
        connection = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):  # Also what OpenSSL says of a connection that was refused.
            await self.writer.wait_closed()


class Bench:
    """Starts servers and peers, and ends them."""

    def __init__(self) -> None:
        self._servers: list[Server] = []
        self._peers: list[Peer] = []
        self.port = 0

    async def serve(self, handle: Handle, **limits: Any) -> Server:
        server = Server(handle, Limits(**limits))
        self.port = server.bind("PLAINTEXT", "127.0.0.1", 0).port
        await server.start()
        self._servers.append(server)
        return server

    def serves(self, server: Server) -> None:
        """End this one, too."""
        self._servers.append(server)

    async def connect(self) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.port))
        self.add(peer)
        return peer

    def add(self, peer: Peer) -> None:
        self._peers.append(peer)

    async def close(self) -> None:
        for peer in self._peers:
            await peer.close()
        for server in self._servers:
            await server.abort()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.close()


@pytest.fixture
def desk() -> Desk:
    return Desk()


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Everything here must hold on uvloop and on asyncio's own loop."""
    return {"uvloop": new_event_loop, "asyncio": asyncio.new_event_loop}
