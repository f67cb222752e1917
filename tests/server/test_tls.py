"""TLS on a listener: what comes through is what was sent, and who does not speak it is sent away cheaply."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.x509.oid import NameOID

from penstock.certificates import Certificates
from penstock.server import tls
from penstock.server.entrance import Entrance
from penstock.server.handshakes import Handshakes
from penstock.server.limits import Limits
from penstock.server.server import Server
from penstock.server.tls import TlsTransport
from penstock.settings.doors import TlsSettings
from penstock.testing.waiting import eventually
from penstock.tls import TlsError, client_context, server_context
from penstock.wire.buffers import Buffer
from penstock.wire.exchange import Reply, Request
from tests.certificates import Authority, Certified
from tests.server.conftest import BIG, ECHO, Bench, Desk, Peer, frame

AUTHORITY = Authority()
SERVER = AUTHORITY.vouch()
VERSIONS = ("TLSv1.2", "TLSv1.3")


def tls_settings(
    own: Certified | None = None, *, client_auth: str = "none", versions: tuple[str, ...] = VERSIONS
) -> TlsSettings:
    return TlsSettings(
        key_file=None,
        key_pem=own.key if own else None,
        chain_pem=own.certificate if own else None,
        key_password=None,
        trust_file=None,
        trust_pem=AUTHORITY.certificate,
        client_auth=client_auth,
        versions=versions,
        mapping_rules="DEFAULT",
        checks_names=True,
    )


async def serve(
    bench: Bench,
    handle: Callable[[Request], list[Buffer] | Reply | None],
    entrance: Entrance | None = None,
    **limits: Any,
) -> Server:
    if entrance is None:
        context = server_context(tls_settings(SERVER))
        entrance = Entrance(context=lambda: context)
    server = Server(handle, Limits(**limits))
    bench.port = server.bind("SSL", "127.0.0.1", 0, entrance).port
    await server.start()
    bench.serves(server)
    return server


async def connect(bench: Bench, own: Certified | None = None, versions: tuple[str, ...] = VERSIONS) -> Peer:
    context = client_context(tls_settings(own, versions=versions))
    streams = await asyncio.open_connection("127.0.0.1", bench.port, ssl=context, server_hostname="localhost")
    peer = Peer(*streams)
    bench.add(peer)
    return peer


@pytest.mark.parametrize("version", VERSIONS)
async def test_frames_of_any_size_come_through_whole(bench: Bench, desk: Desk, version: str) -> None:
    await serve(bench, desk.handle)
    peer = await connect(bench, versions=(version,))
    assert peer.writer.get_extra_info("ssl_object").version() == version
    for number, size in enumerate((0, 1, 4096, 16_384, 40_000, 300_000, 3_000_000)):
        body = bytes(range(256)) * (size // 256) + bytes(size % 256)
        await peer.send(frame(ECHO, number, body))
        assert await peer.receive() == (number, body)


async def test_many_small_requests_in_one_write_are_answered_in_order(bench: Bench, desk: Desk) -> None:
    await serve(bench, desk.handle)
    peer = await connect(bench)
    await peer.send(*(frame(ECHO, number, b"x" * (number % 50)) for number in range(3000)))
    for number in range(3000):
        assert await peer.receive() == (number, b"x" * (number % 50))


async def test_a_peer_that_does_not_read_holds_one_answer(bench: Bench, desk: Desk) -> None:
    server = await serve(bench, desk.handle)
    peer = await connect(bench)
    size = 16_000_000
    await peer.send(*(frame(BIG, number, str(size).encode()) for number in range(5)))
    await eventually(lambda: server.memory.used >= size)
    assert len(desk.seen) < 4
    assert server.memory.used < 3 * size
    for number in range(5):
        assert await peer.receive() == (number, bytes(size))
    await eventually(lambda: server.memory.used == 0)


async def test_answers_are_sent_before_the_server_closes(bench: Bench, desk: Desk) -> None:
    server = await serve(bench, desk.handle)
    drained = threading.Event()

    def read_late() -> int:
        context = client_context(tls_settings())
        plain = socket.create_connection(("127.0.0.1", bench.port))
        with context.wrap_socket(plain, server_hostname="localhost") as connection:
            connection.sendall(frame(BIG, 1, b"9000000"))
            drained.wait(60)
            count = 0
            while data := connection.recv(65536):
                count += len(data)
            return count

    reading = asyncio.ensure_future(asyncio.to_thread(read_late))
    await eventually(lambda: 1 in desk.seen)
    draining = asyncio.ensure_future(server.drain(60.0))
    await asyncio.sleep(0)
    drained.set()
    assert await reading == 9_000_008
    assert await draining


async def test_plain_bytes_are_closed_unanswered(bench: Bench, desk: Desk) -> None:
    server = await serve(bench, desk.handle)
    peer = await bench.connect()
    await peer.send(frame(ECHO, 1))
    assert await peer.closed()
    await eventually(lambda: server.connections == 0)
    assert not desk.seen


async def test_tls_on_a_plain_port_is_closed_unanswered(bench: Bench, desk: Desk) -> None:
    server = await bench.serve(desk.handle)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await connect(bench)
    await eventually(lambda: server.connections == 0)


async def test_old_versions_are_refused(bench: Bench, desk: Desk) -> None:
    context = server_context(tls_settings(SERVER, versions=("TLSv1.3",)))
    await serve(bench, desk.handle, Entrance(context=lambda: context))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await connect(bench, versions=("TLSv1.2",))
    await connect(bench, versions=("TLSv1.3",))


@pytest.mark.parametrize("client_auth", ["requested", "required"])
async def test_client_certificates(bench: Bench, desk: Desk, client_auth: str) -> None:
    context = server_context(tls_settings(SERVER, client_auth=client_auth))
    principals: list[bytes | None] = []

    def principal(certificate: bytes | None) -> str:
        principals.append(certificate)
        return "User:somebody" if certificate else "User:ANONYMOUS"

    def handle(request: Request) -> list[Buffer]:
        return [struct.pack(">i", request.correlation_id), request.session.principal.encode()]

    await serve(bench, handle, Entrance(context=lambda: context, principal=principal))
    alice = AUTHORITY.vouch((NameOID.COMMON_NAME, "alice"))
    peer = await connect(bench, alice)
    await peer.send(frame(ECHO, 1))
    assert await peer.receive() == (1, b"User:somebody")
    for stranger in (None, Authority("strangers").vouch(), AUTHORITY.vouch(days=-1)):
        if stranger is None and client_auth == "requested":
            peer = await connect(bench)
            await peer.send(frame(ECHO, 1))
            assert await peer.receive() == (1, b"User:ANONYMOUS")
            continue
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            peer = await connect(bench, stranger)
            await peer.send(frame(ECHO, 1))
            await peer.receive()
    assert len([one for one in principals if one]) == 1


async def test_a_certificate_without_a_principal_is_refused(bench: Bench, desk: Desk) -> None:
    context = server_context(tls_settings(SERVER, client_auth="required"))
    await serve(bench, desk.handle, Entrance(context=lambda: context, principal=lambda _: None))
    peer = await connect(bench, AUTHORITY.vouch())
    assert await peer.closed()


async def test_a_changed_file_is_taken_up_and_connections_stay(
    bench: Bench, desk: Desk, tmp_path: Path
) -> None:
    file = tmp_path / "server.pem"
    SERVER.write(file)
    settings = tls_settings()
    by_file = TlsSettings(
        **{name: getattr(settings, name) for name in settings.__struct_fields__} | {"key_file": str(file)}
    )
    certificates = Certificates("SSL", by_file)
    await serve(bench, desk.handle, Entrance(context=certificates.current))
    before = await connect(bench)
    other = AUTHORITY.vouch((NameOID.COMMON_NAME, "other"))
    file.write_text(other.key + SERVER.certificate)  # Half of the change: they do not fit.
    certificates.look()
    assert _shown(await connect(bench)) == "localhost"
    other.write(file)
    certificates.look()
    assert _shown(await connect(bench)) == "other"
    await before.send(frame(ECHO, 7, b"still here"))
    assert await before.receive() == (7, b"still here")


async def test_those_who_say_nothing_are_closed_the_oldest_first(bench: Bench, desk: Desk) -> None:
    server = await serve(bench, desk.handle, half_open_per_host_max=3)
    silent = []
    for number in range(4):
        silent.append(await bench.connect())
        await eventually(lambda number=number: len(server.half_open) == min(number + 1, 3))  # type: ignore[misc]
    assert await silent[0].closed()
    healthy = await connect(bench)  # In place of the next oldest.
    await healthy.send(frame(ECHO, 1, b"in"))
    assert await healthy.receive() == (1, b"in")
    assert await silent[1].closed()
    assert len(server.half_open) == 2


async def test_handshakes_that_are_not_finished_are_closed_the_oldest_first(bench: Bench, desk: Desk) -> None:
    server = await serve(bench, desk.handle, handshakes_max=3)
    crowd = []
    for number in range(5):
        crowd.append(await bench.connect())
        await crowd[-1].send(first_hello())
        await eventually(lambda number=number: len(server.handshakes) == min(number + 1, 3))  # type: ignore[misc]
    for one in crowd[:2]:
        await one.closed_after_anything()
    healthy = await connect(bench)  # In place of the next oldest.
    await crowd[2].closed_after_anything()
    await healthy.send(frame(ECHO, 1, b"in"))
    assert await healthy.receive() == (1, b"in")
    await eventually(lambda: len(server.handshakes) == 2)
    crowd[3].writer.close()
    await eventually(lambda: len(server.handshakes) == 1)


async def test_each_address_begins_handshakes_in_its_turn() -> None:
    order: list[str] = []

    class Waiting:
        def __init__(self, host: str) -> None:
            self.peer_host = host

        def shake(self) -> None:
            order.append(self.peer_host)

    handshakes = Handshakes(asyncio.get_running_loop(), 10)
    for host in ("crowd",) * 20 + ("honest",):
        handshakes.add(cast(TlsTransport, Waiting(host)))
    await eventually(lambda: len(order) == 21)
    assert order[:3] == ["crowd", "honest", "crowd"]


def first_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    shaking = client_context(tls_settings(None)).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        shaking.do_handshake()
    return outgoing.read()


async def test_a_slow_handshake_is_closed(bench: Bench, desk: Desk) -> None:
    server = await serve(bench, desk.handle, half_open_timeout_ms=50)
    peer = await bench.connect()
    await peer.send(b"\x16\x03\x01\x02\x00\x01")
    assert await peer.closed()
    assert server.connections == 0


async def test_a_first_message_that_no_record_can_hold_is_not_waited_for(bench: Bench, desk: Desk) -> None:
    """It would be kept until it is complete: 64 KB of each of thousands."""
    await serve(bench, desk.handle)
    peer = await bench.connect()
    await peer.send(b"\x16\x03\x01\xff\xff" + b"x" * 100)
    assert await peer.closed()


class Records:
    """A client that says itself what goes into a record."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._streams = reader, writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = client_context(tls_settings(None))
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    async def _moved(self, call: Callable[[], Any]) -> Any:
        """Do this as soon as what it needs has come."""
        reader, writer = self._streams
        while True:
            try:
                result = call()
            except ssl.SSLWantReadError:
                result = None
            writer.write(self._outgoing.read())
            await writer.drain()
            if result is not None:
                return result
            data = await reader.read(1 << 20)
            if not data:
                raise ConnectionResetError
            self._incoming.write(data)

    async def shake(self) -> None:
        def shaken() -> bool:
            self._object.do_handshake()
            return True

        await self._moved(shaken)

    async def send(self, data: bytes, record_bytes: int) -> None:
        for at in range(0, len(data), record_bytes):
            self._object.write(data[at : at + record_bytes])
        await self._moved(lambda: True)

    async def send_in_halves(self, data: bytes, between: Callable[[], Awaitable[None]]) -> None:
        """One record."""
        self._object.write(data)
        stored = self._outgoing.read()
        half = len(stored) // 2
        for part in (stored[:half], stored[half:]):
            self._streams[1].write(part)
            await self._streams[1].drain()
            await between()

    async def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += await self._moved(lambda: self._object.read(size))
        return data


