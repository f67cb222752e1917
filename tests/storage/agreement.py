"""What a broker that takes partitions over makes of a store, beside what a reader of the store sees there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from penstock.log.epochs import EpochStart, with_epoch
from penstock.log.extents import Extents
from penstock.log.manifest import HurtRange, SegmentRef
from penstock.log.markers import AbortedTransaction
from penstock.metadata.image import ClusterImage, PartitionKey, WalRef
from penstock.storage.ledger.expanding import Expanders
from penstock.storage.ledger.recovery import Opening, Recovery
from penstock.storage.ledger.times import TimeSearch
from penstock.storage.partitions.partition import Partition
from penstock.storage.partitions.reading import Reader
from penstock.storage.reader.times import offset_at
from penstock.storage.reader.view import Chosen, LogView, PartitionView
from penstock.storage.stores.objects import ObjectStore, StoreError
from penstock.storage.wal.files import WalFiles
from penstock.storage.wal.port import WalStore

TIMES = range(1_700_000_000_000 - 1, 1_700_000_000_000 + 40, 3)


class Seen(NamedTuple):
    """A partition, as somebody sees it."""

    start: int
    end: int
    stable_end: int
    segments: tuple[SegmentRef, ...]
    unsettled: list[tuple[int, int, int, str, int, int]]
    """Base and last offset, greatest time, object, position and length."""
    hurt: tuple[HurtRange, ...]
    epochs: tuple[EpochStart, ...]
    aborted: list[AbortedTransaction]
    offsets: list[int | None]
    """By time."""


Sight = dict[PartitionKey, Seen | str]
"""What is seen of each partition, or what is wrong with it."""


def _always(chosen: Mapping[PartitionKey, Chosen], _image: ClusterImage) -> Mapping[PartitionKey, Chosen]:
    return chosen


class _Still:
    """One image, for a reader that looks twice."""

    def __init__(self, image: ClusterImage) -> None:
        self.image = image

    async def refresh(self) -> ClusterImage:
        return self.image


async def sealed(store_image: ClusterImage, wal_store: WalStore) -> ClusterImage:
    """The image after all logs that are still open were sealed."""
    ends = dict(store_image.sealed)
    infos = (info for topic in store_image.topics.values() for info in topic.partitions)
    for wal in {wal for info in infos for wal in info.wals}:
        if wal not in ends:
            ends[wal] = await wal_store.seal(wal, store_image.wal_starts.get(wal, 0))
    return msgspec.structs.replace(store_image, sealed=ends)


async def seen_by_a_broker(store: ObjectStore, wal_store: WalStore, image: ClusterImage) -> Sight:
    files = WalFiles()
    openings = [
        Opening(Partition(topic.id, name, index, info.leader_epoch), info)
        for name, topic in image.topics.items()
        for index, info in enumerate(topic.partitions)
    ]
    errors: dict[PartitionKey, StoreError | None] = {}
    recovery = Recovery(store, wal_store, WalRef(-1, -1), files)
    await recovery.open(openings, image, lambda one, error: errors.update({one.key: error}))
    expanders = Expanders()
    times = TimeSearch(Reader(store, files.key, 1 << 20), expanders)
    sight: Sight = {}
    for opening in openings:
        error, partition = errors[opening.key], opening.partition
        if error is not None:
            sight[opening.key] = str(error)
            continue
        found = [await times.first_at_or_after(partition, time, partition.high_watermark) for time in TIMES]
        start, end = partition.log_start_offset, partition.high_watermark
        sight[opening.key] = Seen(
            start,
            end,
            partition.last_stable_offset,
            partition.manifest.segments if partition.manifest is not None else (),
            _places(partition.unsettled, files.key),
            partition.hurt,
            partition.epochs,
            partition.aborted_transactions(start, end),
            [one.offset if one is not None else None for one in found],
        )
    expanders.close()
    return sight


async def seen_by_a_reader(store: ObjectStore, image: ClusterImage) -> Sight:
    sight: Sight = {}
    for topic in image.topics.values():
        for index, info in enumerate(topic.partitions):
            key = (topic.id, index)
            chosen = {key: Chosen(topic, index, info)}
            view = LogView(store, _Still(image), partial(_always, chosen))
            try:
                sight[key] = await _seen(store, (await view.refresh())[key], info.leader_epoch)
            except StoreError as error:
                sight[key] = str(error)
    return sight


async def _seen(store: ObjectStore, view: PartitionView, leader_epoch: int) -> Seen:
    return Seen(
        view.log_start,
        view.end,
        view.stable_end,
        view.segments,
        _places(view.unsettled, view.file_key),
        view.hurt,
        with_epoch(view.epochs, leader_epoch, view.end),
        view.aborted(view.log_start, view.end),
        [await offset_at(store, view, time, view.end) for time in TIMES],
    )


def _places(extents: Extents, key_of: Callable[[int], str]) -> list[tuple[int, int, int, str, int, int]]:
    found = (extents[at] for at in range(len(extents)))
    return [(*one[:3], key_of(one.file), one.position, one.length) for one in found]


async def agreed(store: ObjectStore, wal_store: WalStore, image: ClusterImage) -> Sight:
    """What all see: a broker, and a reader."""
    image = await sealed(image, wal_store)
    of_a_broker = await seen_by_a_broker(store, wal_store, image)
    assert await seen_by_a_reader(store, image) == of_a_broker
    return of_a_broker
