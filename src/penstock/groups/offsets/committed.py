"""Committed offsets: where a group will resume, and the offsets that an open transaction would commit.

Only durable records get here, in the order of the log, whether they were just written or are being loaded. So
`get` can never show an offset that a crash would take back.
"""

from collections.abc import Iterator

import msgspec

from penstock.groups.records import OffsetCommitValue
from penstock.wire.schema import ZERO_UUID

NO_PRODUCER = -1


class Committed(msgspec.Struct, frozen=True, gc=False):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int
    topic_id: bytes
    sequence: int
    """Grows with the position in the log: decides between a commit and a transaction that ended later."""

    @property
    def has_topic_id(self) -> bool:
        return self.topic_id != ZERO_UUID


TopicOffsets = dict[str, dict[int, Committed]]
_NOTHING: TopicOffsets = {}


class Offsets:
    __slots__ = ("_by_group", "_pending", "_sequence")

    def __init__(self) -> None:
        self._by_group: dict[str, TopicOffsets] = {}
        self._pending: dict[int, dict[tuple[str, str, int], Committed]] = {}
        self._sequence = 0

    def of_group(self, group_id: str) -> TopicOffsets:
        """By topic, then partition. Not to be changed."""
        return self._by_group.get(group_id, _NOTHING)

    def get(self, group_id: str, topic: str, partition: int) -> Committed | None:
        return self.of_group(group_id).get(topic, {}).get(partition)

    def groups(self) -> Iterator[str]:
        return iter(self._by_group)

    def put(
        self,
        group_id: str,
        topic: str,
        partition: int,
        value: OffsetCommitValue,
        producer_id: int = NO_PRODUCER,
    ) -> None:
        self._sequence += 1
        committed = Committed(
            offset=value.offset,
            leader_epoch=value.leader_epoch,
            metadata=value.metadata,
            commit_timestamp=value.commit_timestamp,
            expire_timestamp=value.expire_timestamp,
            topic_id=value.topic_id,
            sequence=self._sequence,
        )
        if producer_id == NO_PRODUCER:
            self._by_group.setdefault(group_id, {}).setdefault(topic, {})[partition] = committed
        else:
            self._pending.setdefault(producer_id, {})[group_id, topic, partition] = committed

    def remove(self, group_id: str, topic: str, partition: int) -> None:
        """A tombstone: it also takes what open transactions had in store for the partition."""
        for waiting in self._pending.values():
            waiting.pop((group_id, topic, partition), None)
        topics = self._by_group.get(group_id)
        if topics is None or topic not in topics:
            return
        topics[topic].pop(partition, None)
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self._by_group[group_id]

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        waiting = self._pending.pop(producer_id, None)
        if waiting is None or not committed:
            return
        for (group_id, topic, partition), offset in waiting.items():
            present = self.get(group_id, topic, partition)
            if present is None or offset.sequence > present.sequence:
                self._by_group.setdefault(group_id, {}).setdefault(topic, {})[partition] = offset

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction may yet change this offset."""
        key = (group_id, topic, partition)
        return any(key in waiting for waiting in self._pending.values())

    def pending_of(self, group_id: str) -> set[tuple[str, int]]:
        return {
            (topic, partition)
            for waiting in self._pending.values()
            for owner, topic, partition in waiting
            if owner == group_id
        }