async def test_ciphertext_with_next_to_no_data_is_read_in_turns_and_then_refused(
    bench: Bench, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "WASTE_BYTES_MAX", 20_000)
    server = await serve(bench, desk.handle)
    streams = await asyncio.open_connection("127.0.0.1", bench.port)
    bench.add(Peer(*streams))
    peer = Records(*streams)
    await peer.shake()
    await eventually(lambda: len(server._connections) == 1)
    [connection] = server._connections
    transport = cast(TlsTransport, connection._transport)
    assert len(transport.get_buffer(-1)) == tls.CIPHER_BYTES_MIN

    async def ask(body: bytes, record_bytes: int) -> bytes:
        await peer.send(frame(ECHO, 1, body), record_bytes)
        return (await peer.receive(8 + len(body)))[8:]

    for _ in range(20):
        assert await ask(bytes(1_000_000), tls.RECORD_BYTES) == bytes(1_000_000)
    assert len(transport.get_buffer(-1)) == tls.CIPHER_BYTES
    weighed: list[tuple[int, int]] = []
    weigh = TlsTransport._weigh

    def noted(one: TlsTransport, taken: int, received: int) -> None:
        weigh(one, taken, received)
        weighed.append((taken, received))

    body = bytes(tls.RECORD_BYTES - 100)
    sent = 0

    async def read() -> None:
        nonlocal sent
        sent += 1
        await eventually(lambda: len(weighed) == sent)

    with monkeypatch.context() as patched:
        patched.setattr(TlsTransport, "_weigh", noted)
        await peer.send_in_halves(frame(ECHO, 1, body), read)
    assert weighed[0][1] == 0
    assert (await peer.receive(8 + len(body)))[8:] == body
    assert len(transport.get_buffer(-1)) == tls.CIPHER_BYTES, "a read may end within a record"
    for _ in range(5):
        # 2,000 records of 23 bytes are no reason to part, if requests of a usual shape are between.
        assert await ask(bytes(2_000), 1) == bytes(2_000)
        assert len(transport.get_buffer(-1)) == tls.CIPHER_BYTES_MIN
        for _ in range(100):
            assert await ask(bytes(20), 20) == bytes(20)
    with pytest.raises(ConnectionError):
        await ask(bytes(10_000), 1)


