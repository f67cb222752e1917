"""Offsets: where partitions begin and end, and what groups have committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.client import AnswerError, Client, ClientError, Connection
from penstock.wire.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.wire.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.wire.api.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse

Place = tuple[str, int]
"""Topic and partition."""
Offsets = dict[Place, int]

EARLIEST = -2
LATEST = -1
CONSUMER = -1
"""Instead of a replica's id. Isolation means something to consumers only."""
NO_GENERATION = -1
# The last versions that ask about one group at a time, and that name topics.
ONE_COORDINATOR, ONE_GROUP, TOPIC_NAMES = 3, 7, 9
ISOLATED = 2
"""The first version of ListOffsets that asks for the last stable offset."""


# -- partitions --------------------------------------------------------------------------------------------


def list_offset(
    client: Client, topic: str, partition: int, timestamp: int, *, committed: bool = False
) -> int:
    """The first offset at or after a time, or EARLIEST or LATEST of one partition."""

    def attempt() -> int:
        asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, max_num_offsets=1)
        request = ListOffsetsRequest(
            replica_id=CONSUMER,
            isolation_level=int(committed),
            topics=[ListOffsetsTopic(name=topic, partitions=[asked])],
        )
        answer = client.leader(topic, partition).ask(request, ListOffsetsResponse)
        (result,) = answer.topics[0].partitions
        if result.error_code:
            raise AnswerError(result.error_code, f"The question for offsets of {topic!r}")
        return (
            result.offset
            if result.offset >= 0 or not result.old_style_offsets
            else result.old_style_offsets[0]
        )

    return client.retry(attempt)


def list_offsets(
    client: Client, places: Iterable[Place], timestamp: int, *, committed: bool = False
) -> Offsets:
    """The same of many partitions, by one request to each leader. Partitions of which nothing can be told at
    the moment are left out: who leads them may change, or nobody does."""
    by_leader: dict[int, dict[str, list[int]]] = {}
    for topic, partition in places:
        try:
            leader = client.leader_id(topic, partition)
        except AnswerError:
            continue
        by_leader.setdefault(leader, {}).setdefault(topic, []).append(partition)
    found: Offsets = {}
    for leader, topics in by_leader.items():
        request = ListOffsetsRequest(
            replica_id=CONSUMER,
            isolation_level=int(committed),
            topics=[
                ListOffsetsTopic(
                    name=name,
                    partitions=[
                        ListOffsetsPartition(partition_index=one, timestamp=timestamp, max_num_offsets=1)
                        for one in some
                    ],
                )
                for name, some in topics.items()
            ],
        )
        try:
            broker = client.broker(leader)
            if committed and broker.version_of(request) < ISOLATED:
                continue
            answer = broker.ask(request, ListOffsetsResponse)
        except ClientError:
            continue
        for told in answer.topics:
            for one in told.partitions:
                if not one.error_code:
                    found[told.name, one.partition_index] = one.offset
    return found


# -- groups ------------------------------------------------------------------------------------------------


def coordinator(client: Client, group: str) -> Connection:
    """The broker that answers for a group now."""

    def look() -> Connection:
        request = FindCoordinatorRequest(key=group)
        answer = client.any().ask(request, FindCoordinatorResponse, newest=ONE_COORDINATOR)
        if answer.error_code:
            raise AnswerError(answer.error_code, f"The question for the coordinator of {group!r}")
        client.metadata([])
        return client.broker(answer.node_id)

    return client.retry(look)


def committed(client: Client, group: str, wanted: Mapping[str, list[int]] | None = None) -> Offsets:
    """The committed offsets of a group: of these partitions, or of all that it has."""
    topics = None
    if wanted is not None:
        topics = [OffsetFetchRequestTopic(name=name, partition_indexes=list(p)) for name, p in wanted.items()]
    return client.retry(lambda: committed_at(coordinator(client, group), group, topics, require_stable=True))


def committed_at(
    broker: Connection,
    group: str,
    topics: list[OffsetFetchRequestTopic] | None = None,
    *,
    require_stable: bool = False,
) -> Offsets:
    """The same, asked of the coordinator that is known already."""
    request = OffsetFetchRequest(group_id=group, topics=topics, require_stable=require_stable)
    answer = broker.ask(request, OffsetFetchResponse, newest=ONE_GROUP)
    what = f"The question for the offsets of {group!r}"
    if answer.error_code:
        raise AnswerError(answer.error_code, what)
    found: Offsets = {}
    for topic in answer.topics:
        for one in topic.partitions:
            if one.error_code:
                raise AnswerError(one.error_code, what)
            if one.committed_offset >= 0:
                found[topic.name, one.partition_index] = one.committed_offset
    return found


def commit(
    client: Client, group: str, offsets: Offsets, *, generation: int = NO_GENERATION, member: str = ""
) -> None:
    """Commit offsets, as a member or, for a group without members, from outside."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, partition), offset in offsets.items():
        entry = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        topics.setdefault(topic, []).append(entry)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        topics=[OffsetCommitRequestTopic(name=name, partitions=found) for name, found in topics.items()],
    )

    def ask() -> None:
        answer = coordinator(client, group).ask(request, OffsetCommitResponse, newest=TOPIC_NAMES)
        for topic in answer.topics:
            for one in topic.partitions:
                if one.error_code:
                    where = f"partition {one.partition_index} of {topic.name!r}"
                    raise AnswerError(one.error_code, f"Committing {where} for group {group!r}")

    client.retry(ask)
