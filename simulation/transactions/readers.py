"""Readers at both isolation levels. They drop aborted records by the list of each answer, as clients do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.histories.history import Seen

from penstock.metadata.image import PartitionKey
from penstock.wire.api.fetch import PartitionData
from penstock.wire.batch import check_batch, iter_batches, iter_records
from penstock.wire.errors import BatchError
from penstock.wire.markers import ABORT, marker_kind
from simulation.readers import Observer, Reader
from simulation.topics import Topic

if TYPE_CHECKING:
    from simulation.scene import Scene


class IsolatedReader(Reader):
    def __init__(self, scene: Scene, name: str, topic: Topic, partition: int, *, committed: bool) -> None:
        super().__init__(scene, name, topic, partition)
        self.isolation = int(committed)
        self._committed = committed
        self.reading = scene.transactions.notes.reading(name, topic, partition, 0, committed=committed)
        self.markers: set[int] = set()
        self.stable = 0
        """The last stable offset as it was last told."""

    def go_to(self, position: int) -> None:
        """Read on from somewhere else: another way through the partition begins there."""
        if position != self.position or self.reading.end != position:
            self.position = position
            self.reading = self.scene.transactions.notes.reading(
                self.name, self._topic, self._partition, position, committed=self._committed
            )

    def _take(self, told: PartitionData, by: str, asked_at: float) -> None:
        checker, notes = self.scene.checker, self.scene.transactions.notes
        key = (self._topic.id, self._partition)
        where = f"{by} to {self.name}"
        self._check_answer(told, where)
        if self.position != self.reading.end:
            # It was sent elsewhere: what it stood at is gone.
            self.go_to(self.position)
        hidden = _Hidden(told)
        data = told.records or b""
        for at, header in iter_batches(data):
            try:
                check_batch(memoryview(data)[at : at + header.size])
            except BatchError as error:
                checker.fail("P3 corrupt", f"{where}: a batch at {header.base_offset}: {error}")
                return
            if header.base_offset > self.position and not checker.passes_over(
                key, self.position, header.base_offset
            ):
                checker.fail("P3 hole", f"{where}: {header.base_offset} follows {self.position}")
            if header.last_offset >= (told.last_stable_offset if self._committed else told.high_watermark):
                checker.fail("T end", f"{where}: a batch up to {header.last_offset} of {told}")
            hidden.reach(header.last_offset)
            for record in iter_records(data, at):
                if header.is_control:
                    self.markers.add(record.offset)
                    if marker_kind(record) == ABORT:
                        hidden.end(header.producer_id)
                    continue
                if record.offset < self.position:
                    continue
                if header.is_transactional and header.producer_id in hidden.producers and self._committed:
                    continue
                value = bytes(record.value or b"")
                self.records[record.offset] = value
                checker.record_read(key, record.offset, value, f"{self.name} from {by}")
                self.reading.records.append(Seen(record.offset, value.decode(), self.scene.world.time()))
            self.position = max(self.position, header.last_offset + 1)
        self.reading.end = self.position
        self.stable = told.last_stable_offset
        checker.end_told(key, told.high_watermark, asked_at, by)
        notes.stable_told(key, told.last_stable_offset, told.high_watermark, asked_at, by)

    def _check_answer(self, told: PartitionData, where: str) -> None:
        if self._committed == (told.aborted_transactions is None):
            self.scene.checker.fail(
                "T aborted", f"{where}, isolation {self.isolation}: aborted are {told.aborted_transactions}"
            )


class StableObserver(Observer):
    """Asks for the ends that readers at read_committed stop at."""

    isolation = 1

    def told(self, key: PartitionKey, end: int, asked_at: float, by: str) -> None:
        self.scene.transactions.notes.stable_told(key, end, end, asked_at, by)


class _Hidden:
    """The producers whose records do not count at some place of an answer."""

    def __init__(self, told: PartitionData) -> None:
        self._coming = sorted(
            ((one.first_offset, one.producer_id) for one in told.aborted_transactions or ()), reverse=True
        )
        self.producers: set[int] = set()

    def reach(self, offset: int) -> None:
        while self._coming and self._coming[-1][0] <= offset:
            self.producers.add(self._coming.pop()[1])

    def end(self, producer_id: int) -> None:
        """The marker of an abort."""
        self.producers.discard(producer_id)
