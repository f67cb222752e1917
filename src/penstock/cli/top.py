"""`penstock top`: the brokers, the busiest topics and the groups that lag most, of any Kafka cluster.

Rates are differences of the ends of partitions between two looks. A look costs one request to each leader for
all of its partitions, one to each broker for its groups, and one for each group.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import click

from penstock.admin.offsets import LATEST, Place, committed_at, list_offsets
from penstock.cli.client import Client, ClientError
from penstock.cli.keys import interrupted_by
from penstock.cli.options import Seconds, cluster_options, connected
from penstock.cli.output import cell, wants_json
from penstock.wire.api.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.wire.api.metadata import MetadataResponse

GROUPS_MAX = 200
"""Groups that are asked about in one look. Further ones are counted."""
SOON_SECONDS = 0.5
"""Until the first figures are on the screen."""


class Look(NamedTuple):
    """The cluster at one moment."""

    time: float
    metadata: MetadataResponse
    ends: Mapping[Place, int]
    groups: Mapping[str, tuple[str, Mapping[Place, int]]]
    """By name: state and committed offsets."""
    groups_unasked: int


@click.command()
@cluster_options
@click.option("--every", "seconds", type=Seconds(0.2), default=2.0, show_default=True,
              help="Seconds between two looks.")  # fmt: skip
@click.option("--rows", type=click.IntRange(min=1), default=15, show_default=True,
              help="Topics and groups to show.")  # fmt: skip
@click.option("--once", is_flag=True, help="Look twice, print, and end; what happens without a terminal.")
def top(bootstrap: str, as_json: bool, seconds: float, rows: int, once: bool) -> None:
    """Watch a cluster: brokers, the busiest topics, and the groups that lag most. q or Ctrl-C ends it.

    \b
    penstock top
    penstock top --once --json | jq .groups
    """
    if once or wants_json(as_json):
        with connected(bootstrap) as client:
            _print(next(_views(client, seconds, seconds)), rows, as_json=wants_json(as_json))
        return
    from rich.live import Live

    try:
        with (
            interrupted_by("q"),
            connected(bootstrap) as client,
            Live(screen=True, auto_refresh=False) as live,
        ):
            for view in _views(client, min(seconds, SOON_SECONDS), seconds):
                live.update(_drawn(view, rows), refresh=True)
    except KeyboardInterrupt:
        return


def _views(client: Client, soon: float, seconds: float) -> Iterator[dict[str, Any]]:
    """`soon`: how long after the first look the second one comes."""
    before = client.retry(lambda: look(client))
    pause = soon
    while True:
        time.sleep(pause)
        now = client.retry(lambda: look(client))
        yield view(before, now)
        before, pause = now, seconds


def look(client: Client) -> Look:
    metadata = client.metadata()
    places = [
        (topic.name or "", one.partition_index)
        for topic in metadata.topics
        for one in topic.partitions
        if one.leader_id >= 0
    ]
    ends = list_offsets(client, places, LATEST)  # A broker that dies is shown without its figures.
    groups, unasked = _groups(client, metadata)
    return Look(time.monotonic(), metadata, ends, groups, unasked)


def _groups(
    client: Client, metadata: MetadataResponse
) -> tuple[dict[str, tuple[str, Mapping[Place, int]]], int]:
    """Each broker lists the groups that it coordinates, and knows what they committed."""
    found: dict[str, tuple[str, Mapping[Place, int]]] = {}
    unasked = 0
    for broker in metadata.brokers:
        try:
            connection = client.broker(broker.node_id)
            for group in connection.ask(ListGroupsRequest(), ListGroupsResponse).groups:
                if len(found) >= GROUPS_MAX:
                    unasked += 1
                    continue
                committed = committed_at(connection, group.group_id)
                found[group.group_id] = (group.group_state, committed)
        except ClientError:
            continue
    return found, unasked


def view(before: Look, now: Look) -> dict[str, Any]:
    """What is shown of two looks."""
    seconds = max(now.time - before.time, 1e-6)
    leaders: dict[int, int] = {}
    written: dict[int, float] = {}
    topics: dict[str, dict[str, Any]] = {}
    for topic in now.metadata.topics:
        name = topic.name or ""
        row = topics[name] = {"topic": name, "partitions": len(topic.partitions), "records": 0, "rate": 0.0}
        row["leaderless"] = sum(one.leader_id < 0 for one in topic.partitions)
        for one in topic.partitions:
            place = (name, one.partition_index)
            leaders[one.leader_id] = leaders.get(one.leader_id, 0) + 1
            end = now.ends.get(place)
            if end is None:
                continue
            rate = max(0, end - before.ends.get(place, end)) / seconds
            row["records"] += end
            row["rate"] = round(row["rate"] + rate, 1)
            written[one.leader_id] = written.get(one.leader_id, 0.0) + rate
    return {
        "brokers": [
            {
                "broker": one.node_id,
                "address": f"{one.host}:{one.port}",
                "controller": one.node_id == now.metadata.controller_id,
                "leads": leaders.get(one.node_id, 0),
                "rate": round(written.get(one.node_id, 0.0), 1),
            }
            for one in sorted(now.metadata.brokers, key=lambda broker: broker.node_id)
        ],
        "topics": sorted(topics.values(), key=lambda row: (-row["rate"], -row["records"], row["topic"])),
        "groups": sorted(_group_rows(before, now, seconds), key=lambda row: (-row["lag"], row["group"])),
        "groups_not_shown": now.groups_unasked,
    }


def _group_rows(before: Look, now: Look, seconds: float) -> Iterator[dict[str, Any]]:
    for group, (state, committed) in now.groups.items():
        earlier = before.groups.get(group, ("", committed))[1]
        behind = sum(max(0, now.ends[place] - at) for place, at in committed.items() if place in now.ends)
        moved = sum(max(0, at - earlier.get(place, at)) for place, at in committed.items())
        yield {"group": group, "state": state, "lag": behind, "rate": round(moved / seconds, 1)}


_COLUMNS = {
    "brokers": {"broker": "BROKER", "address": "ADDRESS", "controller": "CONTROLLER", "leads": "LEADS",
                "rate": "RECORDS/S"},
    "topics": {"topic": "TOPIC", "partitions": "PARTITIONS", "leaderless": "LEADERLESS", "records": "RECORDS",
               "rate": "RECORDS/S"},
    "groups": {"group": "GROUP", "state": "STATE", "lag": "LAG", "rate": "RECORDS/S"},
}  # fmt: skip


def _drawn(found: Mapping[str, Any], rows: int) -> Any:
    from rich.console import Group
    from rich.table import Table

    tables: list[Any] = []
    for part, columns in _COLUMNS.items():
        table = Table(box=None, pad_edge=False, header_style="bold", title=None)
        for field, heading in columns.items():
            numeric = field in ("leads", "rate", "partitions", "leaderless", "records", "lag")
            table.add_column(heading, justify="right" if numeric else "left")
        shown = found[part] if part == "brokers" else found[part][:rows]
        for row in shown:
            table.add_row(*(cell(_text(row[field])) for field in columns))
        tables += [table, ""]
    return Group(*tables)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return (
        f"{value:,.1f}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


def _print(found: dict[str, Any], rows: int, *, as_json: bool) -> None:
    if as_json:
        import json

        shown = found | {"topics": found["topics"][:rows], "groups": found["groups"][:rows]}
        click.echo(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    Console().print(_drawn(found, rows))
