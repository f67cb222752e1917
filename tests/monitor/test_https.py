"""TLS of the HTTP port: what comes through it, and whom it sends away."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.server import tls
from penstock.testing.waiting import eventually
from penstock.web import https
from penstock.web import server as http
from penstock.web.pages import Page, send_page
from penstock.web.server import HttpServer, https_certificates
from tests.certificates import Authority
from tests.monitor.asking import read

SIZE = 5_000_000
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Port:
    def __init__(self, folder: Path) -> None:
        authority = Authority()
        self.trust = ssl.create_default_context(cafile=authority.write(folder / "ca.pem"))
        keys = authority.vouch().write(folder / "http.pem")
        self.server = HttpServer(self.answer, 3, https_certificates(keys))
        self.number = self.server.bind("127.0.0.1", 0)
        self.scopes: list[dict[str, Any]] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        body = b""
        while scope["method"] == "POST":
            message = await receive()
            body += message["body"]
            if not message["more_body"]:
                break
        await send_page(send, Page(body or b"x" * SIZE))

    async def connect(self, *, with_tls: bool = True) -> Streams:
        streams = await asyncio.open_connection(
            "127.0.0.1", self.number, ssl=self.trust if with_tls else None
        )
        self._writers.append(streams[1])
        return streams

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await self.server.close()


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Port]:
    made = Port(tmp_path)
    await made.server.start()
    yield made
    await made.close()


async def ends(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await reader.read()


async def test_large_requests_and_answers_on_one_connection(port: Port) -> None:
    reader, writer = await port.connect()
    for _ in range(2):
        writer.write(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await read(reader)).body == b"x" * SIZE
        writer.write(b"POST /form HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % SIZE)
        writer.write(b"y" * SIZE)
        assert (await read(reader)).body == b"y" * SIZE
    assert {(scope["scheme"], scope["client"][0]) for scope in port.scopes} == {("https", "127.0.0.1")}
    writer.write(b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert (await read(reader)).body == b"x" * SIZE
    assert await reader.read() == b"", "a goodbye of TLS"
    await eventually(lambda: port.server.connections == 0)


async def test_who_says_nothing_is_closed(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(https, "SHAKE_SECONDS", 0.01)
    reader, _writer = await port.connect(with_tls=False)
    await ends(reader)


async def test_of_too_many_that_say_nothing_the_oldest_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "HALF_OPEN_MAX", 2)
    port = Port(tmp_path)
    await port.server.start()
    silent = [await port.connect(with_tls=False) for _ in range(3)]
    await ends(silent[0][0])
    reader, writer = await port.connect()
    await ends(silent[1][0])
    writer.write(b"POST /form HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\ny")
    assert (await read(reader)).body == b"y"
    assert not silent[2][0].at_eof()
    await port.close()


async def test_plain_bytes_are_closed_unanswered(port: Port) -> None:
    reader, writer = await port.connect(with_tls=False)
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert await reader.read() == b""
    assert port.scopes == []


async def test_ciphertext_with_next_to_no_data_is_refused(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "WASTE_BYTES_MAX", 500)
    monkeypatch.setattr(http, "HEAD_SECONDS", 1000.0)
    reader, writer = await port.connect()
    for _ in range(1000):
        writer.write(b"G")  # Each in a record of its own.
    await ends(reader)
    await eventually(lambda: port.server.connections == 0)
    assert port.scopes == []
