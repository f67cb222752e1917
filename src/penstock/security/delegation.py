"""Delegation tokens (KIP-48): what they are made of, who may do what with them, and logging in with one.

A token is an id, and its password is the HMAC of the id under a key that only the brokers' settings hold. So
nothing that is stored lets anybody in. A login with it is SCRAM, with a credential that is derived from the
password anew for each login.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Callable, Mapping, Set

from penstock.metadata.access import DelegationToken
from penstock.security.credentials import SALT_BYTES, Mechanism, derived
from penstock.security.sasl.scram import TokenLogin

TIME_MAX = 2**63 - 1


def token_hmac(token_id: str, secret: str) -> bytes:
    return hmac.digest(secret.encode(), token_id.encode(), "sha512")


class TokensByHmac:
    """The tokens of a cluster by their passwords. Whoever may log in may ask with any HMAC, as often as they
    like, so each token's is made once. Digests are looked up: how long it takes tells nothing of an HMAC."""

    __slots__ = ("_digests", "_ids", "_secret", "_tokens")

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._tokens: Mapping[str, DelegationToken] = {}
        """Those that it knows. Such a mapping never changes."""
        self._digests: dict[str, bytes] = {}
        self._ids: dict[bytes, str] = {}

    def find(self, tokens: Mapping[str, DelegationToken], given: bytes) -> DelegationToken | None:
        if tokens is not self._tokens:
            self._follow(tokens)
        token_id = self._ids.get(_digest(given))
        return None if token_id is None else tokens[token_id]

    def _follow(self, tokens: Mapping[str, DelegationToken]) -> None:
        for token_id in self._digests.keys() - tokens.keys():
            del self._ids[self._digests.pop(token_id)]
        for token_id in tokens.keys() - self._digests.keys():
            digest = self._digests[token_id] = _digest(token_hmac(token_id, self._secret))
            self._ids[digest] = token_id
        self._tokens = tokens


def _digest(password: bytes) -> bytes:
    return hashlib.sha256(password).digest()


def may_renew(token: DelegationToken, principal: str) -> bool:
    return principal == token.owner or principal in token.renewers


def expired(token: DelegationToken, now_ms: int) -> bool:
    return token.expires_ms < now_ms or token.expires_last_ms < now_ms


def concerns(token: DelegationToken, owners: Set[str]) -> bool:
    """Is one of these its owner or one of its renewers? Anybody may ask, and name very many."""
    return token.owner in owners or any(renewer in owners for renewer in token.renewers)


def after(now_ms: int, period_ms: int) -> int:
    return min(now_ms + period_ms, TIME_MAX)


def login_with(
    tokens: Mapping[str, DelegationToken], secret: str, mechanism: Mechanism
) -> Callable[[str], TokenLogin | None]:
    """What a login with a token's id is judged by."""

    def find(token_id: str) -> TokenLogin | None:
        token = tokens.get(token_id)
        if token is None:
            return None
        password = token_hmac(token_id, secret)
        salt = hmac.digest(secret.encode(), b"salt\0" + token_id.encode(), "sha256")[:SALT_BYTES]
        credential = derived(mechanism, b64encode(password).decode(), salt)
        return TokenLogin(credential, token.owner, min(token.expires_ms, token.expires_last_ms))

    return find
