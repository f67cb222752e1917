"""`/topics/NAME`: its partitions, its settings, and what can be done to it as a whole."""

from __future__ import annotations

from typing import NamedTuple

from starlette.responses import Response

from penstock.admin.configs import Config, describe_configs
from penstock.admin.offsets import EARLIEST, LATEST, Offsets, list_offsets
from penstock.admin.standing import Standing, lag_of
from penstock.admin.topics import SET, TOPIC, UNSET, add_partitions, alter_configs, delete, delete_records
from penstock.client import AnswerError, Client, ClientError
from penstock.console.addresses import segment
from penstock.console.confirming import require_typed
from penstock.console.samples import lag_samples
from penstock.console.visit import Visit, page, whole_number
from penstock.wire.api.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from penstock.wire.api.incremental_alter_configs import AlterableConfig
from penstock.wire.api.metadata import MetadataResponsePartition, MetadataResponseTopic
from penstock.wire.errors import ErrorCode
from penstock.wire.uuids import uuid_text

PARTITIONS = 100
"""Shown on one page."""


class Row(NamedTuple):
    partition: MetadataResponsePartition
    start: int | None
    end: int | None
    size: int | None

    @property
    def records(self) -> int | None:
        return None if self.start is None or self.end is None else self.end - self.start


class NoTopicError(AnswerError):
    """A topic cannot be shown."""

    def __init__(self, code: int, name: str) -> None:
        super().__init__(code, f"The question for topic {name!r}")
        if self.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self.args = (f"There is no topic {name!r}: it was deleted, or never created.",)


def described(client: Client, name: str) -> MetadataResponseTopic:
    """The topic. AnswerError if there is none."""
    (topic,) = client.metadata([name]).topics
    if topic.error_code:
        raise NoTopicError(topic.error_code, name)
    topic.partitions.sort(key=lambda one: one.partition_index)
    return topic


@page("/topics/{name}")
def show(visit: Visit) -> Response:
    return _show(visit)


def _show(visit: Visit, problem: str = "") -> Response:
    name = visit.argument("name")

    def ask(client: Client) -> tuple[MetadataResponseTopic, list[Row]]:
        topic = described(client, name)
        places = [(name, one.partition_index) for one in topic.partitions]
        starts, ends = list_offsets(client, places, EARLIEST), list_offsets(client, places, LATEST)
        sizes = _sizes(client, name, topic.partitions)
        rows = [
            Row(
                one,
                starts.get((name, one.partition_index)),
                ends.get((name, one.partition_index)),
                sizes.get(one.partition_index),
            )
            for one in topic.partitions
        ]
        return topic, rows

    topic, rows = visit.cluster.ask(ask)
    shown, number, pages = visit.paged(rows, PARTITIONS)
    return visit.render(
        "topic.html",
        400 if problem else 200,
        name=name,
        topic=topic,
        id=uuid_text(topic.topic_id),
        rows=shown,
        number=number,
        pages=pages,
        unknown=sum(row.records is None for row in rows),
        records=sum(row.records or 0 for row in rows),
        size=sum(row.size or 0 for row in rows) if any(row.size is not None for row in rows) else None,
        problem=problem,
    )


def _sizes(client: Client, name: str, partitions: list[MetadataResponsePartition]) -> dict[int, int]:
    """Bytes by partition, as their leaders tell. Who may not ask sees none."""
    by_leader: dict[int, list[int]] = {}
    for one in partitions:
        if one.leader_id >= 0:
            by_leader.setdefault(one.leader_id, []).append(one.partition_index)
    sizes: dict[int, int] = {}
    for leader, indexes in by_leader.items():
        request = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic=name, partitions=indexes)])
        try:
            answer = client.broker(leader).ask(request, DescribeLogDirsResponse)
        except ClientError:
            continue
        for place in answer.results:
            for topic in place.topics:
                for found in topic.partitions:
                    if not found.is_future_key:
                        sizes[found.partition_index] = found.partition_size
    return sizes


# -- settings ---------------------------------------------------------------------------------------------


@page("/topics/{name}/settings")
def settings(visit: Visit) -> Response:
    return _settings(visit)


