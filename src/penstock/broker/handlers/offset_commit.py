"""OffsetCommit 0-10: remember where a group has got to.

- Answered when the offsets are durable in `__consumer_offsets`. Each partition has its own code:
  OFFSET_METADATA_TOO_LARGE, UNKNOWN_TOPIC_OR_PARTITION (UNKNOWN_TOPIC_ID by id), or that of the group for
  all of them: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, STALE_MEMBER_EPOCH, FENCED_INSTANCE_ID,
  REBALANCE_IN_PROGRESS, GROUP_ID_NOT_FOUND.
- Without a generation (-1) anybody may commit to a group that nobody is in: simple consumers,
  administrators. Version 0, which Kafka kept in ZooKeeper, is such a commit.
- Version 1 carries a time for each partition, versions 2 to 4 a retention of their own; from version 9 on
  the generation may be a member epoch (KIP-848); from version 10 on topics go by id.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

import msgspec

from penstock.broker.groups.offset_items import Codes, merged, without
from penstock.broker.groups.requests import mapped
from penstock.broker.rights import READ_TOPIC
from penstock.groups.offsets.requests import commit_refused
from penstock.groups.shard import GroupShard
from penstock.wire.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.freshness import Named
    from penstock.broker.rights import Permit
    from penstock.metadata.image import ClusterImage
    from penstock.wire.exchange import Request

IDS_SINCE = 10


def handle(
    broker: Broker, request: Request, message: OffsetCommitRequest, permit: Permit
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    codes = _refusals(broker.image, request.api_version, message, permit)
    wanted = message if not codes else msgspec.structs.replace(message, topics=without(message.topics, codes))
    if codes and not any(topic.partitions for topic in wanted.topics):
        return merged(commit_refused(message, ErrorCode.NONE), None, codes)
    answer = broker.services.groups.call(
        message.group_id,
        OffsetCommitResponse,
        lambda code: commit_refused(wanted, code),
        GroupShard.commit_offsets,
        wanted,
        request.api_version,
    )
    if not codes:
        return answer
    return mapped(answer, lambda found: merged(commit_refused(message, ErrorCode.NONE), found, codes))


refused = commit_refused


def named(_broker: Broker, message: OffsetCommitRequest, version: int) -> Named:
    for topic in message.topics:
        key = topic.topic_id if version >= IDS_SINCE else topic.name
        for partition in topic.partitions:
            yield key, partition.partition_index


def _refusals(image: ClusterImage, version: int, message: OffsetCommitRequest, permit: Permit) -> Codes:
    """Gives each topic that came by id its name."""
    codes: Codes = {}
    by_id = version >= IDS_SINCE
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for at, topic in enumerate(message.topics):
        found = image.topic_by_id(topic.topic_id) if by_id else image.topics.get(topic.name)
        if by_id and found is not None:
            topic.name = found.name
        refusal = permit.refusal(READ_TOPIC, topic.name)
        for position, partition in enumerate(topic.partitions):
            if found is None and by_id:
                codes[at, position] = unknown
            elif refusal is not None:
                codes[at, position] = refusal
            elif found is None or not 0 <= partition.partition_index < len(found.partitions):
                codes[at, position] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return codes
