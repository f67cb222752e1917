"""JSON web tokens: who a bearer token speaks for, judged by keys that are handed in.

A token is accepted only if all of this holds:

- its signature was made by a key of the key set, found by `kid`. A token without `kid` is accepted only if
  the set has one key;
- its algorithm is on the allow-list, which holds public-key algorithms only: never `none`, and never an HMAC,
  whose key would be a public one (CVE-2026-33557 and its like);
- it has `exp` and `iat`, and is neither expired nor from the future, beyond the allowed skew of clocks;
- its issuer is the one that is expected, where the settings name one;
- its audience is one of those that are expected. A token that names an audience is for that one: where the
  settings name none, it is for somebody else, and only a token without an audience is accepted (RFC 7519,
  4.1.3, and so does Kafka);
- it names somebody (`sub`, or the claim of `sasl.oauthbearer.sub.claim.name`).

The key set is fetched elsewhere: this room reads no network and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from penstock.security.sasl.oauthbearer import BearerRefused, BearerToken

ALGORITHMS: Final = frozenset(
    ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
)
"""What a key may sign with. A setting may allow fewer of them, never others."""
KEYS_MAX: Final = 256
"""Issuers publish a handful of keys. A longer set is no key set."""
RSA_BITS_MIN: Final = 2048
"""RFC 7518 asks for so many, and who can factor a shorter key can make tokens for anybody."""
TOKEN_BYTES_MAX: Final = 64 * 1024
"""A token is decoded before its signature is known to be right."""
_TIME_MAX: Final = 2**53
"""A time beyond it is no time."""
_TRIMMED: Final = "".join(map(chr, range(0x21)))
"""What Java's `trim` takes off: spaces and control characters, of ASCII's alone."""

_FAMILIES: Final = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}


class BadKeySetError(Exception):
    """What was fetched is not a key set. One sentence for a person."""


class UnknownKey(BearerRefused):
    """No key of the set has the token's `kid`: a newer set may have it."""


class Expected(NamedTuple):
    """What the settings say about tokens."""

    issuer: str | None = None
    audiences: tuple[str, ...] = ()
    skew_ms: int = 30_000
    subject_claim: str = "sub"
    scope_claim: str = "scope"
    algorithms: frozenset[str] = ALGORITHMS


class Key(NamedTuple):
    """A public key, and what its entry in the key set says about it."""

    id: str | None
    kind: str
    algorithm: str | None
    """The one that it was made for; None: any of its kind."""
    public: Any

    def fits(self, algorithm: str) -> bool:
        if self.algorithm is not None:
            return algorithm == self.algorithm
        return algorithm in _FAMILIES[self.kind]


class KeySet:
    """The keys of an issuer, by their ids. `document` is the parsed JSON of a JWKS."""

    __slots__ = ("_keys", "_only")

    def __init__(self, document: Any) -> None:
        entries = document.get("keys") if isinstance(document, Mapping) else None
        if not isinstance(entries, list) or not entries or len(entries) > KEYS_MAX:
            raise BadKeySetError(f"a key set is an object with 1 to {KEYS_MAX} keys")
        self._keys: dict[str, Key] = {}
        unnamed: list[Key] = []
        for entry in entries:
            key = _public_key(entry)
            if key is None:
                continue
            if key.id is not None:
                self._keys[key.id] = key
            else:
                unnamed.append(key)
        usable = [*self._keys.values(), *unnamed]
        if not usable:
            raise BadKeySetError("the key set has no key that can check the signature of a token")
        self._only = usable[0] if len(usable) == 1 else None

    def find(self, kid: object) -> Key | None:
        if kid is None:
            return self._only
        return self._keys.get(kid) if isinstance(kid, str) else None


