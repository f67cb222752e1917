"""Templates, and how numbers, sizes and times are written in them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from penstock.console.addresses import segment

NOTHING = "\u2013"
"""What stands where there is no value."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def environment(templates: Path) -> Environment:
    made = Environment(
        loader=FileSystemLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(number=number, size=size, when=when, segment=segment, plural=plural)
    return made


def number(value: int | None) -> str:
    """With thin spaces between thousands, as they are read in every country."""
    return NOTHING if value is None else f"{value:,}".replace(",", "\u202f")


def size(value: int | None) -> str:
    """Bytes, for people."""
    if value is None:
        return NOTHING
    amount = float(value)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"


def when(time_ms: int | None) -> str:
    """In UTC: what two people see is the same."""
    if time_ms is None or time_ms < 0:
        return NOTHING
    try:
        found = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    return f"{found:%Y-%m-%d %H:%M:%S}.{time_ms % 1000:03d}"


def plural(count: int, one: str, many: str = "") -> str:
    return f"{number(count)} {one if count == 1 else many or one + 's'}"