async def test_what_is_no_handshake_is_refused(bench: Bench, desk: Desk) -> None:
    server = await serve(bench, desk.handle)
    for garbage in (
        b"\x16\x03\x01\x00\x05hello",
        b"\x16" + bytes(200),
        b"\x16\x03\x01\xff\xff" + bytes(70_000),
    ):
        peer = await bench.connect()
        await peer.send(garbage)
        await peer.closed_after_anything()
    await eventually(lambda: server.connections == 0)
    assert not desk.seen


def test_keys_that_cannot_be_used_are_told_without_their_contents(tmp_path: Path) -> None:
    other = AUTHORITY.vouch()
    locked = Certified(SERVER.encrypted("right"), SERVER.certificate)
    for own, password, words in (
        (Certified(other.key, SERVER.certificate), None, "do not belong together"),
        (Certified(SERVER.key, AUTHORITY.certificate + SERVER.certificate), None, "the first certificate is"),
        (AUTHORITY.vouch(rsa_bits=1024), None, "cannot be used: ee key too small"),
        (Certified(AUTHORITY.vouch(rsa_bits=2048).key, SERVER.certificate), None, "do not belong together"),
        (locked, None, "encrypted"),
        (locked, "wrong", "encrypted"),
        (locked, "long" * 1000, "more than 1024 bytes"),
        (Certified("nonsense", SERVER.certificate), None, "cannot be used"),
    ):
        settings = tls_settings(own)
        fields = {name: getattr(settings, name) for name in settings.__struct_fields__}
        with pytest.raises(TlsError, match=words) as problem:
            server_context(TlsSettings(**fields | {"key_password": password}))
        assert own.key[40:80] not in str(problem.value) or len(own.key) < 40
    settings = tls_settings(locked)
    fields = {name: getattr(settings, name) for name in settings.__struct_fields__}
    server_context(TlsSettings(**fields | {"key_password": "right"}))
    store = tmp_path / "store.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    with pytest.raises(TlsError, match="key store of Java"):
        server_context(TlsSettings(**fields | {"key_pem": None, "key_file": str(store)}))


def test_pem_may_stand_on_one_line() -> None:
    own = Certified(" ".join(SERVER.key.split("\n")), " ".join(SERVER.certificate.split("\n")))
    server_context(tls_settings(own))


def _shown(peer: Peer) -> str:
    certificate = peer.writer.get_extra_info("peercert")
    return str(dict(part[0] for part in certificate["subject"])["commonName"])