def validate(token: str, keys: KeySet, expected: Expected, now_ms: int) -> BearerToken | BearerRefused:
    """Who the token speaks for, or why it is not believed."""
    import jwt

    if len(token) > TOKEN_BYTES_MAX:
        return BearerRefused("a token that is too long")
    try:
        header = jwt.get_unverified_header(token)
    except jwt.PyJWTError:
        return BearerRefused("not a signed JSON web token")
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in expected.algorithms & ALGORITHMS:
        return BearerRefused(f"algorithm {algorithm!r} is not allowed")
    key = keys.find(header.get("kid"))
    if key is None:
        return UnknownKey("signed with a key that is not in the key set")
    if not key.fits(algorithm):
        return BearerRefused(f"algorithm {algorithm!r} is not that of the key")
    try:
        claims = jwt.decode(
            token,
            key.public,
            algorithms=[algorithm],
            options={
                "verify_signature": True,
                "require": ["exp", "iat"],
                "verify_exp": False,
                "verify_iat": False,
                "verify_nbf": False,
                "verify_aud": False,
                "verify_iss": False,
                "verify_sub": False,
                "verify_jti": False,
            },
        )
    except jwt.PyJWTError as error:
        return BearerRefused(f"not believed: {type(error).__name__}")
    return _judged(claims, expected, now_ms)


def _judged(claims: Mapping[str, Any], expected: Expected, now_ms: int) -> BearerToken | BearerRefused:
    """What the claims of a token mean whose signature is right."""
    times = {name: claims.get(name) for name in ("exp", "iat", "nbf")}
    for name, value in times.items():
        absent = value is None and name == "nbf"
        if not absent and (
            isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _TIME_MAX
        ):
            return BearerRefused(f"{name} is not a time")
    expires_ms, issued_ms = int(times["exp"] * 1000), int(times["iat"] * 1000)  # type: ignore[operator]
    begins_ms = max(issued_ms, int((times["nbf"] or 0) * 1000))
    if now_ms > expires_ms + expected.skew_ms:
        return BearerRefused("expired")
    if now_ms < begins_ms - expected.skew_ms:
        return BearerRefused("from the future")
    if expires_ms < issued_ms:
        return BearerRefused("it expires before it was issued")
    if expected.issuer is not None and claims.get("iss") != expected.issuer:
        return BearerRefused("another issuer")
    if not _for_us(claims.get("aud"), expected.audiences):
        return BearerRefused("another audience")
    subject = _name(claims.get(expected.subject_claim))
    if not subject:
        return BearerRefused(f"claim {expected.subject_claim} names nobody")
    scope = claims.get(expected.scope_claim)
    if scope is not None and not isinstance(scope, str | list):
        return BearerRefused(f"claim {expected.scope_claim} is no scope")
    return BearerToken(subject, expires_ms)


def _name(claim: object) -> str:
    """Who a claim names, without what Kafka takes off its ends: or else a rule for `alice` were none for
    `alice `. Half a character, which JSON can hold, is no name; nothing could be written that has it."""
    if not isinstance(claim, str) or any("\ud800" <= one <= "\udfff" for one in claim):
        return ""
    return claim.strip(_TRIMMED)


def _for_us(audience: object, expected: tuple[str, ...]) -> bool:
    if audience is None:
        return not expected
    named = audience if isinstance(audience, list) else [audience]
    return any(one in expected for one in named if isinstance(one, str))


def _public_key(entry: object) -> Key | None:
    """The key, if it is one that checks signatures and is no secret."""
    import jwt

    if not isinstance(entry, dict) or entry.get("kty") not in ("RSA", "EC", "OKP"):
        return None  # A symmetric key in a public document is nobody's secret.
    if entry.get("use", "sig") != "sig":
        return None
    public = {name: value for name, value in entry.items() if name not in ("d", "p", "q", "dp", "dq", "qi")}
    try:
        made = jwt.PyJWK(public)
    except (jwt.PyJWTError, TypeError, ValueError, NotImplementedError):  # The last one is for `none`.
        return None
    if entry["kty"] == "RSA" and made.key.key_size < RSA_BITS_MIN:
        return None
    named = entry.get("kid")
    return Key(named if isinstance(named, str) else None, entry["kty"], entry.get("alg"), made.key)
