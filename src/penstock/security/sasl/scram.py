"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): a proof of the password, and one of ours.

    client   n,[a=AUTHZID],n=USER,r=NONCE[,EXTENSION=VALUE...]
    server   r=NONCE+OURS,s=SALT,i=ITERATIONS
    client   c=biws,r=NONCE+OURS,p=PROOF
    server   v=SIGNATURE

- The final nonce must be the one that was sent, whole. Otherwise a recorded proof could be sent again.
- What is signed is the first message as it came, byte by byte.
- Channel binding is not offered: the header must begin with `n,`. `c=` repeats the header.
- An unknown user gets a credential that no password fits. So the exchange, its length and its work are those
  of a wrong password.
- With the extension `tokenauth=true` the user is the id of a delegation token, and the password its HMAC
  (KIP-48). The principal is the token's owner.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

from penstock.metadata.access import ScramCredential
from penstock.security.credentials import ITERATIONS_MIN, Mechanism, decoy, proves, server_signature
from penstock.security.sasl.exchange import (
    TOKEN,
    USER,
    Challenge,
    Done,
    Failed,
    Step,
    invalid_credentials,
)

_ANOTHER = "Authentication failed: Client requested an authorization id that is different from username"
_PRINTABLE = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_EXTENSION = re.compile(r"[A-Za-z]+=[^\0,=]*")
_BAD_ESCAPE = re.compile(r"=(?!2C|3D)")
_FIRST_BYTES_MAX = 4096
"""A first message is signed, kept and compared; names and nonces are far shorter."""


class TokenLogin(NamedTuple):
    """A delegation token that is asked for by its id."""

    credential: ScramCredential
    owner: str
    """The principal that made it, such as `User:alice`."""
    expires_ms: int


class _At(Enum):
    FIRST = auto()
    FINAL = auto()
    OVER = auto()


class _First(NamedTuple):
    header: str
    bare: str
    authzid: str
    user: str
    nonce: str
    extensions: dict[str, str]


class _MalformedError(Exception):
    """A message that is not SCRAM's. The text names the part, and never repeats it."""


class Scram:
    """One login. `nonce` is ours: printable, new for each login, and not to be guessed.

    `credential_of` knows users, `token_of` delegation tokens (None: there are none here). `decoy_secret` is
    the same on all brokers of a cluster for as long as possible, and known to nobody else.
    """

    __slots__ = (
        "_at", "_credential", "_credential_of", "_decoy_secret", "_first", "_known", "_mechanism", "_nonce",
        "_server_first", "_token", "_token_of",
    )  # fmt: skip

    def __init__(
        self,
        mechanism: Mechanism,
        nonce: str,
        credential_of: Callable[[str], ScramCredential | None],
        decoy_secret: bytes,
        token_of: Callable[[str], TokenLogin | None] | None = None,
    ) -> None:
        self._mechanism = mechanism
        self._nonce = nonce
        self._credential_of = credential_of
        self._decoy_secret = decoy_secret
        self._token_of = token_of
        self._at = _At.FIRST
        self._first: _First
        self._server_first = ""
        self._credential: ScramCredential
        self._known = False
        self._token: TokenLogin | None = None

    def respond(self, token: bytes, now_ms: int) -> Step:
        at, self._at = self._at, _At.OVER
        try:
            if at is _At.FIRST:
                return self._challenge(_text(token), now_ms)
            if at is _At.FINAL:
                return self._judge(_text(token), now_ms)
        except _MalformedError as error:
            return self._failed(str(error))
        return self._failed("a token after the exchange was over")

    def _challenge(self, message: str, now_ms: int) -> Step:
        first = self._first = _parse_first(message)
        if first.extensions.get("tokenauth", "").lower() == "true":
            token = None if self._token_of is None else self._token_of(first.user)
            if token is not None and token.expires_ms > now_ms:
                self._token = token
            found = None if self._token is None else self._token.credential
        else:
            found = self._credential_of(first.user)
            if first.authzid and first.authzid != first.user:
                return Failed(_ANOTHER, f"user {first.user!r} asked to be {first.authzid!r}")
        self._known = found is not None and found.iterations >= ITERATIONS_MIN
        fake = decoy(self._mechanism, first.user, self._decoy_secret)
        self._credential = found if found is not None and self._known else fake
        salt = b64encode(self._credential.salt).decode()
        self._server_first = f"r={first.nonce}{self._nonce},s={salt},i={self._credential.iterations}"
        self._at = _At.FINAL
        return Challenge(self._server_first.encode())

    def _judge(self, message: str, now_ms: int) -> Step:
        first, credential = self._first, self._credential
        unsigned, proof = _parse_final(message, first.header, first.nonce + self._nonce)
        signed = f"{first.bare},{self._server_first},{unsigned}".encode()
        right = proves(self._mechanism, credential, signed, proof)
        if not (right and self._known):
            return self._failed(f"wrong user or password, user={first.user!r}")
        signature = b64encode(server_signature(self._mechanism, credential, signed))
        token = self._token
        if token is None:
            if self._credential_of(first.user) != credential:
                return self._failed(f"a password that was changed meanwhile, user={first.user!r}")
            basis = (self._mechanism.sasl_name, first.user)
            return Done(USER + first.user, None, b"v=" + signature, basis=basis)
        if token.expires_ms <= now_ms:
            return self._failed(f"an expired token, id={first.user!r}")
        lasts_ms, basis = token.expires_ms - now_ms, (TOKEN, first.user)
        return Done(token.owner, lasts_ms, b"v=" + signature, by_token=True, basis=basis)

    def _failed(self, reason: str) -> Failed:
        return Failed(invalid_credentials(self._mechanism.sasl_name), reason)


