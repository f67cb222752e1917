"""`penstock store`: look at the store itself, whether brokers run or not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from penstock.admin.stores import GRACE_SECONDS
from penstock.admin.stores import audit as compare
from penstock.cli.output import show, wants_json

if TYPE_CHECKING:
    from penstock.cluster.audit import Report

DEFAULT_STORE = "./penstock-data"
SHOWN_MAX = 20


@click.group()
def store() -> None:
    """Look at the store itself: brokers need not run."""


location_option = click.option(
    "--store",
    "location",
    metavar="DIR_OR_URL",
    default=DEFAULT_STORE,
    envvar="PENSTOCK_STORE",
    show_default=True,
    show_envvar=True,
    help="Where the cluster lives.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON; the default where output is not a terminal."
)


@store.command("audit")
@location_option
@click.option(
    "--grace",
    type=click.IntRange(min=0),
    metavar="SECONDS",
    default=GRACE_SECONDS,
    show_default=True,
    help="Younger objects that nothing refers to are in flight, not orphaned.",
)
@click.option(
    "--delete-orphans", is_flag=True, help="Delete what is orphaned. Nothing is deleted without this."
)
@json_option
def audit(location: str, grace: int, delete_orphans: bool, as_json: bool) -> None:
    """Compare the objects in the store with what the cluster needs.

    Finds objects that nothing refers to (a broker that died may leave some; brokers sweep them too) and
    objects that are needed and not there. Exit code 1 if something is missing. Compares names and sizes;
    what is in the objects, `penstock store scrub` reads.

    \b
    penstock store audit --store ./penstock-data
    """
    report = asyncio.run(compare(location, grace, delete_orphans=delete_orphans))
    if wants_json(as_json):
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        _tell(report, location)
    raise SystemExit(1 if report.missing else 0)


def _tell(report: Report, location: str) -> None:
    click.echo(f"Cluster {report.cluster_id} in {location}, at entry {report.version} of its metadata log.")
    rows = [
        {
            "kind": kind,
            "objects": tally.objects,
            "bytes": tally.bytes,
            "referenced": tally.referenced,
            "in_flight": tally.in_flight,
            "orphaned": tally.orphaned,
            "orphaned_bytes": tally.orphaned_bytes,
        }
        for kind, tally in sorted(report.kinds.items())
    ]
    columns = {name: name.upper().replace("_", " ") for name in rows[0]} if rows else {}
    show(rows, columns, as_json=False)
    lists = {"in flight": report.in_flight, "orphaned": report.orphaned, "unknown": report.unknown}
    for title, some in lists.items():
        for one in some[:SHOWN_MAX]:
            click.echo(f"{title}: {one.key} ({one.size} bytes, {one.age_seconds} s old)")
        if len(some) > SHOWN_MAX:
            click.echo(f"{title}: and {len(some) - SHOWN_MAX} more; --json lists all")
    for lost in report.missing:
        click.echo(f"missing: {lost.key}: {lost.reason}", err=True)
    _tell_space(report)
    if report.deleted:
        click.echo(f"Deleted {len(report.deleted)} orphaned objects.")
    elif report.orphaned:
        click.echo("Nothing was deleted; --delete-orphans deletes what is orphaned.")
    if report.missing:
        click.echo("`penstock store scrub` says which records that hurts.", err=True)
    else:
        click.echo("Everything that the cluster needs is there.")


def _tell_space(report: Report) -> None:
    if report.unknown:
        click.echo("Unknown objects stay: manifests that cannot be read may need them.", err=True)
    space = report.space
    if space is None:
        click.echo("How much can be read is not known: some manifests cannot be read.", err=True)
        return
    click.echo(
        f"Settled records: {space.readable_bytes} bytes can be read, {space.stored_bytes} bytes are stored"
        f" for them, a ratio of {space.ratio:.2f}."
    )
    if not space.in_bounds:
        click.echo(
            "That is more than about twice as much. Brokers that run move what lives out of objects that are"
            " mostly dead; if this stays so, their logs say what keeps them from it.",
            err=True,
        )
