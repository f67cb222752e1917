"""DescribeTopicPartitions 0: partitions of many topics, in pages (KIP-966).

- Topics are answered in the order of their names, all of them if none are named, from `cursor` on. At most
  `response_partition_limit` partitions, and never more than 2000 (Kafka's default of
  `max.request.partition.size.limit`), are in one answer; `next_cursor` says where the next one starts and
  is null at the end.
- With named topics the cursor must name one of them, else INVALID_REQUEST; a negative partition in it
  likewise. A partition beyond the end of the topic gives the topic without partitions.
- A name that does not exist is UNKNOWN_TOPIC_OR_PARTITION, one that cannot be INVALID_TOPIC_EXCEPTION.
  Topics are never created.
- Eligible leader replicas are none: any live broker can lead, whatever it led before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.operations import topic_operations
from penstock.broker.rights import DESCRIBE_TOPIC
from penstock.broker.topics.names import is_internal
from penstock.broker.topics.placements import Placements
from penstock.metadata.names import topic_name_problem
from penstock.wire.api.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.metadata.image import ClusterImage, TopicInfo
    from penstock.wire.exchange import Request

PARTITIONS_MAX = 2000

Response = DescribeTopicPartitionsResponse


def handle(
    broker: Broker, request: Request, message: DescribeTopicPartitionsRequest, permit: Permit
) -> Response:
    if not _cursor_fits(message):
        return refused(message, ErrorCode.INVALID_REQUEST)
    return _answer(broker.image, request.session.listener, message, permit)


def refused(message: DescribeTopicPartitionsRequest, code: ErrorCode) -> Response:
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(name=topic.name, error_code=code) for topic in message.topics
        ]
    )


def _cursor_fits(message: DescribeTopicPartitionsRequest) -> bool:
    cursor = message.cursor
    if cursor is None:
        return True
    named = not message.topics or any(topic.name == cursor.topic_name for topic in message.topics)
    return named and cursor.partition_index >= 0


def _answer(
    image: ClusterImage, listener: str, message: DescribeTopicPartitionsRequest, permit: Permit
) -> Response:
    cursor = message.cursor
    everything = not message.topics
    first = "" if cursor is None else cursor.topic_name
    names = sorted(
        {
            name
            for name in (image.topics if everything else (topic.name for topic in message.topics))
            if name >= first
        }
    )
    placements = Placements(image, listener)
    remaining = max(min(PARTITIONS_MAX, message.response_partition_limit), 1)
    described: list[DescribeTopicPartitionsResponseTopic] = []
    hidden: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor = None
    for name in names:
        if not (permit.sees if everything else permit.allows)(DESCRIBE_TOPIC, name):
            if not everything:
                hidden.append(_error(name, DESCRIBE_TOPIC.code))
            continue
        if next_cursor is not None:
            continue
        if remaining == 0:
            next_cursor = Cursor(topic_name=name, partition_index=0)
            continue
        topic = image.topics.get(name)
        if topic is None:
            described.append(_error(name, _unknown(name), internal=is_internal(name)))
            continue
        start = 0 if cursor is None or name != first else cursor.partition_index
        end = min(len(topic.partitions), start + remaining)
        described.append(_topic(placements, topic, start, end))
        remaining -= max(end - start, 0)
        if end < len(topic.partitions):
            next_cursor = Cursor(topic_name=name, partition_index=end)
    for entry in described:
        entry.topic_authorized_operations = topic_operations(permit, entry.name or "")
    return DescribeTopicPartitionsResponse(topics=[*described, *hidden], next_cursor=next_cursor)


def _unknown(name: str) -> ErrorCode:
    if topic_name_problem(name) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.INVALID_TOPIC_EXCEPTION


def _error(name: str, code: ErrorCode, *, internal: bool = False) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=code, name=name, is_internal=internal)


def _topic(
    placements: Placements, topic: TopicInfo, start: int, end: int
) -> DescribeTopicPartitionsResponseTopic:
    partitions = []
    for index in range(start, end):
        where = placements.of(topic.partitions[index])
        partitions.append(
            DescribeTopicPartitionsResponsePartition(
                partition_index=index,
                leader_id=where.leader,
                leader_epoch=where.leader_epoch,
                replica_nodes=where.replicas,
                isr_nodes=where.isr,
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=where.offline,
            )
        )
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name, topic_id=topic.id, is_internal=is_internal(topic.name), partitions=partitions
    )
