"""`penstock topics copy`: a topic into another one, of this cluster or of another."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from penstock.cli.client import Client
from penstock.cli.options import cluster_options, connected, security, security_in, understood
from penstock.cli.output import counted, say, wants_json
from penstock.wire.compression import CODEC_NAMES

if TYPE_CHECKING:
    from penstock.admin.copying import Copy

SECONDS = 30.0


@click.command("copy")
@cluster_options
@click.argument("source")
@click.argument("target")
@click.option("--to-bootstrap", metavar="HOST:PORT,...", callback=understood,
              help="The cluster of TARGET, if it is another one.")  # fmt: skip
@click.option("--to-command-config", metavar="FILE",
              help="How to reach that cluster, as --command-config says for SOURCE's.")  # fmt: skip
@click.option("--at", "begin", metavar="PARTITION:OFFSET,...",
              help="Go on there, as a stopped copy said; other partitions from the beginning.")  # fmt: skip
@click.option("--compression", type=click.Choice(CODEC_NAMES), default="none", show_default=True)
def copy(
    bootstrap: str,
    as_json: bool,
    source: str,
    target: str,
    to_bootstrap: str | None,
    to_command_config: str | None,
    begin: str | None,
    compression: str,
) -> None:
    """Copy the records of SOURCE to TARGET, up to where SOURCE ends now.

    Keys, values, headers, timestamps and partitions are kept. Of transactions only what was committed is
    copied. TARGET is created with the partitions and settings of SOURCE, unless it is there. If the copy
    stops, it says where: --at goes on from there, and no record is copied twice.

    \b
    penstock topics copy orders orders-2026
    penstock topics copy orders orders --bootstrap old:9092 --to-bootstrap new:9092
    penstock topics copy orders orders-2026 --at 0:1200,1:1187
    """
    from penstock.admin.copying import Copy, CopyStoppedError

    if to_bootstrap is None and source == target:
        raise click.UsageError("A topic cannot be copied to itself: name another one, or --to-bootstrap.")
    positions = _positions(begin)
    away = security() if to_command_config is None else security_in(to_command_config)
    with (
        connected(bootstrap) as from_cluster,
        Client(to_bootstrap or bootstrap, SECONDS, away) as to_cluster,
    ):
        run = Copy(from_cluster, source, to_cluster, target, CODEC_NAMES.index(compression), positions)
        try:
            with _progress(run) as show:
                for passed in run.run():
                    show(passed)
        except CopyStoppedError as stopped:
            where = ",".join(f"{one}:{at}" for one, at in sorted(stopped.positions.items()))
            raise click.ClickException(
                f"{stopped} {run.records} records were copied; --at {where} goes on from there."
            ) from None
    fields = {"source": source, "target": target, "records": run.records, "positions": run.positions}
    say(
        f"Copied {counted(run.records, 'record')} from {source} to {target}.",
        fields,
        as_json=wants_json(as_json),
    )


def _positions(text: str | None) -> dict[int, int]:
    found = {}
    for part in text.split(",") if text else ():
        partition, colon, offset = part.strip().partition(":")
        if not (colon and partition.isdecimal() and offset.isdecimal()):
            raise click.UsageError(f"--at takes PARTITION:OFFSET,..., not {part!r}.")
        found[int(partition)] = int(offset)
    return found


@contextmanager
def _progress(run: Copy) -> Iterator[Callable[[int], None]]:
    """Show how far the copy is, if a person looks."""
    if not sys.stderr.isatty():
        yield lambda passed: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("copying", total=run.total)
        yield lambda passed: progress.update(task, completed=passed)
