"""DescribeProducers 0: the producers that a partition remembers, with their epochs and sequences (KIP-664).

- The leader knows them. Another replica asks it, since a follower of Kafka has what the leader has. If the
  leader does not answer, the replica tells what was last settled (`topics.replicas`), or KAFKA_STORAGE_ERROR
  if that cannot be read. A broker that is no replica says NOT_LEADER_OR_FOLLOWER.
- Each broker that is asked looks at the newest image first, so that two of them never send the question to
  each other.
- `current_txn_start_offset` is -1 for a producer without an open transaction.
- A bad topic name is INVALID_TOPIC_EXCEPTION for each of its partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping
from functools import cache
from typing import TYPE_CHECKING

from penstock.broker.peers.peers import PeerError
from penstock.broker.rights import READ_TOPIC
from penstock.broker.topics.partitions import led_partition
from penstock.broker.topics.replicas import batched
from penstock.metadata.image import PartitionKey
from penstock.metadata.names import topic_name_problem
from penstock.metadata.refusal import Refusal
from penstock.storage.partitions.answers import ProducerView, producer_views
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
    from penstock.broker.rights import Permit
    from penstock.broker.topics.replicas import Replicas
    from penstock.metadata.image import ClusterImage, ManifestRef, PartitionInfo
    from penstock.wire.exchange import Request

Response = DescribeProducersResponse
Elsewhere = dict[PartitionKey, "PartitionInfo"]
States = dict[PartitionKey, "list[ProducerView] | ErrorCode"]
"""What is known of partitions that are led elsewhere."""

LEADER_SECONDS = 2.0
"""How long a leader is waited for."""

MANIFESTS_AT_ONCE = 64
"""So many are in memory at once, however many partitions are asked for."""


def handle(
    broker: Broker, request: Request, message: DescribeProducersRequest, permit: Permit
) -> Response | Awaitable[Response]:
    elsewhere = _led_elsewhere(broker, message)
    if elsewhere:
        return _answer_later(broker, message, permit, elsewhere)
    return _answer(broker, broker.image, message, permit, {})


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
    broker: Broker, message: DescribeProducersRequest, permit: Permit, elsewhere: Elsewhere
) -> Response:
    image = broker.image
    by_leader: dict[int, Elsewhere] = {}
    for key, info in elsewhere.items():
        by_leader.setdefault(info.leader, {})[key] = info
    states: States = {}
    for found in await asyncio.gather(
        *(_ask_leader(broker, image, leader, led) for leader, led in by_leader.items())
    ):
        states.update(found)
    refs = {key: info.manifest for key, info in elsewhere.items() if key not in states}
    states.update(await _settled(broker.services.replicas, refs))
    return _answer(broker, image, message, permit, states)


async def _ask_leader(broker: Broker, image: ClusterImage, leader: int, led: Elsewhere) -> States:
    """What the leader says of its partitions; nothing if it does not answer, or leads them no more."""
    indexes: dict[str, list[int]] = {}
    for topic_id, index in led:
        indexes.setdefault(image.names[topic_id], []).append(index)
    request = DescribeProducersRequest(
        topics=[TopicRequest(name=name, partition_indexes=some) for name, some in indexes.items()]
    )
    try:
        told = await broker.services.peers.ask(
            leader, request, DescribeProducersResponse, seconds=LEADER_SECONDS
        )
    except PeerError:
        return {}
    return {
        (image.topics[topic.name].id, one.partition_index): [
            ProducerView(
                state.producer_id,
                state.producer_epoch,
                state.last_sequence,
                state.last_timestamp,
                state.coordinator_epoch,
                state.current_txn_start_offset,
            )
            for state in one.active_producers
        ]
        for topic in told.topics
        for one in topic.partitions
        if one.error_code == ErrorCode.NONE
    }


async def _settled(replicas: Replicas, refs: Mapping[PartitionKey, ManifestRef | None]) -> States:
    """What the leaders last settled."""
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
    return states


def _led_elsewhere(broker: Broker, message: DescribeProducersRequest) -> Elsewhere:
    """Those partitions that this broker is a replica of and does not lead."""
    image = broker.image
    replicas = broker.services.replicas
    found: Elsewhere = {}
    for asked in message.topics:
        topic = image.topics.get(asked.name)
        for index in asked.partition_indexes:
            if topic is None or not 0 <= index < len(topic.partitions):
                continue
            info = topic.partitions[index]
            if info.leader != broker.broker_id and replicas.is_replica(image, info):
                found[topic.id, index] = info
    return found


def _answer(
    broker: Broker,
    image: ClusterImage,
    message: DescribeProducersRequest,
    permit: Permit,
    states: States,
) -> Response:
    topics = []

    @cache
    def producers(name: str, index: int) -> PartitionResponse:
        return _producers(broker, image, name, index, states)

    for topic in message.topics:
        refusal = _topic_refusal(image, topic, permit)
        partitions = [
            producers(topic.name, index)
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
