"""DescribeProducers 0: the producers that a partition remembers, with their epochs and sequences (KIP-664).

- Only the leader knows them; others say NOT_LEADER_OR_FOLLOWER.
- `current_txn_start_offset` is -1 for a producer without an open transaction.
- A bad topic name is INVALID_TOPIC_EXCEPTION for each of its partitions.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from penstock.broker.acl import Operation, Resource
from penstock.broker.partitions import Asked, led_partition, made_ready, ready
from penstock.metadata.names import topic_name_problem
from penstock.metadata.refusal import Refusal
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
    from penstock.metadata.image import ClusterImage
    from penstock.wire.exchange import Request

Response = DescribeProducersResponse


def handle(
    broker: Broker, request: Request, message: DescribeProducersRequest
) -> Response | Awaitable[Response]:
    asked = [(topic.name, topic.partition_indexes) for topic in message.topics]
    if ready(broker, asked):
        return _answer(broker, broker.image, request, message)
    return _answer_later(broker, request, message, asked)


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
    broker: Broker, request: Request, message: DescribeProducersRequest, asked: Asked
) -> Response:
    return _answer(broker, await made_ready(broker, asked), request, message)


def _answer(
    broker: Broker, image: ClusterImage, request: Request, message: DescribeProducersRequest
) -> Response:
    topics = []
    for topic in message.topics:
        refusal = _topic_refusal(broker, image, request, topic)
        partitions = [
            _producers(broker, image, topic.name, index)
            if refusal is None
            else PartitionResponse(
                partition_index=index, error_code=refusal.code, error_message=refusal.message
            )
            for index in topic.partition_indexes
        ]
        topics.append(TopicResponse(name=topic.name, partitions=partitions))
    return DescribeProducersResponse(topics=topics)


def _topic_refusal(
    broker: Broker, image: ClusterImage, request: Request, topic: TopicRequest
) -> Refusal | None:
    fault = topic_name_problem(topic.name)
    if fault is not None:
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    if not broker.authorized(request.session, Operation.READ, Resource.TOPIC, topic.name):
        return Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
    if topic.name not in image.topics:
        return Refusal(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
        )
    return None


def _producers(broker: Broker, image: ClusterImage, topic: str, index: int) -> PartitionResponse:
    partition = led_partition(broker, image, topic, index)
    if isinstance(partition, ErrorCode):
        return PartitionResponse(partition_index=index, error_code=partition)
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
            for view in partition.producers()
        ],
    )
