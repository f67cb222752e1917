"""`penstock topics`: list, create, describe, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from penstock.cli.client import AnswerError, Client, ClientError
from penstock.cli.options import cluster_options, connected
from penstock.cli.output import say, show, wants_json
from penstock.wire.api.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.api.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from penstock.wire.api.metadata import MetadataResponseTopic
from penstock.wire.uuids import uuid_text

TIMEOUT_MS = 30_000


@click.group()
def topics() -> None:
    """Look at topics, create and delete them."""


@topics.command("list")
@cluster_options
@click.option("--internal", is_flag=True, help="Show internal topics too.")
def list_topics(bootstrap: str, as_json: bool, internal: bool) -> None:
    """List the topics of the cluster."""
    with connected(bootstrap) as client:
        found = sorted(client.metadata().topics, key=lambda topic: topic.name or "")
    rows = [
        {
            "name": topic.name,
            "partitions": len(topic.partitions),
            "replicas": max((len(one.replica_nodes) for one in topic.partitions), default=0),
            "id": uuid_text(topic.topic_id),
        }
        for topic in found
        if internal or not topic.is_internal
    ]
    columns = {"name": "TOPIC", "partitions": "PARTITIONS", "replicas": "REPLICAS", "id": "ID"}
    show(rows, columns, as_json=wants_json(as_json))


@topics.command("create")
@cluster_options
@click.argument("name")
@click.option("--partitions", type=int, default=-1, help="How many; the broker's default if not given.")
@click.option("--replicas", type=int, default=-1, help="Length of the failover order.")
@click.option("--config", "configs", metavar="NAME=VALUE", multiple=True, help="A setting of the topic.")
def create_topic(
    bootstrap: str, as_json: bool, name: str, partitions: int, replicas: int, configs: tuple[str, ...]
) -> None:
    """Create a topic."""
    with connected(bootstrap) as client:
        settings = [_config(text) for text in configs]
        result = create(client, name, partitions=partitions, replicas=replicas, configs=settings)
        count = result.num_partitions if result.num_partitions > 0 else len(client.partitions(name))
    plural = "partition" if count == 1 else "partitions"
    fields = {"created": name, "partitions": count, "id": uuid_text(result.topic_id)}
    say(f"Created topic {name} with {count} {plural}.", fields, as_json=wants_json(as_json))


def create(
    client: Client,
    name: str,
    *,
    partitions: int = -1,
    replicas: int = -1,
    configs: Sequence[CreatableTopicConfig] = (),
) -> CreatableTopicResult:
    topic = CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=replicas, configs=list(configs)
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
    (result,) = client.controller().ask(request, CreateTopicsResponse).topics
    if result.error_code:
        raise AnswerError(result.error_code, f"Creating topic {name!r}", result.error_message)
    return result


@topics.command("delete")
@cluster_options
@click.argument("names", nargs=-1, required=True)
def delete_topics(bootstrap: str, as_json: bool, names: tuple[str, ...]) -> None:
    """Delete topics and everything in them."""
    with connected(bootstrap) as client:
        delete(client, names)
    sentence = f"Deleted topic{'s' if len(names) > 1 else ''} {', '.join(names)}."
    say(sentence, {"deleted": list(names)}, as_json=wants_json(as_json))


def delete(client: Client, names: Sequence[str]) -> None:
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in names], topic_names=list(names), timeout_ms=TIMEOUT_MS
    )
    controller = client.controller()
    if controller.version_of(request) >= 6:
        request.topic_names = []
    else:
        request.topics = []
    for result in controller.ask(request, DeleteTopicsResponse).responses:
        if result.error_code:
            raise AnswerError(result.error_code, f"Deleting topic {result.name!r}", result.error_message)


@topics.command("describe")
@cluster_options
@click.argument("name")
def describe_topic(bootstrap: str, as_json: bool, name: str) -> None:
    """Show the partitions of a topic: leaders, offsets, failover order."""
    with connected(bootstrap) as client:
        (topic,) = client.metadata([name]).topics
        if topic.error_code:
            raise AnswerError(topic.error_code, f"The question for topic {name!r}")
        rows = _partition_rows(client, topic)
    columns = {
        "partition": "PARTITION",
        "leader": "LEADER",
        "leader_epoch": "EPOCH",
        "replicas": "REPLICAS",
        "isr": "ALIVE",
        "start_offset": "START",
        "end_offset": "END",
    }
    show(rows, columns, as_json=wants_json(as_json))


def _partition_rows(client: Client, topic: MetadataResponseTopic) -> list[dict[str, Any]]:
    from penstock.cli.records import EARLIEST, LATEST, list_offset

    rows = []
    name = topic.name or ""
    for one in sorted(topic.partitions, key=lambda partition: partition.partition_index):
        start: int | None = None
        end: int | None = None
        try:
            start = list_offset(client, name, one.partition_index, EARLIEST)
            end = list_offset(client, name, one.partition_index, LATEST)
        except ClientError as error:
            click.echo(f"Partition {one.partition_index} does not answer: {error}", err=True)
        rows.append(
            {
                "partition": one.partition_index,
                "leader": one.leader_id,
                "leader_epoch": one.leader_epoch,
                "replicas": one.replica_nodes,
                "isr": one.isr_nodes,
                "start_offset": start,
                "end_offset": end,
            }
        )
    return rows


def _config(text: str) -> CreatableTopicConfig:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--config takes NAME=VALUE, not {text!r}.")
    return CreatableTopicConfig(name=name, value=value)
