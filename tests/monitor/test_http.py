"""The HTTP port: what it answers, what it refuses, and what nobody can make it hold."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import NameOID

from penstock import certificates
from penstock.certificates import Certificates
from penstock.server.loop import new_event_loop
from penstock.testing.waiting import eventually
from penstock.web import server as http
from penstock.web.pages import Page, send_page
from penstock.web.server import HttpServer, https_certificates
from tests.certificates import Authority
from tests.monitor.asking import get, read


class Port:
    """A server with a page that shows what was asked for."""

    def __init__(self, connections_max: int = 3, certificates: Certificates | None = None) -> None:
        self.server = HttpServer(self.answer, connections_max, certificates)
        self.address = f"127.0.0.1:{self.server.bind('127.0.0.1', 0)}"
        self.seen: list[str] = []
        self.hold: asyncio.Event | None = None

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(scope["path"])
        if scope["path"] == "/broken":
            raise RuntimeError("broken on purpose")
        if self.hold is not None:
            await self.hold.wait()
        size = 10_000_000 if scope["path"] == "/large" else 0
        await send_page(send, Page(scope["path"].encode() + b"x" * size))


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    made = Port()
    await made.server.start()
    yield made
    await made.server.close()


async def connect(port: Port) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, number = port.address.rpartition(":")
    return await asyncio.open_connection(host, int(number))


async def ends(reader: asyncio.StreamReader) -> None:
    """Return when the other end has closed the connection, one way or the other."""
    async with asyncio.timeout(30):
        try:
            while await reader.read(65536):
                pass
        except ConnectionError:
            pass


async def test_an_answer(port: Port) -> None:
    got = await get(port.address, "/a%20page?x=1&y=b")
    assert (got.status, got.body) == (200, b"/a page")
    assert got.headers["x-content-type-options"] == "nosniff"


async def test_head_has_the_length_and_no_body(port: Port) -> None:
    got = await get(port.address, "/page", "HEAD")
    assert (got.status, got.headers["content-length"], got.body) == (200, "5", b"")


async def test_requests_of_a_connection_are_answered_in_order(port: Port) -> None:
    reader, writer = await connect(port)
    writer.write(
        b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n"
        b"GET /3 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    )
    assert [(await read(reader)).body for _ in range(3)] == [b"/1", b"/2", b"/3"]
    assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/3\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nbad header\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: odd\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"x" * (http.HEAD_BYTES_MAX + 65536) + b"\r\n\r\n",
    ],
)
async def test_what_is_refused(port: Port, request_bytes: bytes) -> None:
    reader, writer = await connect(port)
    writer.write(request_bytes + b"GET /second HTTP/1.1\r\nHost: a\r\n\r\n")
    async with asyncio.timeout(30):
        head = await reader.readline()
    assert head.startswith(b"HTTP/1.1 400 ")
    await ends(reader)
    assert port.seen == []
    writer.close()


async def test_a_page_that_fails_is_an_answer(port: Port) -> None:
    reader, writer = await connect(port)
    writer.write(b"GET /broken HTTP/1.1\r\nHost: a\r\n\r\n")
    async with asyncio.timeout(30):
        assert (await reader.readline()).startswith(b"HTTP/1.1 500 ")
    writer.close()


async def test_beyond_the_limit_the_longest_idle_goes(port: Port) -> None:
    held = [await connect(port) for _ in range(3)]
    for reader, writer in held:
        writer.write(b"GET /mine HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await read(reader)).body == b"/mine"
    assert (await get(port.address, "/one-more")).body == b"/one-more"
    await ends(held[0][0])
    held[1][1].write(b"GET /still HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await read(held[1][0])).body == b"/still"
    for _reader, writer in held:
        writer.close()


async def test_beyond_the_limit_of_requests_a_connection_is_closed_and_others_go_on(port: Port) -> None:
    port.hold = asyncio.Event()
    held = [await connect(port) for _ in range(3)]
    for _reader, writer in held:
        writer.write(b"GET /mine HTTP/1.1\r\nHost: a\r\n\r\n")
    await eventually(lambda: len(port.seen) == 3)
    reader, writer = await connect(port)
    await ends(reader)
    writer.close()
    assert port.server.refused == 1
    port.hold.set()
    for one, other in held:
        assert (await read(one)).body == b"/mine"
        other.close()


async def test_a_head_that_does_not_come_ends_the_connection(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "HEAD_SECONDS", 0.05)
    for begin in (b"", b"GET / HT"):
        reader, writer = await connect(port)
        writer.write(begin)
        await ends(reader)
        writer.close()
    reader, writer = await connect(port)
    writer.write(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await read(reader)).body == b"/1"
    writer.write(b"GET /2 HT")
    await ends(reader)
    writer.close()
    assert port.seen == ["/1"]


async def test_a_peer_that_does_not_take_its_answer_is_let_go(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "STUCK_SECONDS", 0.05)
    _reader, writer = await connect(port)
    writer.write(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await eventually(lambda: port.seen)
    await eventually(lambda: port.server.connections == 0)
    writer.close()


async def test_a_peer_that_pipelines_for_ever_is_not_read(port: Port) -> None:
    port.hold = asyncio.Event()
    _reader, writer = await connect(port)
    writer.write(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\n")
    for _ in range(200):
        writer.write(b"GET /2 HTTP/1.1\r\nHost: a\r\nA: " + b"x" * 8000 + b"\r\n\r\n")
    await eventually(lambda: port.seen)
    (connection,) = port.server.open
    await eventually(lambda: not connection.transport.is_reading())
    assert len(connection.conn._receive_buffer) < http.HEAD_BYTES_MAX + 2 * 262_144
    port.hold.set()
    writer.close()


async def _shown(port: Port, trust: ssl.SSLContext, server_hostname: str) -> str:
    """The name in the certificate that a new connection is shown."""
    host, _, number = port.address.rpartition(":")
    _reader, writer = await asyncio.open_connection(
        host, int(number), ssl=trust, server_hostname=server_hostname
    )
    subject = writer.get_extra_info("peercert")["subject"]
    writer.transport.abort()
    return str(dict(part[0] for part in subject)["commonName"])


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, new_event_loop])
def test_a_changed_certificate_is_taken_up_and_connections_stay(
    loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "LOOK_SECONDS", 0.01)
    authority, file = Authority(), tmp_path / "http.pem"
    before, after = (authority.vouch((NameOID.COMMON_NAME, name)) for name in ("before", "after"))
    before.write(file)
    trust = ssl.create_default_context(cafile=authority.write(tmp_path / "ca.pem"))

    async def change(port: Port) -> None:
        host, _, number = port.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(number), ssl=trust)
        # An address is no name of a server: such a client sends none.
        assert [await _shown(port, trust, name) for name in ("localhost", "127.0.0.1")] == ["before"] * 2
        file.write_text(after.key + before.certificate)  # half of the change: they do not fit
        assert await _shown(port, trust, "localhost") == "before"
        after.write(file)
        async with asyncio.timeout(30):
            while await _shown(port, trust, "localhost") == "before":
                pass
        assert [await _shown(port, trust, name) for name in ("localhost", "127.0.0.1")] == ["after"] * 2
        writer.write(b"GET /still-here HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await read(reader)).body == b"/still-here"
        writer.close()

    async def run() -> None:
        port = Port(1000, https_certificates(str(file)))
        await port.server.start()
        try:
            await change(port)
        finally:
            await port.server.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())
