"""OffsetDelete 0: forget offsets that a group has committed (KIP-496).

- GROUP_SUBSCRIBED_TO_TOPIC for the partitions of a topic that a member reads; GROUP_ID_NOT_FOUND, and
  NON_EMPTY_GROUP for a group with members whose subscriptions nobody can know. Deleting what is not there
  is no error. Answered when the tombstones are durable.
- UNKNOWN_TOPIC_OR_PARTITION for what does not exist: its offsets go with it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from penstock.broker.groups.requests import mapped
from penstock.broker.rights import READ_TOPIC
from penstock.groups.shard import GroupShard
from penstock.wire.api.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.freshness import Named
    from penstock.broker.rights import Permit
    from penstock.wire.exchange import Request


def handle(
    broker: Broker, request: Request, message: OffsetDeleteRequest, permit: Permit
) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
    image = broker.image
    codes: dict[tuple[str, int], ErrorCode] = {}
    for topic in message.topics:
        known = image.topics.get(topic.name)
        refusal = permit.refusal(READ_TOPIC, topic.name)
        for partition in topic.partitions:
            index = partition.partition_index
            if refusal is not None:
                codes[topic.name, index] = refusal
            elif known is None or not 0 <= index < len(known.partitions):
                codes[topic.name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    wanted = OffsetDeleteRequest(
        group_id=message.group_id,
        topics=[
            OffsetDeleteRequestTopic(
                name=t.name, partitions=[p for p in t.partitions if (t.name, p.partition_index) not in codes]
            )
            for t in message.topics
        ],
    )
    answer = broker.services.groups.call(
        message.group_id,
        OffsetDeleteResponse,
        lambda code: OffsetDeleteResponse(error_code=code),
        GroupShard.delete_offsets,
        wanted,
    )
    return mapped(answer, lambda found: _merged(message, found, codes))


def named(_broker: Broker, message: OffsetDeleteRequest, _version: int) -> Named:
    return ((topic.name, wanted.partition_index) for topic in message.topics for wanted in topic.partitions)


def _merged(
    message: OffsetDeleteRequest, found: OffsetDeleteResponse, codes: dict[tuple[str, int], ErrorCode]
) -> OffsetDeleteResponse:
    if found.error_code != ErrorCode.NONE:
        return found
    answered = {(t.name, p.partition_index): p.error_code for t in found.topics for p in t.partitions}
    answered.update(codes)
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=t.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=p.partition_index, error_code=answered[t.name, p.partition_index]
                    )
                    for p in t.partitions
                ],
            )
            for t in message.topics
        ]
    )
