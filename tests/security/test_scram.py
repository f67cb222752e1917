"""SCRAM against an independent implementation, and against clients that cheat."""

from __future__ import annotations

import hashlib
from base64 import b64encode

import pytest
from scramp import ScramClient
from scramp.core import ScramException

from penstock.metadata.access import ScramCredential
from penstock.security.credentials import (
    BY_NAME,
    Mechanism,
    decoy,
    derived,
    from_salted_password,
    proves,
)
from penstock.security.sasl.exchange import Challenge, Done, Exchange, Failed
from penstock.security.sasl.plain import Plain
from penstock.security.sasl.scram import Scram, TokenLogin

SALT = bytes(range(16))
NONCE = "ours3rfcNHYJY1ZVvWVs7j"
SECRET = b"of the cluster"
NOW = 1_000_000
WRONG = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
)


def users(mechanism: Mechanism, **passwords: str) -> dict[str, ScramCredential]:
    return {name: derived(mechanism, password, SALT) for name, password in passwords.items()}


def server(mechanism: Mechanism = Mechanism.SCRAM_SHA_256, **passwords: str) -> Scram:
    return Scram(mechanism, NONCE, users(mechanism, **passwords).get, SECRET)


def challenged(exchange: Exchange, first: str) -> str:
    step = exchange.respond(first.encode(), NOW)
    assert isinstance(step, Challenge)
    return step.token.decode()


def log_in(exchange: Scram, mechanism: str, user: str, password: str) -> Done | Failed:
    client = ScramClient([mechanism], user, password)
    client.set_server_first(challenged(exchange, client.get_client_first()))
    step = exchange.respond(client.get_client_final().encode(), NOW)
    if isinstance(step, Done):
        client.set_server_final(step.token.decode())
    assert not isinstance(step, Challenge)
    return step


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("user", ["alice", "Ålesund, 3=4"])
def test_an_independent_client_logs_in(mechanism: str, user: str) -> None:
    exchange = Scram(
        BY_NAME[mechanism], NONCE, {user: derived(BY_NAME[mechanism], "pencil", SALT, 8192)}.get, SECRET
    )
    done = log_in(exchange, mechanism, user, "pencil")
    assert isinstance(done, Done)
    assert (done.principal, done.lifetime_ms, done.by_token) == ("User:" + user, None, False)
    assert isinstance(exchange.respond(b"once more", NOW), Failed)


def test_the_example_of_rfc_7677() -> None:
    salt = b"[m\x99h\x9d\x125\x8e\xec\xa0K\x14\x126\xfa\x81"
    credential = derived(Mechanism.SCRAM_SHA_256, "pencil", salt, 4096)
    exchange = Scram(
        Mechanism.SCRAM_SHA_256, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", {"user": credential}.get, SECRET
    )
    first = challenged(exchange, "n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert exchange.respond(final, NOW) == Done(
        "User:user",
        None,
        b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        basis=("SCRAM-SHA-256", "user"),
    )


def test_an_unknown_user_is_told_what_a_wrong_password_is_told() -> None:
    wrong = log_in(server(alice="pencil"), "SCRAM-SHA-256", "alice", "pen")
    unknown = log_in(server(alice="pencil"), "SCRAM-SHA-256", "mallory", "pencil")
    assert isinstance(wrong, Failed)
    assert isinstance(unknown, Failed)
    assert wrong.message == unknown.message == WRONG
    assert "pencil" not in unknown.reason
    assert "pen" not in wrong.reason


def test_an_unknown_user_looks_the_same_each_time_as_a_real_one_would() -> None:
    firsts = {challenged(server(), "n,,n=mallory,r=abc") for _ in range(2)}
    assert len(firsts) == 1
    assert challenged(server(), "n,,n=eve,r=abc") not in firsts
    assert challenged(server(alice="x"), "n,,n=alice,r=abc").endswith(",i=4096")
    assert firsts.pop().endswith(",i=4096")


def test_no_password_fits_a_decoy() -> None:
    fake = decoy(Mechanism.SCRAM_SHA_512, "mallory", SECRET)
    assert not proves(Mechanism.SCRAM_SHA_512, fake, b"message", bytes(64))
    exchange = Scram(Mechanism.SCRAM_SHA_256, NONCE, lambda _: None, SECRET)
    assert isinstance(log_in(exchange, "SCRAM-SHA-256", "mallory", ""), Failed)


def test_the_final_nonce_must_be_ours() -> None:
    """As in CVE-2024-56128: a proof that fits a nonce of the client's choice."""
    exchange = server(alice="pencil")
    client = ScramClient(["SCRAM-SHA-256"], "alice", "pencil")
    first = challenged(exchange, client.get_client_first())
    client.set_server_first(first.replace(NONCE, "theirs"))
    step = exchange.respond(client.get_client_final().encode(), NOW)
    assert step == Failed(WRONG, "a nonce that is not ours")


FINAL = f"r=abc{NONCE},p={b64encode(bytes(32)).decode()}"


