"""PLAIN (RFC 4616): user and password in one message.

    [authzid] NUL authcid NUL passwd

- An authzid that is given must be the user's own name: nobody poses as somebody else.
- An unknown user is compared with a password, too, so that both failures take the same time.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.security.credentials import same_secret
from penstock.security.sasl.exchange import USER, Done, Failed, Step

_WRONG = "Authentication failed: Invalid username or password"
_ANOTHER = "Authentication failed: Client requested an authorization id that is different from username"
_NO_PASSWORD = "\0"
"""Nobody can send it: it would be a fourth part."""


class Plain:
    """One login. `password_of` knows the users of the listener."""

    __slots__ = ("_over", "_password_of")

    def __init__(self, password_of: Callable[[str], str | None]) -> None:
        self._password_of = password_of
        self._over = False

    def respond(self, token: bytes, now_ms: int) -> Step:
        if self._over:
            return Failed(_WRONG, "a token after the exchange was over")
        self._over = True
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            return Failed("Invalid SASL/PLAIN response: not UTF-8", "not UTF-8")
        if len(parts) != 3:
            message = f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}"
            return Failed(message, f"{len(parts)} parts")
        authzid, user, password = parts
        if not user:
            return Failed("Authentication failed: username not specified", "no user")
        if not password:
            return Failed("Authentication failed: password not specified", "no password")
        kept = self._password_of(user)
        right = same_secret(password, _NO_PASSWORD if kept is None else kept)
        if kept is None or not right:
            return Failed(_WRONG, f"wrong user or password, user={user!r}")
        if authzid and authzid != user:
            return Failed(_ANOTHER, f"user {user!r} asked to be {authzid!r}")
        return Done(USER + user, None, b"")
