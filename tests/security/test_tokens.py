"""JSON web tokens: forged, unsigned, foreign, expired, and right; and the messages that bring them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from penstock.security.sasl.exchange import Challenge, Done, Failed
from penstock.security.sasl.oauthbearer import BearerRefused, BearerToken, OAuthBearer
from penstock.security.tokens import BadKeySetError, Expected, KeySet, UnknownKey, validate

NOW = 1_800_000_000_000
SECONDS = NOW // 1000
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
PEM = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
EXPECTED = Expected(issuer="https://issuer", audiences=("penstock",))


def rsa_entry(key: rsa.RSAPrivateKey, **more: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    return {**found, **more}


def ec_entry(**more: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(EC.public_key()))
    return {**found, **more}


SYMMETRIC = {"kty": "oct", "k": "AAAA", "kid": "s"}
KEYS = KeySet({"keys": [rsa_entry(RSA, kid="one"), ec_entry(kid="two"), SYMMETRIC]})
CLAIMS = {
    "sub": "alice",
    "iss": "https://issuer",
    "aud": ["others", "penstock"],
    "iat": SECONDS - 10,
    "exp": SECONDS + 600,
}


def made(key: Any = RSA, alg: str = "RS256", kid: str | None = "one", **claims: Any) -> str:
    body = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return jwt.encode(body, key, algorithm=alg, headers={"kid": kid} if kid else None)


def part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


@pytest.mark.parametrize("token", [made(), made(EC, "ES256", "two"), made(aud="penstock"), made(alg="PS512")])
def test_a_right_token(token: str) -> None:
    assert validate(token, KEYS, EXPECTED, NOW) == BearerToken("alice", (SECONDS + 600) * 1000)


def changed() -> str:
    (head, _, signature), (_, claims, _) = made().split("."), made(sub="root").split(".")
    return ".".join((head, claims, signature))


def hmac_with_the_public_key() -> str:
    """The public key of the issuer as the secret of an HMAC. The library refuses to make one, so by hand."""
    text = part({"alg": "HS256", "kid": "one"}) + "." + part(CLAIMS)
    mac = hmac.digest(PEM, text.encode(), hashlib.sha256)
    return text + "." + base64.urlsafe_b64encode(mac).rstrip(b"=").decode()


WRONG = {
    "unsigned": part({"alg": "none", "kid": "one"}) + "." + part(CLAIMS) + ".",
    "unsigned with a signature": part({"alg": "None"}) + "." + part(CLAIMS) + ".AAAA",
    "a list of algorithms": part({"alg": ["RS256"], "kid": "one"}) + "." + part(CLAIMS) + ".AAAA",
    "an object for an algorithm": part({"alg": {}, "kid": "one"}) + "." + part(CLAIMS) + ".AAAA",
    "hmac": hmac_with_the_public_key(),
    "forged": made(OTHER),
    "changed": changed(),
    "unknown kid": made(kid="nine"),
    "symmetric key of the set": made("A" * 32, "HS256", "s"),
    "no kid beside several keys": made(kid=None),
    "expired": made(exp=SECONDS - 31),
    "from the future": made(iat=SECONDS + 31),
    "not yet": made(nbf=SECONDS + 31),
    "no exp": made(exp=None),
    "no iat": made(iat=None),
    "exp before iat": made(exp=SECONDS - 20),
    "exp is text": made(exp="never"),
    "exp is true": part({"alg": "RS256", "kid": "one"}) + ".e30.AAAA",
    "another issuer": made(iss="https://other"),
    "no issuer": made(iss=None),
    "another audience": made(aud="other"),
    "no audience": made(aud=None),
    "nobody": made(sub=None),
    "blank": made(sub=" "),
    "kind of key": made(EC, "ES256", "one"),
    "not a token": "abc",
    "empty": "..",
    "large": "a" * 70_000,
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_token(name: str) -> None:
    found = validate(WRONG[name], KEYS, EXPECTED, NOW)
    assert isinstance(found, BearerRefused), found
    assert "alice" not in found.reason
    assert isinstance(found, UnknownKey) == (name in ("unknown kid", "no kid beside several keys"))


def test_clocks_may_differ_by_the_skew() -> None:
    for token in (
        made(exp=SECONDS - 9),
        made(exp=SECONDS - 29, iat=SECONDS - 60),
        made(iat=SECONDS + 29),
        made(nbf=SECONDS + 29),
    ):
        assert isinstance(validate(token, KEYS, EXPECTED, NOW), BearerToken)


def test_one_key_needs_no_name() -> None:
    keys = KeySet({"keys": [rsa_entry(RSA)]})
    assert isinstance(validate(made(kid=None), keys, EXPECTED, NOW), BearerToken)
    assert isinstance(validate(made(kid="one"), keys, EXPECTED, NOW), UnknownKey)


def test_a_key_signs_with_the_algorithm_that_it_names() -> None:
    keys = KeySet({"keys": [rsa_entry(RSA, kid="one", alg="RS512")]})
    assert isinstance(validate(made(), keys, EXPECTED, NOW), BearerRefused)
    assert isinstance(validate(made(alg="RS512"), keys, EXPECTED, NOW), BearerToken)
    fewer = Expected(algorithms=frozenset(("ES256",)))
    assert isinstance(validate(made(alg="RS512"), keys, fewer, NOW), BearerRefused)


def test_a_key_that_signs_nothing_is_passed_over() -> None:
    """The issuer's other keys are good."""
    for alg in ("none", "HS256", "RSA-OAEP"):
        keys = KeySet({"keys": [rsa_entry(OTHER, kid="two", alg=alg), rsa_entry(RSA, kid="one")]})
        assert isinstance(validate(made(), keys, EXPECTED, NOW), BearerToken)
        assert isinstance(validate(made(OTHER, kid="two"), keys, EXPECTED, NOW), UnknownKey)