def _settings(visit: Visit, problem: str = "", changed: str = "") -> Response:
    name = visit.argument("name")

    def ask(client: Client) -> list[Config]:
        described(client, name)
        return describe_configs(client, TOPIC, name)

    return visit.render(
        "settings.html",
        400 if problem else 200,
        name=name,
        settings=visit.cluster.ask(ask),
        problem=problem,
        changed=changed,
        given=visit.form.get("value", ""),
    )


@page("/topics/{name}/settings", method="POST")
def change(visit: Visit) -> Response:
    name, setting = visit.argument("name"), visit.form.get("name", "")
    unset = visit.form.get("do") == "unset"
    value = visit.form.get("value", "")
    change = AlterableConfig(
        name=setting, config_operation=UNSET if unset else SET, value=None if unset else value
    )
    try:
        with visit.client() as client:
            alter_configs(client, name, [change], False)
    except AnswerError as error:
        return _settings(visit, str(error), setting)
    done = f"{setting} has its default again." if unset else f"{setting} is {value} now."
    return visit.done(f"/topics/{segment(name)}/settings", done)


# -- the topic as a whole ---------------------------------------------------------------------------------


@page("/topics/{name}/delete")
def ask_delete(visit: Visit) -> Response:
    return _ask_delete(visit)


def _ask_delete(visit: Visit, problem: str = "") -> Response:
    name = visit.argument("name")
    visit.cluster.ask(lambda client: described(client, name))
    return visit.render("delete_topic.html", 400 if problem else 200, name=name, problem=problem)


@page("/topics/{name}/delete", method="POST")
def do_delete(visit: Visit) -> Response:
    name = visit.argument("name")
    if visit.form.get("confirm", "").strip() != name:
        return _ask_delete(visit, "Write the name of the topic to delete it: nothing was deleted.")
    with visit.client() as client:
        delete(client, [name])
    return visit.done("/topics", f"Deleted topic {name}.")


@page("/topics/{name}/partitions", method="POST")
def more_partitions(visit: Visit) -> Response:
    name, text = visit.argument("name"), visit.form.get("count", "").strip()
    count = whole_number(text)
    if count is None or count >= 2**31:
        return _show(visit, f"The number of partitions is a number, not {text!r}.")
    try:
        with visit.client() as client:
            add_partitions(client, name, count, False)
    except AnswerError as error:
        return _show(visit, str(error))
    return visit.done(f"/topics/{segment(name)}", f"Topic {name} has {count} partitions now.")


@page("/topics/{name}/empty", method="POST")
def empty(visit: Visit) -> Response:
    """Delete the records that are there now; those that come meanwhile stay."""
    name = visit.argument("name")
    try:
        require_typed(visit, name)
        with visit.client() as client:
            places = [(name, one.partition_index) for one in described(client, name).partitions]
            ends = list_offsets(client, places, LATEST)
            delete_records(client, name, {partition: end for (_, partition), end in ends.items()})
    except ClientError as error:
        return _show(visit, str(error))
    said = f"Deleted the records of topic {name} that were there."
    if len(ends) < len(places):
        said += f" {len(places) - len(ends)} of its partitions did not answer, and have theirs still."
    return visit.done(f"/topics/{segment(name)}", said)


# -- who reads it -----------------------------------------------------------------------------------------


class Reader(NamedTuple):
    """A group, as far as one topic goes."""

    standing: Standing
    partitions: int
    lag: int | None


@page("/topics/{name}/groups")
def groups(visit: Visit) -> Response:
    """The groups that have committed offsets of the topic, those that are furthest behind first."""
    name = visit.argument("name")

    def ask(client: Client) -> Offsets:
        places = [(name, one.partition_index) for one in described(client, name).partitions]
        return list_offsets(client, places, LATEST)

    ends = visit.cluster.ask(ask)
    found = []
    for standing in lag_samples(visit.cluster).visit():
        here = {place: offset for place, offset in standing.committed.items() if place[0] == name}
        if here:
            found.append(Reader(standing, len(here), lag_of(here, ends)))
    found.sort(key=lambda one: (-(one.lag or 0), one.standing.name))
    shown, number, pages = visit.paged(found)
    return visit.render(
        "topic_groups.html", name=name, readers=shown, count=len(found), number=number, pages=pages
    )
