"""`penstock groups`: list, describe with lag, reset offsets, delete."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, TextIO

import click

from penstock.admin import resetting
from penstock.admin.groups import Position, delete_group, existing_group, list_groups, positions
from penstock.admin.offsets import Offsets, commit, committed
from penstock.cli.client import ClientError
from penstock.cli.options import cluster_options, connected
from penstock.cli.output import say, show, wants_json


@click.group()
def groups() -> None:
    """Look at consumer groups and their lag, move their offsets, delete them."""


@groups.command("list")
@cluster_options
def list_command(bootstrap: str, as_json: bool) -> None:
    """List the groups of the cluster.

    \b
    penstock groups list
    """
    with connected(bootstrap) as client:
        found = list_groups(client)
    rows = [
        {
            "group": one.group_id,
            "state": one.group_state,
            "type": one.group_type,
            "protocol_type": one.protocol_type,
        }
        for one in found
    ]
    columns = {"group": "GROUP", "state": "STATE", "type": "TYPE", "protocol_type": "PROTOCOL"}
    show(rows, columns, as_json=wants_json(as_json))


@groups.command("describe")
@cluster_options
@click.argument("group")
def describe_group(bootstrap: str, as_json: bool, group: str) -> None:
    """Show where GROUP stands in each partition, and how far behind the end that is.

    \b
    penstock groups describe readers
    penstock groups describe readers --json
    """
    with connected(bootstrap) as client:
        found, offsets = existing_group(client, group)
        rows = [_row(one) for one in positions(client, found, offsets)]
    if wants_json(as_json):
        show(
            [{"group": group, "state": found.state, "partitions": rows}],
            {},
            as_json=True,
        )
        return
    with_partitions = sum(bool(member.assigned) for member in found.members)
    members = f"{with_partitions} member{'' if with_partitions == 1 else 's'}"
    click.echo(f"{group}: {found.state}, {members} with partitions")
    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "committed": "COMMITTED",
        "end": "END",
        "lag": "LAG",
        "member": "MEMBER",
        "host": "HOST",
    }
    show(rows, columns, as_json=False)


@groups.command("reset-offsets")
@cluster_options
@click.argument("group")
@click.option("--topic", "names", metavar="TOPIC[:0,1]", multiple=True,
              help="A topic to move in, or some partitions of it; may be repeated.")  # fmt: skip
@click.option("--all-topics", is_flag=True, help="All topics that the group has committed offsets of.")
@click.option("--partition", "chosen", type=int, multiple=True, help="Only this partition; may be repeated.")
@click.option("--to", metavar="WHERE",
              help="Short for the options below: earliest, latest, current, an offset, +N, -N, "
              "@MILLISECONDS, or a date and time.")  # fmt: skip
@click.option("--to-earliest", is_flag=True, help="To the first record.")
@click.option("--to-latest", is_flag=True, help="To the end.")
@click.option("--to-current", is_flag=True, help="To where the group stands; to the end where it does not.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="To an offset.")
@click.option("--to-datetime", metavar="TIME",
              help="To the first record at or after 2026-01-31T12:00:00.000, in UTC unless it ends in "
              "+hh:mm.")  # fmt: skip
@click.option("--by-duration", metavar="DURATION", help="To the first record of the last PnDTnHnMnS.")
@click.option("--shift-by", type=int, metavar="N", help="By N records, forwards or backwards.")
@click.option(
    "--from-file",
    type=click.File(encoding="utf-8", errors="surrogateescape"),
    help="To what a CSV file says: topic,partition,offset.",
)
@click.option("--export", is_flag=True, help="Print the plan as CSV for --from-file.")
@click.option("--dry-run", is_flag=True, help="Commit nothing. This is what happens without --execute.")
@click.option("--execute", is_flag=True, help="Commit the offsets.")
def reset_offsets(
    bootstrap: str,
    as_json: bool,
    group: str,
    names: tuple[str, ...],
    all_topics: bool,
    chosen: tuple[int, ...],
    export: bool,
    dry_run: bool,
    execute: bool,
    from_file: TextIO | None,
    **ways: Any,
) -> None:
    """Move the committed offsets of GROUP, which must have no members. Without --execute it only shows where
    they would go. An offset beyond an end of its partition becomes that end.

    \b
    penstock groups reset-offsets readers --topic orders --to-earliest
    penstock groups reset-offsets readers --topic orders:0,2 --shift-by -100 --execute
    penstock groups reset-offsets readers --all-topics --by-duration PT1H --execute
    penstock groups reset-offsets readers --all-topics --to-current --export > plan.csv
    penstock groups reset-offsets readers --from-file plan.csv --execute
    """
    if execute and dry_run:
        raise click.UsageError("--execute and --dry-run contradict each other.")
    if export and as_json:
        raise click.UsageError("--export prints CSV: it and --json contradict each other.")
    try:
        way = _way(ways)
        wanted = resetting.topics_of(names)
        plan = None if from_file is None else resetting.read_plan(from_file, group)
    except resetting.WayError as error:
        raise click.UsageError(str(error)) from None
    if (way is None) == (from_file is None):
        raise click.UsageError(
            "Say where to, in one way: --to, --to-..., --by-duration, --shift-by or --from-file."
        )
    if from_file is None and bool(names) == all_topics:
        raise click.UsageError("Say which topics: --topic, or --all-topics.")
    with connected(bootstrap) as client:
        resetting.require_no_members(client, group)
        before = committed(client, group)
        if way is None:
            assert plan is not None
            after = resetting.planned(client, plan)
        else:
            if all_topics:
                wanted = {topic: None for topic, _ in before}
            after = resetting.moved(client, way, resetting.places_of(client, wanted, chosen), before)
        if execute and after:
            commit(client, group, after)
    _show_plan(before, after, execute=execute, export=export, as_json=as_json)


def _way(given: Mapping[str, Any]) -> resetting.Way | None:
    """The one way that was given; None if none was."""
    ways: list[resetting.Way] = []
    if given["to"] is not None:
        ways.append(resetting.parse_to(given["to"]))
    ways += [resetting.Way(name) for name in ("earliest", "latest", "current") if given[f"to_{name}"]]
    if given["to_offset"] is not None:
        ways.append(resetting.Way("offset", offset=given["to_offset"]))
    if given["shift_by"] is not None:
        ways.append(resetting.Way("shift", offset=given["shift_by"]))
    if given["to_datetime"] is not None:
        ways.append(resetting.Way("time", time_ms=resetting.datetime_ms(given["to_datetime"])))
    if given["by_duration"] is not None:
        before_ms = resetting.duration_ms(given["by_duration"])
        ways.append(resetting.Way("time", time_ms=max(0, time.time_ns() // 1_000_000 - before_ms)))
    if len(ways) > 1:
        raise click.UsageError("Say where to, in one way.")
    return ways[0] if ways else None


def _show_plan(before: Offsets, after: Offsets, *, execute: bool, export: bool, as_json: bool) -> None:
    if export:
        for (topic, partition), offset in after.items():
            click.echo(f"{topic},{partition},{offset}")
        return
    rows = [
        {"topic": topic, "partition": partition, "before": before.get((topic, partition)), "after": offset}
        for (topic, partition), offset in after.items()
    ]
    columns = {"topic": "TOPIC", "partition": "PARTITION", "before": "BEFORE", "after": "AFTER"}
    show(rows, columns, as_json=wants_json(as_json))
    if not execute:
        click.echo("Nothing was committed: add --execute.", err=True)


@groups.command("delete")
@cluster_options
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
def delete_groups(bootstrap: str, as_json: bool, names: tuple[str, ...]) -> None:
    """Delete groups that have no members, and their committed offsets.

    \b
    penstock groups delete readers
    """
    with connected(bootstrap) as client:
        refused = []
        for name in names:
            try:
                delete_group(client, name)
            except ClientError as error:
                refused.append(str(error))
                continue
            say(f"Deleted group {name}.", {"deleted": name}, as_json=wants_json(as_json))
    if refused:
        raise ClientError(" ".join(refused))


def _row(one: Position) -> dict[str, Any]:
    topic, partition = one.place
    return {
        "topic": topic,
        "partition": partition,
        "committed": one.committed,
        "end": one.end,
        "lag": one.lag,
        "member": one.owner and one.owner.id,
        "host": one.owner and one.owner.host,
    }
