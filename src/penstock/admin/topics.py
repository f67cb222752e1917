"""Topics: created, deleted, given settings and partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.admin.configs import BROKER
from penstock.client import AnswerError, Client
from penstock.wire.api.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from penstock.wire.api.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.api.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.wire.api.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from penstock.wire.api.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

TIMEOUT_MS = 30_000
TOPIC = 2
"""A topic among the resources that have settings."""
SET, UNSET = 0, 1
"""What is done to a setting."""


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


def delete(client: Client, names: Sequence[str]) -> None:
    for error in delete_each(client, names).values():
        raise error


def delete_each(client: Client, names: Sequence[str]) -> dict[str, AnswerError]:
    """Delete topics; by name, those that were not, and why."""
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in names], topic_names=list(names), timeout_ms=TIMEOUT_MS
    )
    controller = client.controller()
    if controller.version_of(request) >= 6:
        request.topic_names = []
    else:
        request.topics = []
    return {
        result.name or "": AnswerError(
            result.error_code, f"Deleting topic {result.name!r}", result.error_message
        )
        for result in controller.ask(request, DeleteTopicsResponse).responses
        if result.error_code
    }


def alter_configs(
    client: Client, name: str, changes: list[AlterableConfig], dry_run: bool, kind: int = TOPIC
) -> None:
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=dry_run)
    asked = client.broker(int(name)) if kind == BROKER else client.controller()
    (result,) = asked.ask(request, IncrementalAlterConfigsResponse).responses
    if result.error_code:
        whose = f"broker {name}" if kind == BROKER else f"topic {name!r}"
        raise AnswerError(result.error_code, f"Changing settings of {whose}", result.error_message)


def delete_records(client: Client, name: str, before: Mapping[int, int]) -> None:
    """Delete the records before an offset, by partition. Each leader is asked for its own."""
    by_leader: dict[int, list[DeleteRecordsPartition]] = {}
    for partition, offset in before.items():
        asked = DeleteRecordsPartition(partition_index=partition, offset=offset)
        by_leader.setdefault(client.leader_id(name, partition), []).append(asked)
    for leader, partitions in by_leader.items():
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=name, partitions=partitions)], timeout_ms=TIMEOUT_MS
        )
        for topic in client.broker(leader).ask(request, DeleteRecordsResponse).topics:
            for one in topic.partitions:
                if one.error_code:
                    what = f"Deleting records of {name!r} in partition {one.partition_index}"
                    raise AnswerError(one.error_code, what)


def add_partitions(client: Client, name: str, count: int, dry_run: bool) -> None:
    topic = CreatePartitionsTopic(name=name, count=count, assignments=None)
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=dry_run)
    (result,) = client.controller().ask(request, CreatePartitionsResponse).results
    if result.error_code:
        raise AnswerError(result.error_code, f"Adding partitions to topic {name!r}", result.error_message)
