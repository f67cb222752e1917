"""What every answer says to browsers, and which requests are turned away before a page sees them.

A request whose Host is a name that nobody gave the console may come from another site's page, whose name was
made to point here (DNS rebinding). Addresses and localhost cannot be made to point elsewhere.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


def host_fits(host: str, names: Sequence[str]) -> bool:
    """Whether a Host header names this console."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost") or name in {one.lower() for one in names}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def origin_fits(origin: str | None, host: str) -> bool:
    """Whether a form was sent from a page of this console, if the browser says from where. A proxy may speak
    TLS for it, so the scheme does not count."""
    return origin is None or origin.lower() in (f"http://{host}".lower(), f"https://{host}".lower())


def way_back(text: str) -> str:
    """Where to go after a login: a path of this console, whatever was asked for."""
    if not text.startswith("/") or text.startswith(("//", "/\\")) or any(ord(one) < 33 for one in text):
        return "/"
    return text
