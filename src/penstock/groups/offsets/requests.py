"""OffsetCommit, OffsetFetch, OffsetDelete and TxnOffsetCommit.

This module knows topics by name: its callers translate topic ids first. Every partition that was asked about
is in the answer, with its own code.
"""

from collections.abc import Iterable

from penstock.groups.classic.group import State
from penstock.groups.classic.joining import ClassicJoin
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.core import Context, GroupError, TypedRecord
from penstock.groups.offsets.committed import Committed, Place
from penstock.groups.offsets.writing import NO_TIMESTAMP, OffsetWriting, offset_key
from penstock.groups.records import OffsetCommitValue
from penstock.log.guards import Guard
from penstock.metadata.image import PartitionKey
from penstock.shards.shard import Producer, Ticket, error_after_append
from penstock.wire.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from penstock.wire.api.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from penstock.wire.api.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from penstock.wire.api.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import ZERO_UUID
from penstock.wire.texts import java_length

NO_OFFSET = -1
NO_RETENTION = -1
TIME_MAX = 2**63 - 1


def commit_refused(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    """The same code for every partition: the response has no code of its own."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=p.partition_index, error_code=code)
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def txn_commit_refused(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=p.partition_index, error_code=code)
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


class OffsetRequests:
    __slots__ = ("_c", "_join", "_writing")

    def __init__(self, context: Context, join: ClassicJoin, writing: OffsetWriting) -> None:
        self._c = context
        self._join = join
        self._writing = writing

    # Commit

    def commit(self, request: OffsetCommitRequest, version: int, ticket: Ticket) -> None:
        self._check_commit(request, version)
        now = self._c.now.wall_ms
        expires = NO_TIMESTAMP
        if request.retention_time_ms != NO_RETENTION:
            expires = min(now + request.retention_time_ms, TIME_MAX)
        records: list[TypedRecord] = []
        response = OffsetCommitResponse()
        for topic in request.topics:
            answer = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
            response.topics.append(answer)
            topic_id = self._topic_id(topic.name)
            for asked in topic.partitions:
                code = self._metadata_code(asked.committed_metadata)
                answer.partitions.append(
                    OffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=code)
                )
                if code is not ErrorCode.NONE:
                    continue
                stamped = asked.commit_timestamp
                value = OffsetCommitValue(
                    offset=asked.committed_offset,
                    leader_epoch=asked.committed_leader_epoch,
                    metadata=asked.committed_metadata or "",
                    commit_timestamp=now if stamped == NO_TIMESTAMP else stamped,
                    expire_timestamp=expires,
                    topic_id=topic_id,
                )
                records.append((offset_key(request.group_id, topic.name, asked.partition_index), value))
        self._writing.write(
            records,
            lambda: self._c.answer(ticket, response),
            lambda code: self._c.answer(ticket, commit_refused(request, error_after_append(code))),
            asked=True,
        )

    def _check_commit(self, request: OffsetCommitRequest, version: int) -> None:
        group = self._c.groups.get(request.group_id)
        generation = request.generation_id_or_member_epoch
        if group is None:
            if generation >= 0:
                # The client's group is gone; older ones know only how to rejoin.
                new = version >= 9
                raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND if new else ErrorCode.ILLEGAL_GENERATION)
            return
        if isinstance(group, ConsumerGroup):
            group.check_commit(
                request.member_id,
                request.group_instance_id,
                generation,
                transactional=False,
                version=version,
                partitions=self._partitions(request.topics),
            )
            return
        group.check_commit(request.member_id, request.group_instance_id, generation, transactional=False)
        member = group.members.get(request.member_id)
        if member is not None and group.state in (State.STABLE, State.PREPARING):
            self._join.expect_heartbeat(group, member.id, member.session_timeout_ms)

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, ticket: Ticket, guard: Guard | None
    ) -> None:
        """Offsets that take effect when the transaction of this producer does. `guard`: what lets them into
        the log if they are the first of it there."""
        self._check_transactional(request)
        now = self._c.now.wall_ms
        records: list[TypedRecord] = []
        response = TxnOffsetCommitResponse()
        for topic in request.topics:
            answer = TxnOffsetCommitResponseTopic(name=topic.name)
            response.topics.append(answer)
            topic_id = self._topic_id(topic.name)
            for asked in topic.partitions:
                code = self._metadata_code(asked.committed_metadata)
                answer.partitions.append(
                    TxnOffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=code)
                )
                if code is not ErrorCode.NONE:
                    continue
                value = OffsetCommitValue(
                    offset=asked.committed_offset,
                    leader_epoch=asked.committed_leader_epoch,
                    metadata=asked.committed_metadata or "",
                    commit_timestamp=now,
                    topic_id=topic_id,
                )
                records.append((offset_key(request.group_id, topic.name, asked.partition_index), value))
        self._writing.write(
            records,
            lambda: self._c.answer(ticket, response),
            lambda code: self._c.answer(ticket, txn_commit_refused(request, error_after_append(code))),
            Producer(request.producer_id, request.producer_epoch, guard),
            asked=True,
        )

    def _check_transactional(self, request: TxnOffsetCommitRequest) -> None:
        group = self._c.groups.get(request.group_id)
        if group is None:
            if request.generation_id >= 0:
                raise GroupError(ErrorCode.ILLEGAL_GENERATION)
        elif isinstance(group, ConsumerGroup):
            try:
                group.check_commit(
                    request.member_id,
                    request.group_instance_id,
                    request.generation_id,
                    transactional=True,
                    version=0,
                    partitions=self._partitions(request.topics),
                )
            except GroupError as error:
                if error.code is ErrorCode.STALE_MEMBER_EPOCH:
                    raise GroupError(ErrorCode.ILLEGAL_GENERATION) from None
                raise
        else:
            group.check_commit(
                request.member_id, request.group_instance_id, request.generation_id, transactional=True
            )

    def _metadata_code(self, metadata: str | None) -> ErrorCode:
        # Kafka counts characters as Java does, whatever the name of the setting says.
        most = self._c.settings.offset_metadata_max_bytes
        too_large = metadata is not None and java_length(metadata) > most
        return ErrorCode.OFFSET_METADATA_TOO_LARGE if too_large else ErrorCode.NONE

    def _topic_id(self, name: str) -> bytes:
        topic = self._c.image.topics.get(name)
        return ZERO_UUID if topic is None else topic.id

    def _partitions(
        self, topics: Iterable[OffsetCommitRequestTopic] | Iterable[TxnOffsetCommitRequestTopic]
    ) -> Iterable[PartitionKey]:
        for topic in topics:
            topic_id = self._topic_id(topic.name)
            for partition in topic.partitions:
                yield topic_id, partition.partition_index

    # Fetch

    def fetch(self, request: OffsetFetchRequestGroup, *, require_stable: bool) -> OffsetFetchResponseGroup:
        """What each partition asked for would resume from; all that there are if `topics` is None."""
        group_id = request.group_id
        group = self._c.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            group.check_fetch(request.member_id, request.member_epoch)
        committed = self._c.offsets.of_group(group_id)
        answer = OffsetFetchResponseGroup(group_id=group_id)
        if request.topics is None:
            asked = [(name, ZERO_UUID, list(partitions)) for name, partitions in committed.items()]
        else:
            asked = [(t.name, t.topic_id, t.partition_indexes) for t in request.topics]
        for name, topic_id, indexes in asked:
            found = committed.get(name, {})
            answer.topics.append(
                OffsetFetchResponseTopics(
                    name=name,
                    topic_id=topic_id,
                    partitions=[
                        _unstable(index)
                        if require_stable and self._is_unstable((group_id, name, index))
                        else _fetched(index, found.get(index))
                        for index in indexes
                    ],
                )
            )
        return answer

    def _is_unstable(self, place: Place) -> bool:
        return self._c.offsets.is_pending(*place) or place in self._writing.entering

    # Delete

    def delete(self, request: OffsetDeleteRequest, ticket: Ticket) -> None:
        group = self._c.groups.get(request.group_id)
        if group is None:
            raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND)
        group.check_offset_delete()
        records: list[TypedRecord] = []
        response = OffsetDeleteResponse()
        for topic in request.topics:
            subscribed = group.is_subscribed_to(topic.name)
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
            response.topics.append(
                OffsetDeleteResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetDeleteResponsePartition(partition_index=p.partition_index, error_code=code)
                        for p in topic.partitions
                    ],
                )
            )
            if not subscribed:
                records.extend(
                    (offset_key(request.group_id, topic.name, p.partition_index), None)
                    for p in topic.partitions
                    if self._exists(request.group_id, topic.name, p.partition_index)
                )
        self._writing.write(
            records,
            lambda: self._c.answer(ticket, response),
            lambda failure: self._c.answer(
                ticket, OffsetDeleteResponse(error_code=error_after_append(failure))
            ),
        )

    def _exists(self, group_id: str, topic: str, partition: int) -> bool:
        offsets = self._c.offsets
        return offsets.get(group_id, topic, partition) is not None or offsets.is_pending(
            group_id, topic, partition
        )


def _fetched(index: int, offset: Committed | None) -> OffsetFetchResponsePartitions:
    if offset is None:
        return OffsetFetchResponsePartitions(partition_index=index, committed_offset=NO_OFFSET)
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
    )


def _unstable(index: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index, committed_offset=NO_OFFSET, error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT
    )
