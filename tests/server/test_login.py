"""The SASL conversation of a connection, with the exchanges of the room `security` behind it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from penstock.security.sasl.exchange import Done, Exchange, Step
from penstock.security.sasl.plain import Plain
from penstock.server.entrance import Entrance
from penstock.server.limits import Limits
from penstock.server.login import Logins
from penstock.server.server import Server
from penstock.testing.waiting import eventually
from penstock.wire.api.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.api.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.wire.asking import Question, sized
from penstock.wire.buffers import Buffer
from penstock.wire.errors import ErrorCode
from penstock.wire.exchange import Request
from penstock.wire.schema import ApiMessage
from tests.server.conftest import ECHO, Bench, Peer, frame

RIGHT = b"\0alice\0secret"
WRONG = b"\0alice\0guess"
VERSIONS = 18


def handle(request: Request) -> list[Buffer]:
    """Everything that gets through is answered with who asks."""
    return [struct.pack(">i", request.correlation_id), request.session.principal.encode()]


def plain(_mechanism: str) -> Exchange:
    return Plain({"alice": "secret", "bob": "secret"}.get)


async def serve(
    bench: Bench,
    *,
    reauth_ms: int = 0,
    exchange: Callable[[str], Exchange] = plain,
    mechanisms: tuple[str, ...] = ("PLAIN",),
    failure_delay_ms: int = 1,
    stands: Callable[[tuple[str, str]], bool] = lambda _: True,
    **limits: Any,
) -> Server:
    logins = Logins(
        mechanisms,
        exchange,
        lambda: 0,
        reauth_ms=dict.fromkeys(mechanisms, reauth_ms),
        frame_bytes_max=10_000,
        failure_delay_ms=failure_delay_ms,
        stands=stands,
    )
    server = Server(handle, Limits(**limits))
    bench.port = server.bind("SASL_PLAINTEXT", "127.0.0.1", 0, Entrance(logins=logins)).port
    await server.start()
    bench.serves(server)
    return server


async def ask(peer: Peer, request: ApiMessage, response: type[ApiMessage], version: int) -> object:
    question: Question[ApiMessage] = Question(request, response, version, 1, "tests")
    await peer.send(sized(question.frame))
    (size,) = struct.unpack(">i", await peer.reader.readexactly(4))
    return question.read(memoryview(await peer.reader.readexactly(size)))


async def shake(peer: Peer, mechanism: str = "PLAIN", version: int = 1) -> SaslHandshakeResponse:
    answer = await ask(peer, SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse, version)
    assert isinstance(answer, SaslHandshakeResponse)
    return answer


async def give(peer: Peer, token: bytes, version: int = 2) -> SaslAuthenticateResponse:
    answer = await ask(peer, SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse, version)
    assert isinstance(answer, SaslAuthenticateResponse)
    return answer


async def who(peer: Peer) -> bytes:
    await peer.send(frame(ECHO, 5))
    return (await peer.receive())[1]


async def test_who_logged_in_is_known_to_the_handlers(bench: Bench) -> None:
    server = await serve(bench)
    peer = await bench.connect()
    await peer.send(frame(VERSIONS, 1))
    assert await peer.receive() == (1, b"User:ANONYMOUS")
    shaken = await shake(peer)
    assert (shaken.error_code, shaken.mechanisms) == (0, ["PLAIN"])
    assert len(server.half_open) == 1
    answer = await give(peer, RIGHT)
    assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
    assert await who(peer) == b"User:alice"
    assert len(server.half_open) == 0


@pytest.mark.parametrize("key", [ECHO, 0, 1, 36, 999])
async def test_before_the_login_anything_else_closes(bench: Bench, key: int) -> None:
    await serve(bench)
    peer = await bench.connect()
    await peer.send(frame(key, 1))
    assert await peer.closed()


@pytest.mark.parametrize("version", [-1, 2, 32767, -32768])
async def test_unknown_versions_of_a_login_close(
    bench: Bench, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    await serve(bench)
    peer = await bench.connect()
    message = struct.pack(">hhih", 17, version, 1, -1) + b"\0\5PLAIN"
    await peer.send(sized(message))
    assert await peer.closed()
    assert not [one for one in caplog.records if one.exc_info]


async def test_versions_are_told_once(bench: Bench) -> None:
    await serve(bench)
    peer = await bench.connect()
    await peer.send(frame(VERSIONS, 1))
    await peer.receive()
    await peer.send(frame(VERSIONS, 2))
    assert await peer.closed()


async def test_bare_tokens_after_handshake_0(bench: Bench) -> None:
    await serve(bench)
    peer = await bench.connect()
    assert (await shake(peer, version=0)).error_code == 0
    await peer.send(sized(RIGHT))
    assert await peer.reader.readexactly(4) == bytes(4)
    assert await who(peer) == b"User:alice"
    failing = await bench.connect()
    await shake(failing, version=0)
    await failing.send(sized(WRONG))
    assert await failing.closed()


async def test_a_wrong_password_and_a_wrong_user_are_told_the_same(bench: Bench) -> None:
    await serve(bench)
    answers = []
    for token in (WRONG, b"\0nobody\0guess"):
        peer = await bench.connect()
        await shake(peer)
        answers.append(await give(peer, token))
        assert await peer.closed()
    assert answers[0] == answers[1]
    assert answers[0].error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize("version", [0, 1])
async def test_the_log_says_which_client_was_refused(
    bench: Bench, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Bare tokens after handshake 0 do not name it."""
    await serve(bench)
    peer = await bench.connect()
    await shake(peer, version=version)
    if version:
        await give(peer, WRONG)
    else:
        await peer.send(sized(WRONG))
    assert await peer.closed()
    (line,) = [one.getMessage() for one in caplog.records if "refused a login" in one.getMessage()]
    assert "mechanism='PLAIN' client='tests' peer=127.0.0.1" in line and "guess" not in line


