"""Where reading begins: beginning, end, an offset, the last N records, or a time."""

from __future__ import annotations

import click

from penstock.admin.offsets import EARLIEST, LATEST, list_offset
from penstock.admin.resetting import WayError, datetime_ms
from penstock.cli.client import Client


def position(client: Client, topic: str, partition: int, start: str, *, committed: bool) -> int:
    """The offset at which one partition is read first."""

    def ask(when: int) -> int:
        return list_offset(client, topic, partition, when, committed=committed)

    if start == "beginning":
        return ask(EARLIEST)
    if start == "end":
        return ask(LATEST)
    if start.isdigit():
        return int(start)
    if start[:1] == "-" and start[1:].isdigit():
        return max(ask(EARLIEST), ask(LATEST) - int(start[1:]))
    if start[:1] == "@" and start[1:].isdigit():
        time_ms = int(start[1:])
    else:
        try:
            time_ms = datetime_ms(start)
        except WayError:
            raise click.UsageError(
                "--from takes beginning, end, an offset, -N (the last N of each partition), @MILLISECONDS or "
                f"a date and time, not {start!r}."
            ) from None
    found = ask(time_ms)
    return ask(LATEST) if found < 0 else found
