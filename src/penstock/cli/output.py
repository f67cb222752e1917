"""The output of commands: tables for people at a terminal, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text


def wants_json(flag: bool) -> bool:
    """--json, or no terminal to draw on."""
    return flag or not sys.stdout.isatty()


def show(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], *, as_json: bool) -> None:
    """Print rows. `columns` gives each field its heading; JSON has all fields."""
    if as_json:
        print(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for field, heading in columns.items():
        numeric = bool(rows) and all(isinstance(row.get(field), int) for row in rows)
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell(_text(row.get(field))) for field in columns))
    Console().print(table)


def counted(count: int, one: str) -> str:
    """1 record, 2 records."""
    return f"{count} {one}" if count == 1 else f"{count} {one}s"


def cell(text: str) -> Text:
    """What a table shows of a name that strangers chose: rich's markup and a terminal's commands are text."""
    from rich.text import Text

    return Text("".join(one if one.isprintable() else ascii(one)[1:-1] for one in text))


def say(sentence: str, fields: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what was done: a sentence for people, its facts for programs."""
    print(json.dumps(fields, ensure_ascii=False) if as_json else sentence)


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(str(one) for one in value)
    return "-" if value is None else str(value)
