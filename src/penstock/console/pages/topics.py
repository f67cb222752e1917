"""`/topics`: all topics, found by name, a page of them at a time; and a form for a new one."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response

from penstock.admin.offsets import EARLIEST, LATEST, list_offsets
from penstock.admin.topics import create
from penstock.client import Client, ClientError
from penstock.console.addresses import segment
from penstock.console.cluster import Cluster
from penstock.console.visit import Visit, page
from penstock.wire.api.create_topics import CreatableTopicConfig
from penstock.wire.api.metadata import MetadataResponse, MetadataResponseTopic

SORTS = {
    "name": lambda topic: topic.name or "",
    "partitions": lambda topic: len(topic.partitions),
    "replicas": lambda topic: max((len(one.replica_nodes) for one in topic.partitions), default=0),
}
COUNTED_MAX = 2000
"""Partitions whose offsets are asked for on one page; with more, records are not counted."""


@page("/topics")
def topics(visit: Visit) -> Response:
    wanted = visit.query("find").lower()
    internal = visit.query("internal") == "1"
    sort = visit.query("sort") if visit.query("sort") in SORTS else "name"
    down = visit.query("down") == "1"
    found = [
        topic
        for topic in visit.cluster.metadata().topics
        if topic.name and wanted in topic.name.lower() and (internal or not topic.is_internal)
    ]
    found.sort(key=SORTS["name"])
    if sort != "name" or down:
        found.sort(key=SORTS[sort], reverse=down)
    shown, number, pages = visit.paged(found)
    return visit.render(
        "topics.html",
        topics=shown,
        records=_records(visit.cluster, shown),
        count=len(found),
        pages=pages,
        number=number,
        sort=sort,
        down=down,
        internal=internal,
    )


def _records(cluster: Cluster, topics: Sequence[MetadataResponseTopic]) -> dict[str, int]:
    """How many offsets each topic has, by one request to each leader for all topics of a page."""
    places = [(topic.name or "", one.partition_index) for topic in topics for one in topic.partitions]
    if not places or len(places) > COUNTED_MAX:
        return {}

    def ask(client: Client) -> dict[str, int]:
        client.learn(MetadataResponse(brokers=cluster.metadata().brokers, topics=list(topics)))
        starts, ends = list_offsets(client, places, EARLIEST), list_offsets(client, places, LATEST)
        counts: dict[str, int] = {}
        for place, end in ends.items():
            counts[place[0]] = counts.get(place[0], 0) + end - starts.get(place, end)
        return counts

    return cluster.remembered(("records", tuple(places)), ask)


@page("/create-topic")
def ask(visit: Visit) -> Response:
    return visit.render("create_topic.html", problem="", given={})


@page("/create-topic", method="POST")
def make(visit: Visit) -> Response:
    given = {name: value.strip() for name, value in visit.form.items()}
    name = given.get("name", "")
    problem = _wrong_number(given, "partitions") or _wrong_number(given, "replicas")
    configs = []
    for line in given.get("configs", "").splitlines():
        setting, equals, value = (part.strip() for part in line.partition("="))
        if not line.strip():
            continue
        if not equals or not setting:
            problem = problem or f"A setting is NAME=VALUE, not {line.strip()!r}."
        configs.append(CreatableTopicConfig(name=setting, value=value))
    if not problem:
        try:
            with visit.client() as client:
                create(
                    client,
                    name,
                    partitions=int(given.get("partitions") or -1),
                    replicas=int(given.get("replicas") or -1),
                    configs=configs,
                )
            return visit.done(f"/topics/{segment(name)}", f"Created topic {name}.")
        except ClientError as error:
            problem = str(error)
    return visit.render("create_topic.html", 400, problem=problem, given=given)


def _wrong_number(given: dict[str, str], name: str) -> str:
    text = given.get(name, "")
    if not text or (text.isascii() and text.isdigit() and 0 < int(text) < 2**31):
        return ""
    return f"The number of {name} is a number, or left out; not {text!r}."
