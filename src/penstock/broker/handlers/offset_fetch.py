"""OffsetFetch 0-10: where a group would resume.

- A group that nobody has heard of is no error: NONE, and -1 for each partition. Every partition that was
  asked for is in the answer, whatever happened, with its own code.
- `topics` null (2 and later) asks for everything that the group has committed. Many groups at once from
  version 8 on (KIP-709); topics by id from version 10 on (UNKNOWN_TOPIC_ID).
- `require_stable` (7 and later, KIP-447): UNSTABLE_OFFSET_COMMIT for a partition that an open transaction
  may yet commit. Member epochs (9 and later, KIP-848): UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH.
- An error of the whole group is the code of the answer or of the group from version 2 on, and also that of
  each partition, so that clients of any version see it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from penstock.broker.rights import DESCRIBE_GROUP, DESCRIBE_TOPIC
from penstock.wire.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.freshness import Named
    from penstock.broker.rights import Permit
    from penstock.broker.shards.live import LiveShard
    from penstock.groups.shard import GroupShard
    from penstock.metadata.image import ClusterImage
    from penstock.wire.exchange import Request

CODE_SINCE = 2
MANY_SINCE = 8
IDS_SINCE = 10
NO_OFFSET = -1


def handle(
    broker: Broker, request: Request, message: OffsetFetchRequest, permit: Permit
) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
    groups = _groups(message, request.api_version)
    coordinator = broker.services.groups
    shards = [
        permit.refusal(DESCRIBE_GROUP, group.group_id) or coordinator.shard(group.group_id)
        for group in groups
    ]
    if any(shard is not DESCRIBE_GROUP.code and isinstance(shard, ErrorCode) for shard in shards):
        return _fetch_later(broker, request, message, groups, permit)
    return _answer(broker, request, message, groups, shards, permit)


def named(_broker: Broker, message: OffsetFetchRequest, version: int) -> Named:
    """A name that is not known is no error: the group may have offsets of a topic that is gone."""
    if version < IDS_SINCE:
        return ()
    return ((topic.topic_id, 0) for group in message.groups for topic in group.topics or ())


async def _fetch_later(
    broker: Broker,
    request: Request,
    message: OffsetFetchRequest,
    groups: list[OffsetFetchRequestGroup],
    permit: Permit,
) -> OffsetFetchResponse:
    refusals = [permit.refusal(DESCRIBE_GROUP, group.group_id) for group in groups]
    permitted = [group.group_id for group, refusal in zip(groups, refusals, strict=True) if refusal is None]
    found = iter(await broker.services.groups.found_together(permitted))
    shards = [refusal or next(found) for refusal in refusals]
    return _answer(broker, request, message, groups, shards, permit)


def _groups(message: OffsetFetchRequest, version: int) -> list[OffsetFetchRequestGroup]:
    """In the form of the newest versions."""
    if version >= MANY_SINCE:
        return message.groups
    topics = None
    if message.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in message.topics
        ]
    return [OffsetFetchRequestGroup(group_id=message.group_id, topics=topics)]


def _answer(
    broker: Broker,
    request: Request,
    message: OffsetFetchRequest,
    groups: list[OffsetFetchRequestGroup],
    shards: list[LiveShard[GroupShard] | ErrorCode],
    permit: Permit,
) -> OffsetFetchResponse:
    found = []
    whole: dict[tuple[str, str | None, int], OffsetFetchResponseGroup] = {}
    """What each group has, for those that ask for all of it: however often one does."""
    for group, shard in zip(groups, shards, strict=True):
        key = group.group_id, group.member_id, group.member_epoch
        answer = whole.get(key) if group.topics is None else None
        if answer is None:
            answer = _fetch(broker, request, message, group, shard, permit)
            if group.topics is None:
                whole[key] = answer
        found.append(answer)
    if request.api_version >= MANY_SINCE:
        return OffsetFetchResponse(groups=found)
    return _of_one(found[0])


def _fetch(
    broker: Broker,
    request: Request,
    message: OffsetFetchRequest,
    group: OffsetFetchRequestGroup,
    shard: LiveShard[GroupShard] | ErrorCode,
    permit: Permit,
) -> OffsetFetchResponseGroup:
    if isinstance(shard, ErrorCode):
        if shard is DESCRIBE_GROUP.code and request.api_version >= CODE_SINCE:
            # Who may not see the group is not told whether its topics exist.
            return OffsetFetchResponseGroup(group_id=group.group_id, error_code=shard)
        return group_refused(group, shard)
    by_id = request.api_version >= IDS_SINCE
    if by_id:
        for asked in group.topics or ():
            asked.name = broker.image.names.get(asked.topic_id, "")
    answer = shard.shard.fetch_offsets(group, require_stable=message.require_stable)
    if answer.error_code != ErrorCode.NONE:
        return group_refused(group, ErrorCode(answer.error_code))
    if group.topics is None:
        if by_id:
            answer.topics = _with_ids(broker.image, answer.topics)
        answer.topics = [topic for topic in answer.topics if permit.sees(DESCRIBE_TOPIC, topic.name)]
        return answer
    for topic in answer.topics:
        if by_id and not topic.name:
            _refuse_all(topic, ErrorCode.UNKNOWN_TOPIC_ID)
        elif not permit.allows(DESCRIBE_TOPIC, topic.name):
            _refuse_all(topic, DESCRIBE_TOPIC.code)
    return answer


def _with_ids(
    image: ClusterImage, topics: list[OffsetFetchResponseTopics]
) -> list[OffsetFetchResponseTopics]:
    """Of everything that a group has, topics that are gone are left out: they have no id to go by."""
    there = [topic for topic in topics if topic.name in image.topics]
    for topic in there:
        topic.topic_id = image.topics[topic.name].id
    return there


def _refuse_all(topic: OffsetFetchResponseTopics, code: ErrorCode) -> None:
    topic.partitions = [_refused_partition(p.partition_index, code) for p in topic.partitions]


def _refused_partition(index: int, code: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(partition_index=index, committed_offset=NO_OFFSET, error_code=code)


def group_refused(group: OffsetFetchRequestGroup, code: ErrorCode) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(
        group_id=group.group_id,
        error_code=code,
        topics=[
            OffsetFetchResponseTopics(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[_refused_partition(index, code) for index in topic.partition_indexes],
            )
            for topic in group.topics or ()
        ],
    )


def _of_one(group: OffsetFetchResponseGroup) -> OffsetFetchResponse:
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=p.partition_index,
                        committed_offset=p.committed_offset,
                        committed_leader_epoch=p.committed_leader_epoch,
                        metadata=p.metadata,
                        error_code=p.error_code,
                    )
                    for p in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )


def refused(message: OffsetFetchRequest, code: ErrorCode) -> OffsetFetchResponse:
    """Either form: what the version does not have is left at its default and not written."""
    if message.groups:
        return OffsetFetchResponse(groups=[group_refused(group, code) for group in message.groups])
    return _of_one(group_refused(_groups(message, 0)[0], code))
