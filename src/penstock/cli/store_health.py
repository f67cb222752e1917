"""`penstock store scrub` finds damage in the store, and `penstock store repair` heals it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from penstock.admin.stores import opened
from penstock.cli.output import wants_json
from penstock.cli.store import json_option, location_option

if TYPE_CHECKING:
    from penstock.cluster.health.findings import Report
    from penstock.cluster.health.repair_report import RepairReport

JOBS = 8
SHOWN_MAX = 50


_topics = click.option(
    "--topic", "topics", metavar="NAME", multiple=True, help="Look at these topics only. May be repeated."
)
_jobs = click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    default=JOBS,
    show_default=True,
    metavar="N",
    help="How many reads are under way at once. Memory grows with it, about 4 MiB each.",
)


@click.command("scrub")
@location_option
@_topics
@_jobs
@json_option
def scrub(location: str, topics: tuple[str, ...], jobs: int, as_json: bool) -> None:
    """Read everything that is stored and say what is hurt: topic, partition, offsets.

    Checks the metadata log, manifests, segments with their indexes and every batch, and the write-ahead logs
    that are needed. Nothing is changed, and brokers may run meanwhile.

    \b
    Exit code 0: everything is whole.
    Exit code 1: something is damaged; `penstock store repair` says what can be done.
    Exit code 2: nothing is known to be damaged, but something could not be read (refused, late, or written
                 by a newer version): try again.

    \b
    Examples: penstock store scrub --store ./penstock-data
              penstock store scrub --store s3://bucket/prefix --topic orders --json
    """
    report = asyncio.run(_scrub(location, topics, jobs))
    if wants_json(as_json):
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        tell(report, location)
    raise SystemExit(report.exit_code)


async def _scrub(location: str, topics: tuple[str, ...], jobs: int) -> Report:
    from penstock.cluster.health.scrub import Scrub

    async with opened(location) as found:
        with progress() as step:
            scrubbing = Scrub(found, topics=topics, jobs=jobs, progress=step)
            try:
                return await scrubbing.run()
            finally:
                await scrubbing.close()


@contextlib.contextmanager
def progress() -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def step(done: int, planned: int) -> None:
            bar.update(task, completed=done, total=planned)

        yield step


def tell(report: Report, location: str) -> None:
    totals = report.totals
    click.echo(f"Cluster {report.cluster_id} in {location}, at entry {report.version} of its metadata log.")
    click.echo(
        f"Read {totals.objects:,} objects, {totals.bytes:,} bytes, {totals.batches:,} batches, "
        f"{totals.records:,} records."
    )
    for title, sentences in (
        ("damaged", [finding.sentence for finding in report.damaged]),
        ("torn", [finding.sentence for finding in report.torn]),
        ("not read", [f"{one.key}: {one.reason}" for one in report.unread]),
    ):
        for sentence in sentences[:SHOWN_MAX]:
            click.echo(f"{title}: {sentence}", err=True)
        if len(sentences) > SHOWN_MAX:
            click.echo(f"{title}: and {len(sentences) - SHOWN_MAX} more; --json lists all", err=True)
    if report.damaged:
        click.echo("`penstock store repair` says what can be healed.", err=True)
    elif report.unread:
        click.echo("Nothing is known to be damaged, but not everything could be read.", err=True)
    elif report.torn:
        click.echo("Nothing is hurt: what a power cut took was not promised.")
    else:
        click.echo("Everything is whole.")


@click.command("repair")
@location_option
@_topics
@_jobs
@click.option("--apply", is_flag=True, help="Do it. Without this nothing is changed.")
@click.option(
    "--cut",
    is_flag=True,
    help="Leave out what cannot be healed: the batches that are hurt. Readers then pass over their offsets.",
)
@json_option
def repair(location: str, topics: tuple[str, ...], jobs: int, apply: bool, cut: bool, as_json: bool) -> None:
    """Heal what `penstock store scrub` finds.

    Says what would be done, and with --apply does it. Takes what another object still has (a log beside a
    segment), corrects single flipped bits, rebuilds indexes and headers from the rest. What nothing can heal
    stays as it is, unless --cut leaves it out. New objects are written beside the old ones; hurt bytes are
    kept under hurt/. Brokers may run meanwhile.

    \b
    Exit code 0: nothing is hurt, or all of it was healed or cut out.
    Exit code 1: something is hurt still; without --apply, anything.
    Exit code 2: something could not be read.

    \b
    Examples: penstock store repair --store ./penstock-data
              penstock store repair --store ./penstock-data --apply
              penstock store repair --store ./penstock-data --apply --cut --topic orders
    """
    report = asyncio.run(_repair(location, topics, jobs, apply=apply, cut=cut))
    if wants_json(as_json):
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        tell_repair(report, location)
    raise SystemExit(report.exit_code)


async def _repair(
    location: str, topics: tuple[str, ...], jobs: int, *, apply: bool, cut: bool
) -> RepairReport:
    from penstock.clock import SystemClock
    from penstock.cluster.health.repair import Repair

    async with opened(location) as found:
        with progress() as step:
            repairing = Repair(
                found, SystemClock(), apply=apply, cut=cut, topics=topics, jobs=jobs, progress=step
            )
            return await repairing.run()


def tell_repair(report: RepairReport, location: str) -> None:
    click.echo(f"Cluster {report.cluster_id} in {location}, at entry {report.version} of its metadata log.")
    for step in report.steps:
        click.echo(f"{'done' if report.applied else 'would be done'}: {step.sentence}")
    for left in report.left:
        click.echo(f"left: {left.finding.sentence}", err=True)
        click.echo(f"      {left.advice}", err=True)
    for one in report.unread:
        click.echo(f"not read: {one.key}: {one.reason}", err=True)
    if report.steps and not report.applied:
        click.echo("Nothing was changed; --apply does it.")
    elif not report.left and not report.unread:
        click.echo("Nothing is hurt." if not report.steps else "Nothing is hurt any more.")
