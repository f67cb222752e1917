"""OAUTHBEARER (RFC 7628, KIP-255): a bearer token in one message.

    n,[a=AUTHZID],^Aauth=Bearer TOKEN^A[NAME=VALUE^A...]^A

- Who the token speaks for is decided by a function that is handed in (`penstock.security.tokens` has one for
  JSON web tokens). There is no exchange without one.
- A token that is refused is answered with a challenge that says so in JSON. The client answers that with ^A
  or anything else, and the login has failed.
- Extensions are read, and mean nothing here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple

from penstock.security.sasl.exchange import USER, Challenge, Done, Failed, Step

_MECHANISM = "OAUTHBEARER"
_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_NAME = re.compile(r"[A-Za-z]+")
_TOKEN = re.compile(r"[-_~+/.A-Za-z0-9]+=*")
_MALFORMED = "Invalid OAUTHBEARER client first message"
_REFUSED = "Authentication failed: the token was refused"
_ANOTHER = (
    "Authentication failed: Client requested an authorization id that is different from the token's "
    "principal name"
)


class BearerToken(NamedTuple):
    """What a token says that was found to be right."""

    name: str
    """Who it speaks for, without `User:`."""
    expires_ms: int


class BearerRefused(NamedTuple):
    """Why a token was not accepted. The reason is for the audit and holds nothing of the token's secrets."""

    reason: str


class OAuthBearer:
    """One login. `validate(token, now_ms)` judges tokens."""

    __slots__ = ("_refusal", "_state", "_validate")

    def __init__(self, validate: Callable[[str, int], BearerToken | BearerRefused]) -> None:
        self._validate = validate
        self._state = "first"
        self._refusal = ""

    def respond(self, token: bytes, now_ms: int) -> Step:
        state, self._state = self._state, "over"
        if state == "refused":
            return Failed(_REFUSED, self._refusal)
        if state != "first":
            return Failed(_REFUSED, "a token after the exchange was over")
        parsed = _parse(token)
        if parsed is None:
            return Failed(_MALFORMED, "a message that is not OAUTHBEARER's")
        authzid, bearer = parsed
        found = self._validate(bearer, now_ms)
        if isinstance(found, BearerRefused):
            self._state, self._refusal = "refused", found.reason
            return Challenge(json.dumps({"status": "invalid_token"}, separators=(",", ":")).encode())
        if authzid and authzid != found.name:
            return Failed(_ANOTHER, f"{found.name!r} asked to be {authzid!r}")
        return Done(USER + found.name, max(found.expires_ms - now_ms, 0), b"")


def _parse(token: bytes) -> tuple[str, str] | None:
    """The authorisation id and the bearer token, or None if this is no such message."""
    try:
        header, _, rest = token.decode().partition("\1")
    except UnicodeDecodeError:
        return None
    parts = header.split(",")
    if len(parts) != 3 or parts[0] != "n" or parts[2] or not rest.endswith("\1\1"):
        return None
    if parts[1] and not parts[1].startswith("a="):
        return None
    pairs: dict[str, str] = {}
    for pair in rest[:-2].split("\1"):
        name, equals, value = pair.partition("=")
        if not equals or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value) or name in pairs:
            return None
        pairs[name] = value
    scheme, _, bearer = pairs.pop("auth", "").partition(" ")
    bearer = bearer.strip()
    if scheme.lower() != "bearer" or not _TOKEN.fullmatch(bearer):
        return None
    authzid = parts[1][2:].replace("=2C", ",").replace("=3D", "=")
    return authzid, bearer
