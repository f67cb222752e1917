"""OffsetCommit, OffsetFetch, OffsetDelete, TxnOffsetCommit, and the expiry of offsets.

This module knows topics by name: its callers translate topic ids first. Every partition that was asked about
is in the answer, with its own code.
"""

from collections import Counter
from collections.abc import Iterable

from penstock.groups.classic.group import ClassicGroup, State
from penstock.groups.classic.joining import ClassicJoin
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.core import Context, GroupError, TypedRecord, encoded
from penstock.groups.offsets.committed import NO_PRODUCER, Committed, Place
from penstock.groups.records import OffsetCommitKey, OffsetCommitValue
from penstock.groups.table import Group
from penstock.log.guards import Guard
from penstock.metadata.image import PartitionKey
from penstock.shards.journal import Durable, Failed
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

NO_OFFSET = -1
NO_TIMESTAMP = -1
NO_RETENTION = -1


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
    __slots__ = ("_c", "_committing", "_entering", "_join", "_removing")

    def __init__(self, context: Context, join: ClassicJoin) -> None:
        self._c = context
        self._join = join
        self._committing: Counter[Place] = Counter()
        """Partitions with commits on their way, and how many: a tombstone that is decided on what is durable
        would come after them, and take them along."""
        self._entering: Counter[Place] = Counter()
        """Those of them that are commits of a transaction. A member that reads its offsets now must know of
        them: its predecessor was let in before it lost the partition, and may still end the transaction."""
        self._removing: set[Place] = set()
        """Partitions whose tombstone is on its way: a slow store is not sent another at each check."""

    # Commit

    def commit(self, request: OffsetCommitRequest, version: int, ticket: Ticket) -> None:
        self._check_commit(request, version)
        now = self._c.now.wall_ms
        expires = NO_TIMESTAMP
        if request.retention_time_ms != NO_RETENTION:
            expires = now + request.retention_time_ms
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
                records.append((_key(request.group_id, topic.name, asked.partition_index), value))
        self._write(
            records,
            lambda: self._c.answer(ticket, response),
            lambda code: self._c.answer(ticket, commit_refused(request, error_after_append(code))),
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
                records.append((_key(request.group_id, topic.name, asked.partition_index), value))
        self._write(
            records,
            lambda: self._c.answer(ticket, response),
            lambda code: self._c.answer(ticket, txn_commit_refused(request, error_after_append(code))),
            Producer(request.producer_id, request.producer_epoch, guard),
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
        # Kafka counts characters, whatever the name of the setting says.
        too_large = metadata is not None and len(metadata) > self._c.settings.offset_metadata_max_bytes
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

    def _write(
        self,
        records: list[TypedRecord],
        answer: Durable,
        refuse: Failed,
        producer: Producer | None = None,
    ) -> None:
        if not records:
            answer()
            return

        committed = [_place(record) for record in records if record[1] is not None]
        entering = committed if producer is not None else []
        self._committing.update(committed)
        self._entering.update(entering)

        def arrived() -> None:
            _count_off(self._committing, committed)
            _count_off(self._entering, entering)

        def durable() -> None:
            arrived()
            for key, value in records:
                assert isinstance(key, OffsetCommitKey)
                assert value is None or isinstance(value, OffsetCommitValue)
                self.apply(key, value, NO_PRODUCER if producer is None else producer.id)
            answer()

        def failed(code: ErrorCode) -> None:
            arrived()
            refuse(code)

        self._c.journal.append(encoded(records), durable, failed, producer)

    def apply(self, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int) -> None:
        """One durable record."""
        if value is None:
            self._c.offsets.remove(key.group, key.topic, key.partition)
            return
        self._c.offsets.put(key.group, key.topic, key.partition, value, producer_id)
        self.keep_owner(key.group)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Its marker is durable."""
        places = self._c.offsets.end_transaction(producer_id, committed=committed)
        for group_id, _, _ in places:
            self.keep_owner(group_id)
        # Some were kept for the transaction's sake.
        self.remove(self._of_missing_topics(places))

    def keep_owner(self, group_id: str) -> None:
        """Offsets always have a group, be it one that nobody ever joined."""
        if group_id not in self._c.groups and self._c.offsets.has_any(group_id):
            self._c.groups[group_id] = ClassicGroup(group_id)

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
        return self._c.offsets.is_pending(*place) or place in self._entering

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
                    (_key(request.group_id, topic.name, p.partition_index), None)
                    for p in topic.partitions
                    if self._exists(request.group_id, topic.name, p.partition_index)
                )
        self._write(
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

    def tombstones(self, group_id: str) -> list[TypedRecord]:
        """For everything that the group has committed, or would by transactions that are open."""
        return [(_key(*place), None) for place in sorted(self._c.offsets.places(group_id))]

    def remove(self, records: list[TypedRecord]) -> None:
        """Write tombstones that nobody waits for."""
        fresh = [record for record in records if _place(record) not in self._removing]
        places = {_place(record) for record in fresh}
        self._removing |= places
        self._write(
            fresh,
            lambda: self._removing.difference_update(places),
            lambda _: self._removing.difference_update(places),
        )

    def expired(self, group: Group) -> tuple[list[TypedRecord], bool]:
        """Tombstones for offsets whose retention is over, and whether they are the last of the group."""
        base = group.expiry_base()
        offsets = self._c.offsets
        if base is None:
            return [], False
        now, retention = self._c.now.wall_ms, self._c.settings.offsets_retention_ms
        records: list[TypedRecord] = []
        remaining = False
        for topic, found in offsets.of_group(group.group_id).items():
            subscribed = group.is_subscribed_to(topic)
            for partition, offset in found.items():
                if offset.expire_timestamp != NO_TIMESTAMP:
                    over = now >= offset.expire_timestamp
                else:
                    over = now - base(offset) >= retention
                awaited = (group.group_id, topic, partition) in self._committing
                awaited = awaited or offsets.is_pending(group.group_id, topic, partition)
                if over and not subscribed and not awaited:
                    records.append((_key(group.group_id, topic, partition), None))
                else:
                    remaining = True
        return records, not remaining and not offsets.pending_of(group.group_id)

    def of_missing_topics(self) -> list[TypedRecord]:
        """Tombstones for offsets in topics that do not exist, or that were deleted and made again."""
        offsets = self._c.offsets
        return self._of_missing_topics(
            place for group_id in offsets.groups() for place in offsets.places(group_id)
        )

    def _of_missing_topics(self, places: Iterable[Place]) -> list[TypedRecord]:
        records: list[TypedRecord] = []
        for place in places:
            known = self._c.offsets.all_of(place)
            # A tombstone takes all there is. So an offset of a topic that is there saves the others, until
            # its transaction ends.
            if known and place not in self._committing and all(self._is_gone(place[1], one) for one in known):
                records.append((_key(*place), None))
        return records

    def _is_gone(self, name: str, offset: Committed) -> bool:
        topic = self._c.image.topics.get(name)
        return topic is None or (offset.has_topic_id and offset.topic_id != topic.id)


def _count_off(counter: Counter[Place], places: list[Place]) -> None:
    for place in places:
        counter[place] -= 1
        if not counter[place]:
            del counter[place]


def _key(group_id: str, topic: str, partition: int) -> OffsetCommitKey:
    return OffsetCommitKey(group=group_id, topic=topic, partition=partition)


def _place(record: TypedRecord) -> Place:
    key, _ = record
    assert isinstance(key, OffsetCommitKey)
    return key.group, key.topic, key.partition


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