# -- messages --------------------------------------------------------------------------------------------


def _text(token: bytes) -> str:
    if len(token) > _FIRST_BYTES_MAX:
        raise _MalformedError("a message that is too long")
    try:
        return token.decode()
    except UnicodeDecodeError as error:
        raise _MalformedError("a message that is not UTF-8") from error


def _parse_first(message: str) -> _First:
    parts = message.split(",")
    if len(parts) < 4 or parts[0] != "n":
        raise _MalformedError("a first message without the header n,,")
    if parts[1] and not parts[1].startswith("a="):
        raise _MalformedError("a first message with an unknown header")
    user, nonce = parts[2], parts[3]
    if not user.startswith("n=") or not nonce.startswith("r="):
        raise _MalformedError("a first message without a user and a nonce")  # `m=` is an extension we lack.
    if not _PRINTABLE.fullmatch(nonce[2:]):
        raise _MalformedError("a nonce that is not printable")
    name = _name(user[2:])
    if not name:
        raise _MalformedError("a first message without a user")
    header = f"n,{parts[1]},"
    return _First(
        header, message[len(header) :], _name(parts[1][2:]), name, nonce[2:], _extensions(parts[4:])
    )


def _parse_final(message: str, header: str, nonce: str) -> tuple[str, bytes]:
    """The message without its proof, and the proof."""
    unsigned, _, proof = message.rpartition(",p=")
    parts = unsigned.split(",")
    if len(parts) < 2 or not parts[0].startswith("c=") or not parts[1].startswith("r="):
        raise _MalformedError("a final message without c=, r= and p=")
    if _from_base64(parts[0][2:]) != header.encode():
        raise _MalformedError("a channel binding that is not the header")
    if parts[1][2:] != nonce:
        raise _MalformedError("a nonce that is not ours")
    _extensions(parts[2:])
    return unsigned, _from_base64(proof)


def _name(escaped: str) -> str:
    """A name in which commas are written =2C and equal signs =3D."""
    if "\0" in escaped or _BAD_ESCAPE.search(escaped):
        raise _MalformedError("a name that is not escaped rightly")
    return escaped.replace("=2C", ",").replace("=3D", "=")


def _extensions(parts: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in parts:
        if not _EXTENSION.fullmatch(part):
            raise _MalformedError("an extension that is not name=value")
        name, _, value = part.partition("=")
        found[name] = value
    return found


def _from_base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError) as error:
        raise _MalformedError("a value that is not base64") from error
