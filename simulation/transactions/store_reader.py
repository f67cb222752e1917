"""A reader that asks no broker: it follows a partition in the store at read_committed, as Spark does.

It uses the view and the windows of `storage/reader`, which Spark uses too. A view may be ahead of the
brokers, for a flush counts once it is written. It is never behind what anybody was told before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from conformance.histories.history import Seen

from penstock.log.markers import AbortedTransaction
from penstock.metadata.image import ClusterImage, PartitionKey
from penstock.storage.reader.stretches import Stretch, windows
from penstock.storage.reader.view import Chosen, LogView, PartitionView
from penstock.storage.stores.blocking import BlockingStore
from penstock.storage.stores.objects import Range, StoreError
from penstock.wire.batch import BatchHeader, iter_batches, iter_records
from simulation.checker import Rising
from simulation.client import Client
from simulation.topics import Topic
from simulation.weather import Weather

if TYPE_CHECKING:
    from simulation.scene import Scene

PAUSE_SECONDS = 2.0


class StoreReader(Client):
    def __init__(self, scene: Scene, name: str, topic: Topic, partition: int) -> None:
        super().__init__(scene, name)
        self._topic = topic
        self._partition = partition
        self._key: PartitionKey = (topic.id, partition)
        weather = Weather(latency=scene.latency)
        store = scene.open_store(self.process, weather, scene.entropy(name))
        self._view = LogView(store, _Images(scene), self._choose)
        self._stable = Rising()
        self.reading = scene.transactions.notes.reading(name, topic, partition, 0, committed=True)

    def _choose(self, image: ClusterImage) -> dict[PartitionKey, Chosen]:
        topic, info = image.topic(self._topic.name), image.partition(*self._key)
        if topic is None or info is None:
            return {}
        return {self._key: Chosen(topic, self._partition, info)}

    async def run(self) -> None:
        while not self.scene.ending:
            await self.pause(PAUSE_SECONDS)
            await self.step()

    async def step(self) -> int | None:
        """Read on to the stable end; the end of the partition, None if the store did not tell."""
        asked_at = self.scene.world.time()
        try:
            views = await self._view.refresh()
        except StoreError as error:
            self.note(f"could not read: {error}")
            return None
        view = views.get(self._key)
        if view is None:
            return None
        self._check(view, asked_at)
        self._read(view)
        return view.end

    def _check(self, view: PartitionView, asked_at: float) -> None:
        told = self.scene.transactions.notes.stable[self._key]
        known = max(told.known_before(asked_at), self._stable.known_before(asked_at))
        where = f"the store has {self._topic.name}-{self._partition}"
        if not known <= view.stable_end <= view.end:
            stable = f"stable to {view.stable_end}, where {known} was known"
            self.scene.checker.fail("T store", f"{where} up to {view.end}, {stable}")
        self._stable.told(self.scene.world.time(), view.stable_end)

    def _read(self, view: PartitionView) -> None:
        low, high = max(self.reading.end, view.log_start), view.stable_end
        if low != self.reading.end:
            notes = self.scene.transactions.notes
            self.reading = notes.reading(self.name, self._topic, self._partition, low, committed=True)
        segments = tuple(one for one in view.segments if one.end_offset > low and one.base_offset < high)
        plan = Stretch(
            view.topic, view.topic_id, view.index, low, high, (), segments, tuple(view.tail(low, high))
        )
        aborted = view.aborted(low, high)
        for read in windows(cast(BlockingStore, _Truth(self.scene)), plan, low):
            data = b"".join(_Truth(self.scene).read_range(one) for one in read.ranges)
            for start, length in read.about.pieces:
                for at, header in iter_batches(data, start, start + length):
                    if header.is_control or _is_aborted(header, aborted):
                        continue
                    for record in iter_records(data, at):
                        if low <= record.offset < high:
                            value = bytes(record.value or b"")
                            self._take(record.offset, value)
        self.reading.end = max(low, high)

    def _take(self, offset: int, value: bytes) -> None:
        self.scene.checker.record_read(self._key, offset, value, self.name, ahead=True)
        self.reading.records.append(Seen(offset, value.decode(), self.scene.world.time()))


def _is_aborted(header: BatchHeader, aborted: list[AbortedTransaction]) -> bool:
    return header.is_transactional and any(
        one.producer_id == header.producer_id and one.first_offset <= header.base_offset <= one.last_offset
        for one in aborted
    )


class _Images:
    """The newest image of the one log. How a program finds it is tried elsewhere."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    @property
    def image(self) -> ClusterImage:
        return self._scene.checker.image

    async def refresh(self) -> ClusterImage:
        return self.image


class _Truth:
    """The bytes of objects at this moment, without the way to them."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def read_range(self, wanted: Range) -> bytes:
        stored = self._scene.truth.get(wanted.key)
        assert stored is not None, f"{wanted.key} is not there"
        return stored[wanted.start : wanted.start + wanted.length]
