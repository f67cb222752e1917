"""Keeps libraries from loading modules that a starting broker does not need.

`msgspec` prefers typing_extensions to the typing module, though it works with either, and loading that takes
a tenth of the time from the command to the first record. `wire.checksum` does the same for crc32c.
"""

from __future__ import annotations

import gc
import sys


def prepare() -> None:
    """Called before anything else is imported."""
    # Loading modules makes many objects that stay: there is nothing to collect yet.
    gc.disable()
    _msgspec()


def _msgspec() -> None:
    if "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules["typing_extensions"]
