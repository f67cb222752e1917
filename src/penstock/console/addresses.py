"""Names as parts of addresses: any name has one, and a browser asks for exactly that one.

Percent signs are not enough. To browsers and proxies `.` and `..` between two slashes are steps through the
path, also where they are written %2e; and what is empty is easily dropped. Such a name is written behind a ~,
and so is one that could be taken for it: `..` is `~..`, and `~..` is `~~..`.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

_STEP = re.compile(r"~*\.{0,2}")


def segment(name: str) -> str:
    """A name as a part of a path."""
    return quote(f"~{name}" if _STEP.fullmatch(name) else name, safe="")


def name_of(text: str) -> str:
    """The name that a part of a path is."""
    name = unquote(text)
    return name[1:] if name.startswith("~") and _STEP.fullmatch(name) else name
