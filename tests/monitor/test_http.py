"""The HTTP port: what it answers, what it refuses, and what nobody can make it hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus

import pytest

from penstock.monitor import http
from penstock.monitor.http import Asked, HttpServer, Page, parse_head
from penstock.testing.waiting import eventually
from tests.monitor.asking import get, read, send


class Port:
    """A server with a page that shows what was asked for."""

    def __init__(self) -> None:
        self.server = HttpServer(self.answer, connections_max=3)
        self.address = f"127.0.0.1:{self.server.bind('127.0.0.1', 0)}"
        self.seen: list[Asked] = []
        self.hold: asyncio.Event | None = None

    async def answer(self, asked: Asked) -> Page:
        self.seen.append(asked)
        if asked.path == "/broken":
            raise RuntimeError("broken on purpose")
        if self.hold is not None:
            await self.hold.wait()
        return Page(asked.path.encode())


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    made = Port()
    await made.server.start()
    yield made
    await made.server.close()


async def test_an_answer_and_what_was_asked_for(port: Port) -> None:
    got = await get(port.address, "/a%20page?x=1&y=b", X_Thing="yes")
    assert (got.status, got.body) == (200, b"/a page")
    assert got.headers["x-content-type-options"] == "nosniff"
    assert port.seen[0].query == {"x": "1", "y": "b"}
    assert port.seen[0].headers["x-thing"] == "yes"


async def test_head_has_the_length_and_no_body(port: Port) -> None:
    got = await get(port.address, "/page", "HEAD")
    assert (got.status, got.headers["content-length"], got.body) == (200, "5", b"")


async def test_requests_of_a_connection_are_answered_in_order(port: Port) -> None:
    host, _, number = port.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(number))
    writer.write(
        b"GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\nGET /3 HTTP/1.1\r\nConnection: close\r\n\r\n"
    )
    assert [(await read(reader)).body for _ in range(3)] == [b"/1", b"/2", b"/3"]
    assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET http://other/ HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/3\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: 1\r\n folded\r\n\r\n", 400),
        (b"GET /?" + b"a=1&" * 200 + b" HTTP/1.1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 413),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * http.HEAD_BYTES_MAX + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n", 431),
        (b"GET /broken HTTP/1.1\r\n\r\n", 500),
    ],
)
async def test_what_is_refused(port: Port, request_bytes: bytes, status: int) -> None:
    assert (await send(port.address, request_bytes)).status == status


async def test_a_refused_request_ends_its_connection(port: Port) -> None:
    host, _, number = port.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(number))
    writer.write(b"POST / HTTP/1.1\r\n\r\nGET /second HTTP/1.1\r\n\r\n")
    assert (await read(reader)).status == 405
    assert await reader.read() == b""
    assert port.seen == []
    writer.close()


async def test_connections_beyond_the_limit_are_closed_and_others_go_on(port: Port) -> None:
    host, _, number = port.address.rpartition(":")
    held = [await asyncio.open_connection(host, int(number)) for _ in range(3)]
    for reader, writer in held:
        writer.write(b"GET /mine HTTP/1.1\r\n\r\n")
        assert (await read(reader)).body == b"/mine"
    reader, writer = await asyncio.open_connection(host, int(number))
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        writer.write(b"GET /one-more HTTP/1.1\r\n\r\n")
        await read(reader)
    assert port.server.refused == 1
    held[0][1].write(b"GET /still HTTP/1.1\r\n\r\n")
    assert (await read(held[0][0])).body == b"/still"
    for _reader, other in [*held, (reader, writer)]:
        other.close()


async def test_a_head_that_does_not_come_ends_the_connection(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "HEAD_SECONDS", 0.05)
    host, _, number = port.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(number))
    writer.write(b"GET / HT")
    async with asyncio.timeout(30):
        with pytest.raises(ConnectionError):
            assert await reader.read() == b""
            raise ConnectionResetError
    writer.close()


async def test_a_peer_that_pipelines_for_ever_is_not_read(port: Port) -> None:
    port.hold = asyncio.Event()
    host, _, number = port.address.rpartition(":")
    _reader, writer = await asyncio.open_connection(host, int(number))
    writer.write(b"GET /1 HTTP/1.1\r\n\r\n")
    for _ in range(200):
        writer.write(b"GET /2 HTTP/1.1\r\nA: " + b"x" * 8000 + b"\r\n\r\n")
    await eventually(lambda: port.seen)
    (connection,) = port.server.connections
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(connection._head) < http.HEAD_BYTES_MAX + 2 * 262_144
    port.hold.set()
    writer.close()


def test_the_head_is_parsed_as_a_whole() -> None:
    parsed = parse_head(b"GET /x HTTP/1.0\r\nAccept: a\r\nACCEPT: b")
    assert not isinstance(parsed, HTTPStatus)
    assert parsed == (Asked("GET", "/x", {}, {"accept": "b"}), False)
