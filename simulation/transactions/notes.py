"""What transactional clients did and were shown: the history that `conformance/histories` judges.

A transaction is noted when it begins, and counts as aborted until somebody asks for its commit.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from conformance.histories.history import Append, History, Move, OffsetSeen, Outcome, Reading, Transaction

from penstock.metadata.image import PartitionKey
from simulation.checker import Rising
from simulation.topics import COMPACTED, Topic

if TYPE_CHECKING:
    from simulation.scene import Scene


class Notes:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.history = History()
        self._numbers = 0
        self.stable: dict[PartitionKey, Rising] = defaultdict(Rising)
        """Of each partition, the last stable offsets that somebody was told."""
        self.sources: dict[str, tuple[str, int]] = {}
        """Of each copy, where its original is: a partition and an offset."""

    # What clients do.

    def begun(self, producer: str) -> Transaction:
        """`producer`: the client whose transaction it is, "" for a record outside of any."""
        self._numbers += 1
        transaction = Transaction(f"txn-{self._numbers}", Outcome.ABORTED, producer)
        transaction.began = self._scene.world.time()
        self.history.transactions.append(transaction)
        return transaction

    def commit_asked(self, transaction: Transaction) -> None:
        transaction.outcome = Outcome.UNKNOWN
        transaction.asked = self._scene.world.time()

    def committed(self, transaction: Transaction) -> None:
        transaction.outcome = Outcome.COMMITTED
        transaction.ended = self._scene.world.time()

    def sent(self, transaction: Transaction, topic: Topic, partition: int, values: list[bytes]) -> None:
        place = place_of(topic, partition)
        transaction.appends += [Append(place, value.decode()) for value in values]

    def acknowledged(self, transaction: Transaction, values: list[bytes], base: int) -> None:
        numbers = {value.decode(): base + delta for delta, value in enumerate(values)}
        for append in transaction.appends:
            append.offset = numbers.get(append.value, append.offset)

    def moved(
        self, transaction: Transaction, group: str, topic: Topic, partition: int, start: int, end: int
    ) -> None:
        transaction.moves.append(Move(group, place_of(topic, partition), start, end))

    # What clients are shown.

    def offset_told(self, group: str, topic: Topic, partition: int, offset: int, asked: float) -> None:
        seen = OffsetSeen(group, place_of(topic, partition), offset, asked, self._scene.world.time())
        self.history.offsets.append(seen)

    def reading(self, reader: str, topic: Topic, partition: int, start: int, *, committed: bool) -> Reading:
        reading = Reading(reader, place_of(topic, partition), start, start, committed=committed)
        self.history.readings.append(reading)
        return reading

    def stable_told(self, key: PartitionKey, stable: int, end: int, asked_at: float, by: str) -> None:
        """Somebody was told a last stable offset, and the end of the same moment."""
        known = self.stable[key].known_before(asked_at)
        where = f"{key[0][:4].hex()}-{key[1]}"
        if stable > end:
            self._scene.checker.fail("T stable", f"{by} said that {where} is stable to {stable} of {end}")
        if stable < known:
            self._scene.checker.fail(
                "T stable",
                f"{by} said that {where} is stable to {stable}, asked at {asked_at:.4f}; {known} was known",
            )
        self.stable[key].told(self._scene.world.time(), stable)

    def gone(self, topic: Topic) -> None:
        """A topic was deleted: nothing that was said of it is promised any more."""
        prefix = f"{topic.name}-"
        history = self.history
        for transaction in history.transactions:
            transaction.appends = [one for one in transaction.appends if not one.place.startswith(prefix)]
        history.readings = [one for one in history.readings if not one.place.startswith(prefix)]

    def thin(self, topics: list[Topic]) -> None:
        """Compaction takes records from some topics."""
        for topic in topics:
            if topic.kind == COMPACTED:
                self.history.thinned |= {place_of(topic, index) for index in range(topic.partitions)}


def place_of(topic: Topic, partition: int) -> str:
    return f"{topic.name}-{partition}"
