"""OffsetForLeaderEpoch 0-4: where a leader epoch ended, so that clients notice a truncated log (KIP-320).

- The answer is the largest epoch that is not newer than the one asked for and the offset where it ended;
  epoch and offset are -1 where nothing is known, which is not an error.
- From version 2 the client says which epoch it believes to be current: FENCED_LEADER_EPOCH if this broker
  knows a newer one, UNKNOWN_LEADER_EPOCH if it knows only older ones.
- Only the leader answers; others say NOT_LEADER_OR_FOLLOWER. `replica_id` is not looked at: there are no
  followers that copy from a leader.
- Partitions that are repeated are answered repeatedly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.rights import DESCRIBE_EPOCHS
from penstock.broker.topics.partitions import led_partition
from penstock.wire.api.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.freshness import Named
    from penstock.broker.rights import Permit
    from penstock.metadata.image import ClusterImage
    from penstock.wire.exchange import Request

Response = OffsetForLeaderEpochResponse


def handle(
    broker: Broker, request: Request, message: OffsetForLeaderEpochRequest, permit: Permit
) -> Response:
    image = broker.image
    topics = []
    for topic in message.topics:
        if permit.allows(DESCRIBE_EPOCHS, topic.topic):
            results = [_end(broker, image, topic.topic, wanted) for wanted in topic.partitions]
        else:
            results = [_refused(wanted, DESCRIBE_EPOCHS.code) for wanted in topic.partitions]
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=results))
    return OffsetForLeaderEpochResponse(topics=topics)


def named(_broker: Broker, message: OffsetForLeaderEpochRequest, _version: int) -> Named:
    return ((topic.topic, wanted.partition) for topic in message.topics for wanted in topic.partitions)


def refused(message: OffsetForLeaderEpochRequest, code: ErrorCode) -> Response:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[_refused(wanted, code) for wanted in topic.partitions]
            )
            for topic in message.topics
        ]
    )


def _end(broker: Broker, image: ClusterImage, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    partition = led_partition(broker, image, topic, wanted.partition, wanted.current_leader_epoch)
    if isinstance(partition, ErrorCode):
        return _refused(wanted, partition)
    end = broker.ledger.end_offset_for_epoch(partition, wanted.leader_epoch)
    return EpochEndOffset(
        partition=wanted.partition, leader_epoch=end.leader_epoch, end_offset=end.end_offset
    )


def _refused(wanted: OffsetForLeaderPartition, code: ErrorCode) -> EpochEndOffset:
    return EpochEndOffset(partition=wanted.partition, error_code=code)