@pytest.mark.parametrize(
    ("first", "final"),
    [
        ("y,,n=alice,r=abc", None),
        ("p=tls-unique,,n=alice,r=abc", None),
        ("n,x=1,n=alice,r=abc", None),
        ("n,,m=1,n=alice,r=abc", None),
        ("n,,n=,r=abc", None),
        ("n,,n=alice", None),
        ("n,,n=al=ice,r=abc", None),
        ("n,,n=alice,r=", None),
        ("n,,n=alice,r=a b", None),
        ("n,,n=alice,r=abc,tokenauth", None),
        ("n,,n=" + "x" * 5000 + ",r=abc", None),
        ("", None),
        ("n,,n=alice,r=abc", "c=biws"),
        ("n,,n=alice,r=abc", f"c=eSws,{FINAL}"),
        ("n,,n=alice,r=abc", f"c=bi ws,{FINAL}"),
        ("n,a=alice,n=alice,r=abc", f"c=biws,{FINAL}"),
        ("n,,n=alice,r=abc", f"c=biws,r=abc{NONCE},p=!"),
        ("n,,n=alice,r=abc", f"c=biws,r=abc{NONCE},p="),
        ("n,,n=alice,r=abc", "c=biws,r=abc,p=AAAA"),
        ("n,,n=alice,r=abc", f"c=biws,{FINAL}"),
    ],
)
def test_what_is_not_scram_fails(first: str, final: str | None) -> None:
    exchange = server(alice="pencil")
    step = exchange.respond(first.encode(), NOW)
    if final is not None:
        assert isinstance(step, Challenge)
        step = exchange.respond(final.encode(), NOW)
    assert isinstance(step, Failed)
    assert step.message == WRONG
    assert isinstance(exchange.respond(b"n,,n=alice,r=abc", NOW), Failed), "it does not begin again"


def test_nobody_poses_as_somebody_else() -> None:
    step = server(alice="pencil").respond(b"n,a=bob,n=alice,r=abc", NOW)
    assert isinstance(step, Failed)
    assert step.message.startswith("Authentication failed: Client requested an authorization id")


def test_a_delegation_token_speaks_for_its_owner_until_it_expires() -> None:
    credential = derived(Mechanism.SCRAM_SHA_256, "aG1hYw==", SALT)
    tokens = {"tOkEn": TokenLogin(credential, "User:alice", NOW + 5000)}

    def exchange() -> Scram:
        return Scram(Mechanism.SCRAM_SHA_256, NONCE, {"tOkEn": credential}.get, SECRET, tokens.get)

    def attempt(now: int) -> Done | Failed | Challenge:
        one = exchange()
        client = ScramClient(["SCRAM-SHA-256"], "tOkEn", "aG1hYw==")
        first = client.get_client_first() + ",tokenauth=true"
        client.client_first_bare += ",tokenauth=true"
        step = one.respond(first.encode(), now)
        assert isinstance(step, Challenge)
        client.set_server_first(step.token.decode())
        return one.respond(client.get_client_final().encode(), now)

    done = attempt(NOW)
    assert isinstance(done, Done)
    assert (done.principal, done.lifetime_ms, done.by_token) == ("User:alice", 5000, True)
    assert isinstance(attempt(NOW + 5000), Failed)
    by_name = log_in(exchange(), "SCRAM-SHA-256", "tOkEn", "aG1hYw==")
    assert isinstance(by_name, Done)
    assert by_name.principal == "User:tOkEn", "without the extension it is a user's name"


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    exchange = server(alice="pencil")
    client = ScramClient(["SCRAM-SHA-256"], "alice", "pencil")
    client.set_server_first(challenged(exchange, client.get_client_first()))
    client.get_client_final()
    with pytest.raises(ScramException):
        client.set_server_final("v=" + b64encode(bytes(32)).decode())


def test_a_salted_password_gives_the_same_keys() -> None:
    salted = hashlib.pbkdf2_hmac("sha512", b"pencil", SALT, 4096)
    made = from_salted_password(Mechanism.SCRAM_SHA_512, salted, SALT, 4096)
    assert made == derived(Mechanism.SCRAM_SHA_512, "pencil", SALT)
    assert repr(made) == "ScramCredential(iterations=4096)"


# -- PLAIN -----------------------------------------------------------------------------------------------

INVALID = "Authentication failed: Invalid username or password"


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (b"\0alice\0pen", INVALID),
        (b"\0mallory\0pencil", INVALID),
        (b"\0mallory\0\xc3\xa9", INVALID),
        (b"bob\0alice\0pencil", "Authentication failed: Client requested an authorization id"),
        (b"alice\0pencil", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0alice\0pencil\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0pencil", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"\0\xff\0x", "Invalid SASL/PLAIN response: not UTF-8"),
    ],
)
def test_plain_refuses(token: bytes, message: str) -> None:
    step = Plain({"alice": "pencil"}.get).respond(token, NOW)
    assert isinstance(step, Failed)
    assert step.message.startswith(message)
    assert "pencil" not in step.reason


@pytest.mark.parametrize("token", [b"\0alice\0pencil", b"alice\0alice\0pencil"])
def test_plain_lets_in(token: bytes) -> None:
    exchange = Plain({"alice": "pencil"}.get)
    assert exchange.respond(token, NOW) == Done("User:alice", None, b"")
    assert isinstance(exchange.respond(token, NOW), Failed)


@pytest.mark.parametrize("now", [None, "changed"])
def test_a_password_that_changes_between_two_messages_opens_nothing(now: str | None) -> None:
    """Who knows the old one could wait for the change with half a login."""
    users = {"alice": derived(Mechanism.SCRAM_SHA_256, "pencil", SALT, 4096)}

    def credential_of(user: str) -> ScramCredential | None:
        found = users.get(user)
        if now is None:
            users.pop(user, None)
        else:
            users[user] = derived(Mechanism.SCRAM_SHA_256, now, SALT, 4096)
        return found

    exchange = Scram(Mechanism.SCRAM_SHA_256, NONCE, credential_of, SECRET)
    refused = log_in(exchange, "SCRAM-SHA-256", "alice", "pencil")
    assert isinstance(refused, Failed)
    assert refused.message == WRONG