def test_a_short_key_is_passed_over() -> None:
    short = rsa_entry(rsa.generate_private_key(65537, 1024), kid="two")
    keys = KeySet({"keys": [short, rsa_entry(RSA, kid="one")]})
    assert keys.find("two") is None and isinstance(validate(made(), keys, EXPECTED, NOW), BearerToken)
    with pytest.raises(BadKeySetError):
        KeySet({"keys": [short]})


def test_a_token_for_somebody_else_opens_nothing_where_no_audience_is_expected() -> None:
    """One issuer makes tokens for many services."""
    anybody = EXPECTED._replace(audiences=())
    for audience in ("billing", ["billing", "penstock"], [], {"a": 1}):
        found = validate(made(aud=audience), KEYS, anybody, NOW)
        assert isinstance(found, BearerRefused) and found.reason == "another audience"
    assert isinstance(validate(made(aud=None), KEYS, anybody, NOW), BearerToken)


def test_another_claim_names_the_user() -> None:
    token = made(sub=None, client="app")
    assert validate(token, KEYS, EXPECTED._replace(subject_claim="client"), NOW) == BearerToken(
        "app", (SECONDS + 600) * 1000
    )


@pytest.mark.parametrize(
    ("claim", "name"),
    [
        (" alice ", "alice"),
        ("\talice\x01\n", "alice"),
        ("\u00a0alice", "\u00a0alice"),
        ("al ice", "al ice"),
        (" \n", None),
        ("\ud800", None),
        ("alice\udfff", None),
    ],
)
def test_a_name_is_what_kafka_takes_it_for(claim: str, name: str | None) -> None:
    """A rule that denies somebody holds for a token with a space after the name, too."""
    found = validate(made(sub=claim), KEYS, EXPECTED, NOW)
    if name is None:
        assert found == BearerRefused("claim sub names nobody")
    else:
        assert found == BearerToken(name, (SECONDS + 600) * 1000)


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"keys": []},
        {"keys": {}},
        {"keys": [SYMMETRIC]},
        {"keys": [1, {"kty": "RSA"}]},
    ],
)
def test_what_is_no_key_set(document: Any) -> None:
    with pytest.raises(BadKeySetError):
        KeySet(document)


# -- messages --------------------------------------------------------------------------------------------


def exchange() -> OAuthBearer:
    return OAuthBearer(lambda token, now_ms: validate(token, KEYS, EXPECTED, now_ms))


def message(token: str, header: str = "n,,", rest: str = "") -> bytes:
    return f"{header}\1auth=Bearer {token}\1{rest}\1".encode()


@pytest.mark.parametrize("sent", [message(made()), message(made(), "n,a=alice,", "traceId=1\1x=a b\1")])
def test_the_message_of_a_right_token(sent: bytes) -> None:
    assert exchange().respond(sent, NOW) == Done("User:alice", 600_000, b"")


def test_a_refused_token_is_challenged_and_fails() -> None:
    one = exchange()
    step = one.respond(message(made(OTHER)), NOW)
    assert step == Challenge(b'{"status":"invalid_token"}')
    failed = one.respond(b"\1", NOW)
    assert isinstance(failed, Failed)
    assert isinstance(one.respond(message(made()), NOW), Failed), "it does not begin again"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\xff",
        message(made(), "y,,"),
        message(made(), "n,"),
        message(made(), "n,b=x,"),
        message(made())[:-1],
        message(""),
        message(made()).replace(b"Bearer", b"Basic"),
        message(made(), rest="auth=Bearer x\1"),
        message(made(), rest="1=2\1"),
        message(made(), rest="traceId\1"),
        message(made(), "n,a=bob,"),
    ],
)
def test_other_messages_fail(sent: bytes) -> None:
    assert isinstance(exchange().respond(sent, NOW), Failed)
