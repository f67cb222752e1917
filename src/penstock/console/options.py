"""What a console is told when it starts."""

from __future__ import annotations

import msgspec

from penstock.settings.clients import OPEN_CLIENT, ClientSecurity


class ConsoleOptions(msgspec.Struct, frozen=True, kw_only=True):
    bootstrap: str
    """Where the cluster is."""
    security: ClientSecurity = OPEN_CLIENT
    """How to reach it; with `mechanisms`, without user and password."""
    mechanisms: tuple[str, ...] = ()
    """The logins that the cluster offers. If there are any, visitors log in, and nobody else sees a page."""
    no_login: str = ""
    """Why nobody can log in here, as a sentence; empty if they can."""
    names: tuple[str, ...] = ()
    """Names by which browsers reach the console, beside addresses and localhost."""
    registry: str = ""
    """The URL of a schema registry; empty: there is none."""
    store: str = ""
    """The cluster's store, for pages that need it; empty: they are not there."""
