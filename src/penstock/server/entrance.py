"""What a listener asks of those who come in, as the server is handed it.

The server knows how TLS and logins travel. Which certificate it shows, what a client's certificate makes of
its owner and how a login is judged are functions that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ssl

    from penstock.server.login import Logins

Principal = Callable[[bytes | None], str | None]
"""From a client's certificate (DER; None: it showed none) to its principal; None: it may not come in."""


class Entrance(NamedTuple):
    """One listener's; without TLS and logins everybody is let in as User:ANONYMOUS."""

    context: Callable[[], ssl.SSLContext] | None = None
    """The context for the next connection, if the listener speaks TLS."""
    principal: Principal | None = None
    """None: certificates say nothing about who somebody is."""
    logins: Logins | None = None

    @property
    def is_open(self) -> bool:
        """Nothing is asked: a connection is open as soon as it is there."""
        return self.context is None and self.logins is None


OPEN = Entrance()
Entrances = Mapping[str, Entrance]
"""By the name of the listener."""
