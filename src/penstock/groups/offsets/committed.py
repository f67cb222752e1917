"""Committed offsets: where a group will resume, and the offsets that an open transaction would commit.

Only durable records get here, in the order of the log, whether they were just written or are being loaded. So
`get` can never show an offset that a crash would take back.
"""

from collections.abc import Collection, Iterator

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
Place = tuple[str, str, int]
"""A group, a topic and a partition: what an offset is committed for."""
_NOTHING: TopicOffsets = {}
_NOBODY: dict[tuple[str, int], set[int]] = {}


class Offsets:
    __slots__ = ("_by_group", "_pending", "_producers", "_sequence")

    def __init__(self) -> None:
        self._by_group: dict[str, TopicOffsets] = {}
        self._pending: dict[int, dict[Place, Committed]] = {}
        """What the open transaction of each producer would commit."""
        self._producers: dict[str, dict[tuple[str, int], set[int]]] = {}
        """The same by group: the producers whose transactions would commit for a topic and partition."""
        self._sequence = 0

    def of_group(self, group_id: str) -> TopicOffsets:
        """By topic, then partition. Not to be changed."""
        return self._by_group.get(group_id, _NOTHING)

    def get(self, group_id: str, topic: str, partition: int) -> Committed | None:
        return self.of_group(group_id).get(topic, {}).get(partition)

    def groups(self) -> Iterator[str]:
        """Those with offsets, or with offsets that a transaction may bring."""
        return iter(self._by_group.keys() | self._producers.keys())

    def has_any(self, group_id: str) -> bool:
        return group_id in self._by_group or group_id in self._producers

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
            return
        self._pending.setdefault(producer_id, {})[group_id, topic, partition] = committed
        self._producers.setdefault(group_id, {}).setdefault((topic, partition), set()).add(producer_id)

    def remove(self, group_id: str, topic: str, partition: int) -> None:
        """A tombstone: it also takes what open transactions had in store for the partition."""
        for producer_id in tuple(self.producers(group_id, topic, partition)):
            self._take_pending(producer_id, (group_id, topic, partition))
        topics = self._by_group.get(group_id)
        if topics is None or topic not in topics:
            return
        topics[topic].pop(partition, None)
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self._by_group[group_id]

    def end_transaction(self, producer_id: int, *, committed: bool) -> list[Place]:
        """What it would have committed becomes visible, or is forgotten: the places that this is about. Of
        two offsets the one that was written later counts, whichever became visible first."""
        places = list(self._pending.get(producer_id, ()))
        for place in places:
            group_id, topic, partition = place
            offset = self._take_pending(producer_id, place)
            present = self.get(group_id, topic, partition)
            if committed and (present is None or offset.sequence > present.sequence):
                self._by_group.setdefault(group_id, {}).setdefault(topic, {})[partition] = offset
        return places

    def _take_pending(self, producer_id: int, place: Place) -> Committed:
        group_id, topic, partition = place
        by_partition = self._producers[group_id]
        producers = by_partition[topic, partition]
        producers.remove(producer_id)
        if not producers:
            del by_partition[topic, partition]
        if not by_partition:
            del self._producers[group_id]
        waiting = self._pending[producer_id]
        offset = waiting.pop(place)
        if not waiting:
            del self._pending[producer_id]
        return offset

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction may yet change this offset."""
        return (topic, partition) in self.pending_of(group_id)

    def pending_of(self, group_id: str) -> Collection[tuple[str, int]]:
        return self._producers.get(group_id, _NOBODY).keys()

    def producers(self, group_id: str, topic: str, partition: int) -> Collection[int]:
        """Those whose open transactions would commit this offset."""
        return self._producers.get(group_id, _NOBODY).get((topic, partition), ())

    def all_of(self, place: Place) -> list[Committed]:
        """What is committed there, and what open transactions would commit."""
        present = self.get(*place)
        pending = [self._pending[producer_id][place] for producer_id in self.producers(*place)]
        return pending if present is None else [present, *pending]

    def places(self, group_id: str) -> Iterator[Place]:
        """All that the group has committed, or would by transactions that are open."""
        yield from ((group_id, topic, p) for topic, found in self.of_group(group_id).items() for p in found)
        for topic, partition in self.pending_of(group_id):
            if self.get(group_id, topic, partition) is None:
                yield group_id, topic, partition
