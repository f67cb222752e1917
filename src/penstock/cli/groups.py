"""`penstock groups`: list, describe with lag, reset offsets, delete."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any, TextIO

import click

from penstock.cli import resetting
from penstock.cli.client import AnswerError, Client, ClientError
from penstock.cli.group_client import Offsets, commit, committed, coordinator
from penstock.cli.options import cluster_options, connected
from penstock.cli.output import say, show, wants_json
from penstock.cli.records import EARLIEST, LATEST, list_offset
from penstock.wire.api.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from penstock.wire.api.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from penstock.wire.api.describe_groups import (
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from penstock.wire.api.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from penstock.wire.codec import decode_versioned
from penstock.wire.errors import ErrorCode, WireError
from penstock.wire.schemas.consumer_protocol import ConsumerProtocolAssignment

Owners = dict[tuple[str, int], dict[str, str]]


@click.group()
def groups() -> None:
    """Look at consumer groups and their lag, move their offsets, delete them."""


@groups.command("list")
@cluster_options
def list_groups(bootstrap: str, as_json: bool) -> None:
    """List the groups of the cluster."""
    with connected(bootstrap) as client:
        found = sorted(_all_groups(client), key=lambda group: group.group_id)
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
    """Show where GROUP stands in each partition, and how far behind the end that is."""
    with connected(bootstrap) as client:
        state, owners = _members(client, group)
        offsets = committed(client, group)
        if state == "Dead" and not offsets:
            raise ClientError(f"There is no group {group!r}.")
        rows = [_position(client, place, offsets, owners) for place in sorted({*offsets, *owners})]
    if wants_json(as_json):
        show(
            [{"group": group, "state": state, "partitions": rows}],
            {},
            as_json=True,
        )
        return
    click.echo(
        f"{group}: {state}, {len({row['member'] for row in rows if row['member']})} members with partitions"
    )
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
              help="To the first record at or after 2026-01-31T12:00:00.000, in UTC unless it ends in Z or "
              "+hh:mm.")  # fmt: skip
@click.option("--by-duration", metavar="DURATION", help="To the first record of the last PnDTnHnMnS.")
@click.option("--shift-by", type=int, metavar="N", help="By N records, forwards or backwards.")
@click.option("--from-file", type=click.File(), help="To what a CSV file says: topic,partition,offset.")
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
    way = _way(ways)
    if (way is None) == (from_file is None):
        raise click.UsageError(
            "Say where to, in one way: --to, --to-..., --by-duration, --shift-by or --from-file."
        )
    if from_file is None and bool(names) == all_topics:
        raise click.UsageError("Say which topics: --topic, or --all-topics.")
    with connected(bootstrap) as client:
        state, _ = _members(client, group)
        if state not in ("Empty", "Dead"):
            raise ClientError(f"Group {group!r} is {state}: stop its members before its offsets are moved.")
        before = committed(client, group)
        if way is None:
            assert from_file is not None
            plan = resetting.read_plan(from_file, group)
            _require(client, plan)
            after = resetting.clamped(plan, partial(_ends, client))
        else:
            wanted = {topic: None for topic, _ in before} if all_topics else resetting.topics_of(names)
            after = _targets(client, way, _places(client, wanted, chosen), before)
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
        ways.append(resetting.Way("time", time_ms=time.time_ns() // 1_000_000 - before_ms))
    if len(ways) > 1:
        raise click.UsageError("Say where to, in one way.")
    return ways[0] if ways else None


def _places(
    client: Client, wanted: Mapping[str, list[int] | None], chosen: tuple[int, ...]
) -> list[resetting.Place]:
    places: list[resetting.Place] = []
    for topic, own in wanted.items():
        partitions = client.partitions(topic)
        some = own if own is not None else list(chosen) or partitions
        missing = [one for one in some if one not in partitions]
        if missing:
            raise ClientError(f"Topic {topic!r} has no partition {missing[0]}.")
        places += [(topic, partition) for partition in some]
    return places


def _require(client: Client, plan: Mapping[resetting.Place, int]) -> None:
    wanted: dict[str, list[int] | None] = {}
    for topic, partition in plan:
        found = wanted.setdefault(topic, [])
        assert found is not None
        found.append(partition)
    _places(client, wanted, ())


def _ends(client: Client, place: resetting.Place) -> resetting.Ends:
    return resetting.Ends(list_offset(client, *place, EARLIEST), list_offset(client, *place, LATEST))


def _targets(client: Client, way: resetting.Way, places: list[resetting.Place], before: Offsets) -> Offsets:
    def at_time(place: resetting.Place, time_ms: int) -> int:
        return list_offset(client, *place, time_ms)

    return {
        place: resetting.target(way, place, _ends(client, place), before.get(place), at_time)
        for place in places
    }


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
    """Delete groups that have no members, and their committed offsets."""
    with connected(bootstrap) as client:
        for name in names:
            broker = coordinator(client, name)
            answer = broker.ask(DeleteGroupsRequest(groups_names=[name]), DeleteGroupsResponse)
            code = answer.results[0].error_code
            if code == ErrorCode.GROUP_ID_NOT_FOUND:
                raise ClientError(f"There is no group {name!r}.")
            if code == ErrorCode.NON_EMPTY_GROUP:
                raise ClientError(f"Group {name!r} has members: stop them before it is deleted.")
            if code:
                raise AnswerError(code, f"Deleting group {name!r}")
            say(f"Deleted group {name}.", {"deleted": name}, as_json=wants_json(as_json))


def _all_groups(client: Client) -> list[ListedGroup]:
    """Each broker lists the groups that it coordinates."""
    found: dict[str, ListedGroup] = {}
    for broker in client.metadata([]).brokers:
        answer = client.broker(broker.node_id).ask(ListGroupsRequest(), ListGroupsResponse)
        if answer.error_code:
            raise AnswerError(answer.error_code, f"The question for groups to broker {broker.node_id}")
        found.update((group.group_id, group) for group in answer.groups)
    return list(found.values())


def _members(client: Client, group: str) -> tuple[str, Owners]:
    """The state of a group of either protocol, and who has which partition."""
    broker = coordinator(client, group)
    if broker.knows(ConsumerGroupDescribeRequest.api_key):
        request = ConsumerGroupDescribeRequest(group_ids=[group])
        found = broker.ask(request, ConsumerGroupDescribeResponse).groups[0]
        if not found.error_code:
            owners: Owners = {}
            for member in found.members:
                for topic in member.assignment.topic_partitions:
                    for partition in topic.partitions:
                        owner = {"member": member.member_id, "host": member.client_host}
                        owners[topic.topic_name, partition] = owner
            return found.group_state, owners
    answer = broker.ask(DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse, newest=5)
    described = answer.groups[0]
    if described.error_code:
        raise AnswerError(described.error_code, f"The question for group {group!r}")
    owners = {}
    for one in described.members:
        owners.update(_classic_owner(one))
    return described.group_state, owners


def _classic_owner(member: DescribedGroupMember) -> Owners:
    try:
        assigned = decode_versioned(ConsumerProtocolAssignment, member.member_assignment, newer_ok=True)
    except WireError:
        return {}  # not yet assigned, or a group that is not of consumers
    owner = {"member": member.member_id, "host": member.client_host}
    return {
        (topic.topic, partition): owner
        for topic in assigned.assigned_partitions
        for partition in topic.partitions
    }


def _position(client: Client, place: tuple[str, int], offsets: Offsets, owners: Owners) -> dict[str, Any]:
    topic, partition = place
    try:
        end: int | None = list_offset(client, topic, partition, LATEST)
    except AnswerError:
        end = None  # the topic is gone, its committed offsets are not yet
    at = offsets.get(place)
    owner = owners.get(place, {})
    return {
        "topic": topic,
        "partition": partition,
        "committed": at,
        "end": end,
        "lag": None if at is None or end is None else max(0, end - at),
        "member": owner.get("member"),
        "host": owner.get("host"),
    }