async def test_no_stranger_fills_the_log(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """With a name as long as a token may be."""
    await serve(bench)
    peer = await bench.connect()
    await shake(peer)
    await give(peer, b"\0" + "\x80".encode() * 4_500 + b"\0guess")
    (line,) = [one.getMessage() for one in caplog.records if "refused a login" in one.getMessage()]
    assert "wrong user or password, user='\\x80" in line and len(line) < 600


async def test_a_mechanism_that_is_not_offered(bench: Bench) -> None:
    await serve(bench)
    peer = await bench.connect()
    answer = await shake(peer, "GSSAPI")
    assert (answer.error_code, answer.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["PLAIN"])
    assert await peer.closed()


async def test_a_token_that_is_too_long_is_not_read(bench: Bench) -> None:
    await serve(bench)
    peer = await bench.connect()
    await shake(peer)
    await peer.send(struct.pack(">i", 10_001))
    assert await peer.closed()


async def test_a_login_again_and_its_end(bench: Bench) -> None:
    await serve(bench, reauth_ms=1200)
    peer = await bench.connect()
    await shake(peer)
    assert (await give(peer, RIGHT)).session_lifetime_ms == 1200
    assert (await shake(peer)).error_code == 0
    assert (await give(peer, RIGHT)).session_lifetime_ms == 1200
    assert await who(peer) == b"User:alice"
    await peer.send(frame(17, 9, b"\0\5PLAIN"))
    assert (await peer.receive())[1] == b"User:alice"  # Too soon: the handlers refuse it.

    another = await bench.connect()
    await shake(another)
    await give(another, RIGHT)
    await shake(another)
    refused = await give(another, b"\0bob\0secret")
    assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert await another.closed()


async def test_after_its_end_a_login_serves_nobody(bench: Bench) -> None:
    await serve(bench, reauth_ms=30)
    peer = await bench.connect()
    await shake(peer)
    await give(peer, RIGHT)
    served = 0

    async def asked() -> bool:
        nonlocal served
        await peer.send(frame(ECHO, served))
        head = await peer.reader.read(4)
        if head:
            await peer.reader.readexactly(struct.unpack(">i", head)[0])
            served += 1
        return not head

    while not await asked():
        pass
    late = await bench.connect()
    await shake(late)
    await give(late, RIGHT)
    assert await who(late) == b"User:alice"


async def test_another_mechanism_the_second_time_fails(bench: Bench) -> None:
    await serve(bench, reauth_ms=60_000, mechanisms=("PLAIN", "OAUTHBEARER"))
    peer = await bench.connect()
    await shake(peer)
    await give(peer, RIGHT)
    assert (await shake(peer, "OAUTHBEARER")).error_code == 0
    assert (await give(peer, RIGHT)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert await peer.closed()


async def test_who_does_not_log_in_is_closed(bench: Bench) -> None:
    # Long enough for the other one to log in, on a busy machine too.
    server = await serve(bench, half_open_timeout_ms=1500)
    idle = await bench.connect()
    busy = await bench.connect()
    await shake(busy)
    await give(busy, RIGHT)
    assert await idle.closed()
    assert await who(busy) == b"User:alice"
    assert server.connections == 1


def test_failures_of_an_address_wait_longer_and_longer() -> None:
    logins = Logins(("PLAIN",), plain, lambda: 0, failure_delay_ms=100)
    delays = [logins.failed("10.0.0.1", 1.0, 10) for _ in range(1000)]
    assert delays[0] == delays[9] == 0.1
    assert delays[19] == pytest.approx(0.2)
    assert delays[-1] == 5.0
    assert logins.failed("10.0.0.2", 1.0, 10) == 0.1
    assert logins.failed("10.0.0.1", 20.0, 10) == 0.1


async def test_a_failure_is_answered_late_and_others_meanwhile(bench: Bench) -> None:
    server = await serve(bench, failure_delay_ms=60_000)
    failing = await bench.connect()
    await shake(failing)
    question = Question(SaslAuthenticateRequest(auth_bytes=WRONG), SaslAuthenticateResponse, 2, 1, "tests")
    await failing.send(sized(question.frame))
    peer = await bench.connect()
    await shake(peer)
    await give(peer, RIGHT)
    assert await who(peer) == b"User:alice"
    assert server.connections == 2
    failing.reset()
    await eventually(lambda: server.connections == 1)


class Lent(Plain):
    """A login by something that can be taken away."""

    def respond(self, token: bytes, now_ms: int) -> Step:
        step = super().respond(token, now_ms)
        return step._replace(basis=("KEY", step.principal)) if isinstance(step, Done) else step


async def test_a_login_ends_with_what_it_was_judged_by(bench: Bench) -> None:
    gone: set[str] = set()
    server = await serve(
        bench,
        exchange=lambda _: Lent({"alice": "secret", "bob": "secret"}.get),
        stands=lambda basis: basis[1] not in gone,
    )
    alice, bob, late = [await bench.connect() for _ in range(3)]
    for peer, token in ((alice, RIGHT), (bob, b"\0bob\0secret")):
        await shake(peer)
        assert (await give(peer, token)).error_code == 0
    server.review_logins()
    assert await who(alice) == b"User:alice"
    await shake(late)
    gone.add("User:alice")
    server.review_logins()
    assert await alice.reader.read() == b"", "it is closed"
    assert await who(bob) == b"User:bob"
    answer = await give(late, RIGHT)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED, "half a login does not outlive it"
