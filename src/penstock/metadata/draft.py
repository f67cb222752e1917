"""An image being built: the mutable side of `apply`.

A draft starts as an image and copies a mapping when it is first written. So an entry that creates one topic
copies only the mappings that a topic touches, and an entry (or a whole log tail) of thousands of commands
copies each mapping once. The partitions of a topic under change are a list until an image is asked for. So a
move of ten thousand partitions of one topic does not copy ten thousand tuples. The draft names a field only
where a command changes it: all other fields stay as they were.

The draft also keeps every derived field of the image in step; `image.derive` states what they mean.
"""

from typing import TypeVar

import msgspec
from msgspec.structs import force_setattr

from penstock.metadata.access import QuotaEntity
from penstock.metadata.image import (
    NO_LEADER,
    TOPIC_CONFIG,
    BrokerInfo,
    ClusterImage,
    PartitionInfo,
    PartitionKey,
    PendingMove,
    TopicInfo,
    WalRef,
    fold_name,
    has_fold,
    live,
)

K = TypeVar("K")
V = TypeVar("V")


class Draft:
    """All changes of one entry (or of several, replayed in one go)."""

    def __init__(self, image: ClusterImage) -> None:
        self.version = image.version
        # Ours alone: nobody else sees it, so its fields are set in place.
        self._next = msgspec.structs.replace(image)
        self._owned: set[str] = set()
        self._open: dict[str, list[PartitionInfo]] = {}
        self._maybe_unused: set[WalRef] = set()

    # Reading.

    def broker(self, broker: int) -> BrokerInfo | None:
        return self._next.brokers.get(broker)

    def topic_names(self) -> tuple[str, ...]:
        return tuple(self._next.topics)

    def topic_name(self, topic_id: bytes) -> str:
        return self._next.names[topic_id]

    def partitions(self, name: str) -> "list[PartitionInfo] | tuple[PartitionInfo, ...]":
        return self._open.get(name) or self._next.topics[name].partitions

    def first_live(self, replicas: tuple[int, ...]) -> int:
        for broker in replicas:
            info = self._next.brokers.get(broker)
            if info is not None and not info.fenced:
                return broker
        return NO_LEADER

    def wal_of(self, broker: int) -> WalRef:
        """The log of the broker's present incarnation."""
        return self._next.brokers[broker].wal

    def wal_start(self, wal: WalRef) -> int:
        return self._next.wal_starts.get(wal, 0)

    def move(self, key: PartitionKey) -> PendingMove | None:
        return self._next.moves.get(key)

    # Writing.

    def put(self, field: str, value: int) -> None:
        """Set a field that is no mapping."""
        force_setattr(self._next, field, value)

    def _own(self, field: str) -> dict[K, V]:
        """The mapping in `field`, ours to write."""
        mapping: dict[K, V] = getattr(self._next, field)
        if field not in self._owned:
            mapping = dict(mapping)
            force_setattr(self._next, field, mapping)
            self._owned.add(field)
        return mapping

    def put_broker(self, info: BrokerInfo) -> None:
        brokers: dict[int, BrokerInfo] = self._own("brokers")
        brokers[info.id] = info
        force_setattr(self._next, "live_brokers", live(brokers.values()))

    def drop_broker(self, broker: int) -> None:
        brokers: dict[int, BrokerInfo] = self._own("brokers")
        wal = brokers.pop(broker).wal
        force_setattr(self._next, "live_brokers", live(brokers.values()))
        self._maybe_unused.add(wal)

    def drop_moves_to(self, broker: int) -> None:
        """Nobody is asked any more to hand a partition to this broker by name."""
        for key in [key for key, move in self._next.moves.items() if move.leader == broker]:
            self.put_move(key, None)

    def put_topic(self, topic: TopicInfo) -> None:
        """Add a topic that is not there."""
        topics: dict[str, TopicInfo] = self._own("topics")
        names: dict[bytes, str] = self._own("names")
        topics[topic.name] = topic
        names[topic.id] = topic.name
        if has_fold(topic.name):
            folded: dict[str, str] = self._own("folded_names")
            folded[fold_name(topic.name)] = topic.name
        for partition in topic.partitions:
            self._count(None, partition)

    def add_partitions(self, name: str, partitions: list[PartitionInfo]) -> None:
        self._opened(name).extend(partitions)
        for partition in partitions:
            self._count(None, partition)

    def pin_topic(self, name: str) -> None:
        topics: dict[str, TopicInfo] = self._own("topics")
        topics[name] = msgspec.structs.replace(topics[name], pinned=True)

    def drop_topic(self, name: str) -> None:
        topic_id = self._next.topics[name].id
        for index, partition in enumerate(self.partitions(name)):
            self._count(partition, None)
            self.put_move((topic_id, index), None)
        self._open.pop(name, None)
        topics: dict[str, TopicInfo] = self._own("topics")
        names: dict[bytes, str] = self._own("names")
        del names[topics.pop(name).id]
        if has_fold(name):
            folded: dict[str, str] = self._own("folded_names")
            del folded[fold_name(name)]
        self.put_config(TOPIC_CONFIG, name, {})

    def put_partition(self, name: str, index: int, partition: PartitionInfo) -> None:
        partitions = self._opened(name)
        old = partitions[index]
        self._count(old, partition)
        partitions[index] = partition
        if self._next.moves and old.leader != partition.leader:
            self.put_move((self._next.topics[name].id, index), None)

    def put_move(self, key: PartitionKey, move: PendingMove | None) -> None:
        """Ask the leader of a partition to hand it over, or (None) do not any more."""
        if move is not None:
            moves: dict[PartitionKey, PendingMove] = self._own("moves")
            moves[key] = move
        elif key in self._next.moves:
            moves = self._own("moves")
            del moves[key]

    def put_config(self, resource_type: int, name: str, values: dict[str, str]) -> None:
        """Set all dynamic settings of one resource; none at all forgets it."""
        key = (resource_type, name)
        if values:
            configs: dict[tuple[int, str], dict[str, str]] = self._own("configs")
            configs[key] = values
        elif key in self._next.configs:
            configs = self._own("configs")
            del configs[key]

    def config(self, resource_type: int, name: str) -> dict[str, str]:
        return dict(self._next.configs.get((resource_type, name), {}))

    def put_item(self, field: str, key: K, value: object | None) -> None:
        """Set one item of a mapping that nothing is derived from; None removes it."""
        mapping: dict[K, object] = self._own(field)
        if value is None:
            mapping.pop(key, None)
        else:
            mapping[key] = value

    def quota(self, entity: QuotaEntity) -> dict[str, float]:
        return dict(self._next.quotas.get(entity, {}))

    def seal(self, wal: WalRef, flush_count: int) -> None:
        """The log holds `flush_count` flushes for ever. Kept only while some partition needs them."""
        sealed: dict[WalRef, int] = self._own("sealed")
        sealed[wal] = flush_count
        self._maybe_unused.add(wal)

    def retire_wal(self, wal: WalRef) -> None:
        """Nobody will write to the log again and nothing in it is left to read."""
        self._maybe_unused.add(wal)

    def start_wal(self, wal: WalRef, flush: int) -> None:
        starts: dict[WalRef, int] = self._own("wal_starts")
        starts[wal] = flush

    def _opened(self, name: str) -> list[PartitionInfo]:
        partitions = self._open.get(name)
        if partitions is None:
            partitions = self._open[name] = list(self._next.topics[name].partitions)
        return partitions

    def _count(self, old: PartitionInfo | None, new: PartitionInfo | None) -> None:
        """Keep the derived counts in step with one partition's change."""
        old_leader = NO_LEADER if old is None else old.leader
        new_leader = NO_LEADER if new is None else new.leader
        if old_leader != new_leader:
            counts: dict[int, int] = self._own("leader_counts")
            _add(counts, old_leader, -1)
            _add(counts, new_leader, 1)
            counts.pop(NO_LEADER, None)
        old_wals = () if old is None else old.wals
        new_wals = () if new is None else new.wals
        if old_wals != new_wals:
            uses: dict[WalRef, int] = self._own("wal_uses")
            for wal in old_wals:
                if _add(uses, wal, -1) == 0:
                    self._maybe_unused.add(wal)
            for wal in new_wals:
                _add(uses, wal, 1)

    # Results.

    def view(self) -> ClusterImage:
        """The image so far, for a look only: the next write may change it."""
        self._complete()
        return msgspec.structs.replace(self._next, version=self.version)

    def image(self) -> ClusterImage:
        """The image so far, to keep: later writes copy again."""
        image = self.view()
        self._owned.clear()
        return image

    def _complete(self) -> None:
        if self._open:
            topics: dict[str, TopicInfo] = self._own("topics")
            for name, partitions in self._open.items():
                topics[name] = msgspec.structs.replace(topics[name], partitions=tuple(partitions))
            self._open.clear()
        if self._maybe_unused:
            self._forget_unused_wals()

    def _forget_unused_wals(self) -> None:
        """A log that no partition names is needed no more, unless its incarnation may still write to it."""
        for wal in self._maybe_unused:
            if wal in self._next.wal_uses:
                continue
            self._maybe_drop("sealed", wal)
            info = self._next.brokers.get(wal.broker)
            if info is None or info.fenced or info.epoch != wal.epoch:
                self._maybe_drop("wal_starts", wal)
        self._maybe_unused.clear()

    def _maybe_drop(self, field: str, wal: WalRef) -> None:
        if wal in getattr(self._next, field):
            owned: dict[WalRef, int] = self._own(field)
            del owned[wal]


def _add(counts: dict[K, int], key: K, amount: int) -> int:
    count = counts.get(key, 0) + amount
    if count:
        counts[key] = count
    else:
        counts.pop(key, None)
    return count
