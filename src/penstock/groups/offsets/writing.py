"""Offsets on their way to storage and out of it: written, applied when they are durable, expired, removed."""

from collections import Counter
from collections.abc import Iterable

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.core import Context, TypedRecord, encoded
from penstock.groups.offsets.committed import NO_PRODUCER, Committed, Place
from penstock.groups.records import OffsetCommitKey, OffsetCommitValue, to_record
from penstock.groups.table import Group
from penstock.shards.journal import Durable, Failed
from penstock.shards.shard import Producer
from penstock.wire.errors import ErrorCode

NO_TIMESTAMP = -1


class OffsetWriting:
    __slots__ = ("_c", "_committing", "_removing", "entering")

    def __init__(self, context: Context) -> None:
        self._c = context
        self._committing: Counter[Place] = Counter()
        """Partitions with commits on their way, and how many: a tombstone that is decided on what is durable
        would come after them, and take them along."""
        self.entering: Counter[Place] = Counter()
        """Those of them that are commits of a transaction. A member that reads its offsets now must know of
        them: its predecessor was let in before it lost the partition, and may still end the transaction."""
        self._removing: set[Place] = set()
        """Partitions whose tombstone is on its way: a slow store is not sent another at each check."""

    def write(
        self,
        records: list[TypedRecord],
        answer: Durable,
        refuse: Failed,
        producer: Producer | None = None,
        *,
        asked: bool = False,
    ) -> None:
        """`asked`: they are those of one request, and are taken if one batch of the topic holds them all."""
        if not records:
            answer()
            return
        if asked:
            fitting = self._c.journal.takes_together(to_record(key, value) for key, value in records)
            if fitting is None:
                refuse(ErrorCode.MESSAGE_TOO_LARGE)
                return
        else:
            fitting = encoded(records)

        committed = [_place(record) for record in records if record[1] is not None]
        entering = committed if producer is not None else []
        self._committing.update(committed)
        self.entering.update(entering)

        def arrived() -> None:
            _count_off(self._committing, committed)
            _count_off(self.entering, entering)

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

        self._c.journal.append(fitting, durable, failed, producer)

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

    def tombstones(self, group_id: str) -> list[TypedRecord]:
        """For everything that the group has committed, or would by transactions that are open."""
        return [(offset_key(*place), None) for place in sorted(self._c.offsets.places(group_id))]

    def remove(self, records: list[TypedRecord]) -> None:
        """Write tombstones that nobody waits for."""
        fresh = [record for record in records if _place(record) not in self._removing]
        places = {_place(record) for record in fresh}
        self._removing |= places
        self.write(
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
                    records.append((offset_key(group.group_id, topic, partition), None))
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
                records.append((offset_key(*place), None))
        return records

    def _is_gone(self, name: str, offset: Committed) -> bool:
        topic = self._c.image.topics.get(name)
        return topic is None or (offset.has_topic_id and offset.topic_id != topic.id)


def _count_off(counter: Counter[Place], places: list[Place]) -> None:
    for place in places:
        counter[place] -= 1
        if not counter[place]:
            del counter[place]


def offset_key(group_id: str, topic: str, partition: int) -> OffsetCommitKey:
    return OffsetCommitKey(group=group_id, topic=topic, partition=partition)


def _place(record: TypedRecord) -> Place:
    key, _ = record
    assert isinstance(key, OffsetCommitKey)
    return key.group, key.topic, key.partition
