"""Keeps libraries from loading what a starting broker does not need.

Two of them spend most of their import on conveniences: `crc32c` looks up its own version and brings a
command line, `msgspec` prefers typing_extensions to the typing module that it can do with. Together that
is a sixth of the time from the command to the first record. Both go on as usual if this does not work.
"""

from __future__ import annotations

import gc
import sys


def prepare() -> None:
    """Called before anything else is imported."""
    # Loading modules makes many objects that stay: there is nothing to collect yet.
    gc.disable()
    _msgspec()
    _crc32c()


def _msgspec() -> None:
    if "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules["typing_extensions"]


def _crc32c() -> None:
    """Load the compiled part of the package into a package that was not executed."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    if "crc32c" in sys.modules:
        return
    spec = PathFinder.find_spec("crc32c")
    if spec is None:
        return
    package = module_from_spec(spec)
    sys.modules["crc32c"] = package
    try:
        from crc32c._crc32c import crc32c
    except ImportError:
        del sys.modules["crc32c"]
        return
    package.crc32c = crc32c  # type: ignore[attr-defined]
