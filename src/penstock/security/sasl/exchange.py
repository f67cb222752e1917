"""What an exchange is: a token of the client in, the next step out."""

from __future__ import annotations

from typing import NamedTuple, Protocol

USER = "User:"
"""What the names of people and programs begin with, as Kafka's rules spell them."""


TOKEN = "token"
"""The basis of a login by a delegation token, beside its id."""


class Challenge(NamedTuple):
    """The exchange goes on: the client is sent this and answers it."""

    token: bytes


class Done(NamedTuple):
    """The client is who it says."""

    principal: str
    lifetime_ms: int | None
    """How long the login holds; None: no end of its own. The connection's limit may be shorter."""
    token: bytes
    """The last word to the client; may be empty."""
    by_token: bool = False
    """The client logged in with a delegation token. Such a login makes no further tokens."""
    basis: tuple[str, str] | None = None
    """What it was judged by and can be taken away: a mechanism and a user, or TOKEN and the id of one."""


class Failed(NamedTuple):
    """The client is not, or did not keep to the mechanism. An exchange that failed or is done ends there."""

    message: str
    """What the client is told: the same for an unknown user and for a wrong password."""
    reason: str
    """What the audit is told. It holds no secret, but may hold a name that a stranger chose."""


Step = Challenge | Done | Failed


class Exchange(Protocol):
    def respond(self, token: bytes, now_ms: int) -> Step:
        """The step that follows a client's token."""


def invalid_credentials(mechanism: str) -> str:
    """Kafka's words for every login that fails, but for those of PLAIN."""
    return (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism "
        + mechanism
    )
