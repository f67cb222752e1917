"""Topics: created, deleted, given settings and partitions."""

from __future__ import annotations

from collections.abc import Sequence

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


def alter_configs(client: Client, name: str, changes: list[AlterableConfig], dry_run: bool) -> None:
    resource = AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=changes)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=dry_run)
    (result,) = client.controller().ask(request, IncrementalAlterConfigsResponse).responses
    if result.error_code:
        raise AnswerError(result.error_code, f"Changing settings of topic {name!r}", result.error_message)


def add_partitions(client: Client, name: str, count: int, dry_run: bool) -> None:
    topic = CreatePartitionsTopic(name=name, count=count, assignments=None)
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=dry_run)
    (result,) = client.controller().ask(request, CreatePartitionsResponse).results
    if result.error_code:
        raise AnswerError(result.error_code, f"Adding partitions to topic {name!r}", result.error_message)
