"""`penstock groups`: list, describe with lag, reset offsets, delete."""

from __future__ import annotations

from typing import Any

import click

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
@click.option("--topic", "names", multiple=True, required=True, help="A topic to move in; may be repeated.")
@click.option("--partition", "chosen", type=int, multiple=True, help="Only this partition; may be repeated.")
@click.option(
    "--to",
    required=True,
    metavar="WHERE",
    help="earliest, latest, an offset, +N or -N from where it stands, or a time: @MILLISECONDS.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be committed, and commit nothing.")
def reset_offsets(
    bootstrap: str,
    as_json: bool,
    group: str,
    names: tuple[str, ...],
    chosen: tuple[int, ...],
    to: str,
    dry_run: bool,
) -> None:
    """Move the committed offsets of GROUP, which must have no members."""
    with connected(bootstrap) as client:
        state, _ = _members(client, group)
        if state not in ("Empty", "Dead"):
            raise ClientError(f"Group {group!r} is {state}: stop its members before its offsets are moved.")
        before = committed(client, group)
        after: Offsets = {}
        for topic in names:
            partitions = client.partitions(topic)
            missing = [one for one in chosen if one not in partitions]
            if missing:
                raise ClientError(f"Topic {topic!r} has no partition {missing[0]}.")
            for partition in chosen or partitions:
                after[topic, partition] = _target(client, topic, partition, to, before)
        if not dry_run:
            commit(client, group, after)
    rows = [
        {"topic": topic, "partition": partition, "before": before.get((topic, partition)), "after": offset}
        for (topic, partition), offset in after.items()
    ]
    columns = {"topic": "TOPIC", "partition": "PARTITION", "before": "BEFORE", "after": "AFTER"}
    show(rows, columns, as_json=wants_json(as_json))


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


def _target(client: Client, topic: str, partition: int, to: str, before: Offsets) -> int:
    start = list_offset(client, topic, partition, EARLIEST)
    end = list_offset(client, topic, partition, LATEST)
    if to == "earliest":
        return start
    if to == "latest":
        return end
    if to[:1] in "+-" and to[1:].isdigit():
        return min(max(before.get((topic, partition), start) + int(to), start), end)
    if to[:1] == "@" and to[1:].isdigit():
        found = list_offset(client, topic, partition, int(to[1:]))
        return end if found < 0 else found
    if to.isdigit():
        return min(max(int(to), start), end)
    raise click.UsageError(f"--to takes earliest, latest, an offset, +N, -N or @MILLISECONDS, not {to!r}.")
