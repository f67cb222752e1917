"""DescribeProducers 0: the producers that a partition remembers, with their epochs and sequences (KIP-664).

- The leader knows them. Another replica tells what the leader last settled (`topics.replicas`), as a follower
  of Kafka tells what it has; KAFKA_STORAGE_ERROR if that cannot be read. Who is no replica says
  NOT_LEADER_OR_FOLLOWER.
- `current_txn_start_offset` is -1 for a producer without an open transaction.
- A bad topic name is INVALID_TOPIC_EXCEPTION for each of its partitions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from penstock.broker.rights import READ_TOPIC
from penstock.broker.topics.partitions import led_partition
from penstock.broker.topics.replicas import batched
from penstock.metadata.image import PartitionKey
from penstock.metadata.names import topic_name_problem
from penstock.metadata.refusal import Refusal
from penstock.storage.ledger.answers import ProducerView, producer_views
from penstock.storage.stores.objects import StoreError
from penstock.wire.api.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.freshness import Named
    from penstock.broker.rights import Permit
    from penstock.metadata.image import ClusterImage, ManifestRef
    from penstock.wire.exchange import Request

Response = DescribeProducersResponse
States = dict[PartitionKey, "list[ProducerView] | ErrorCode"]
"""What is known of partitions that are led elsewhere."""

MANIFESTS_AT_ONCE = 64
"""So many are in memory at once, however many partitions are asked for."""


def handle(
    broker: Broker, request: Request, message: DescribeProducersRequest, permit: Permit
) -> Response | Awaitable[Response]:
    elsewhere = _led_elsewhere(broker, message)
    if elsewhere:
        return _answer_later(broker, message, permit, elsewhere)
    return _answer(broker, broker.image, message, permit, {})


def named(_broker: Broker, message: DescribeProducersRequest, _version: int) -> Named:
    return ((topic.name, index) for topic in message.topics for index in topic.partition_indexes)


def refused(message: DescribeProducersRequest, code: ErrorCode) -> Response:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    PartitionResponse(partition_index=index, error_code=code)
                    for index in topic.partition_indexes
                ],
            )
            for topic in message.topics
        ]
    )


async def _answer_later(
    broker: Broker,
    message: DescribeProducersRequest,
    permit: Permit,
    refs: dict[PartitionKey, ManifestRef | None],
) -> Response:
    image = broker.image
    replicas = broker.services.replicas
    states: States = {}
    for some in batched(refs.items(), MANIFESTS_AT_ONCE):
        states.update(dict.fromkeys((key for key, _ref in some), ErrorCode.KAFKA_STORAGE_ERROR))
        with contextlib.suppress(StoreError):
            found = await replicas.manifests(ref for _key, ref in some if ref is not None)
            for key, ref in some:
                if ref is None:
                    states[key] = []
                elif ref in found:
                    states[key] = producer_views(found[ref].producers)
    return _answer(broker, image, message, permit, states)


def _led_elsewhere(
    broker: Broker, message: DescribeProducersRequest
) -> dict[PartitionKey, ManifestRef | None]:
    """Where the state lies of those partitions that this broker is a replica of and does not lead."""
    image = broker.image
    replicas = broker.services.replicas
    found: dict[PartitionKey, ManifestRef | None] = {}
    for asked in message.topics:
        topic = image.topics.get(asked.name)
        for index in asked.partition_indexes:
            if topic is None or not 0 <= index < len(topic.partitions):
                continue
            info = topic.partitions[index]
            if info.leader != broker.broker_id and replicas.is_replica(image, info):
                found[topic.id, index] = info.manifest
    return found


def _answer(
    broker: Broker,
    image: ClusterImage,
    message: DescribeProducersRequest,
    permit: Permit,
    states: States,
) -> Response:
    topics = []
    for topic in message.topics:
        refusal = _topic_refusal(image, topic, permit)
        partitions = [
            _producers(broker, image, topic.name, index, states)
            if refusal is None
            else PartitionResponse(
                partition_index=index, error_code=refusal.code, error_message=refusal.message
            )
            for index in topic.partition_indexes
        ]
        topics.append(TopicResponse(name=topic.name, partitions=partitions))
    return DescribeProducersResponse(topics=topics)


def _topic_refusal(image: ClusterImage, topic: TopicRequest, permit: Permit) -> Refusal | None:
    fault = topic_name_problem(topic.name)
    if fault is not None:
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    if not permit.allows(READ_TOPIC, topic.name):
        return Refusal(READ_TOPIC.code, "Topic authorization failed.")
    if topic.name not in image.topics:
        return Refusal(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
        )
    return None


def _producers(
    broker: Broker, image: ClusterImage, topic: str, index: int, states: States
) -> PartitionResponse:
    partition = led_partition(broker, image, topic, index)
    views: list[ProducerView] | ErrorCode
    if not isinstance(partition, ErrorCode):
        views = partition.producers()
    elif topic in image.topics:
        views = states.get((image.topics[topic].id, index), partition)
    else:
        views = partition
    if isinstance(views, ErrorCode):
        return PartitionResponse(partition_index=index, error_code=views)
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=view.producer_id,
                producer_epoch=view.producer_epoch,
                last_sequence=view.last_sequence,
                last_timestamp=view.last_timestamp,
                coordinator_epoch=view.coordinator_epoch,
                current_txn_start_offset=view.current_txn_start_offset,
            )
            for view in views
        ],
    )
