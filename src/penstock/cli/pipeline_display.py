"""The figures of a running pipeline, on a terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live as RichLive
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from penstock.cli.output import cell

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.pipeline.status import Status


class Live:
    """A table that is drawn anew, with a bar for each output: how much of the known input it has done."""

    def __init__(self, console: Console | None = None) -> None:
        self._live = RichLive(console=console, refresh_per_second=4, transient=False)
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            auto_refresh=False,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Live:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, status: Status) -> None:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("OUTPUT", "TO", "IN", "OUT", "ROWS/S", "LAG"):
            table.add_column(heading, justify="left" if heading in ("OUTPUT", "TO") else "right")
        for one in status.outputs:
            lag = "-" if one.lag is None else f"{one.lag:,}"
            table.add_row(
                cell(one.name),
                cell(one.kind),
                f"{one.rows_in:,}",
                f"{one.rows_out:,}",
                f"{one.rows_in_per_second:,.0f}",
                lag,
                style="yellow" if one.kind == "dead letters" and one.rows_out else None,
            )
            task = self._tasks.get(one.name)
            if task is None:
                task = self._tasks[one.name] = self._bars.add_task(one.name, total=None)
            if one.lag is not None:
                self._bars.update(task, completed=one.rows_in, total=max(1, one.rows_in + one.lag))
        seconds = time.time() - status.started_ms / 1000
        head = Text(f"{status.pipeline}: {status.state} on {status.master}, {seconds:.0f} s", style="bold")
        self._live.update(Group(head, table, self._bars), refresh=True)
