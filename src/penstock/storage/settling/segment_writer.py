"""Writes segment objects, index objects and manifest objects, for settling and for rewriting segments.

Names carry the incarnation and a counter, so no name is ever used twice:

    segments/<broker>/<epoch>/<n>     manifests/<broker>/<epoch>/<n>

Each writer has an `Attempt`, which notes each name before anything is written under it. So the objects of an
attempt are known whatever comes of it, and those that nothing refers to in the end are deleted
(`committing`).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from penstock.clock import Clock
from penstock.log.checking import Facts
from penstock.log.extents import Extents
from penstock.log.manifest import Manifest, SegmentRef, encode_manifest
from penstock.log.segment import Footer, PieceRef, encode_footer
from penstock.log.settling import Layout, pack
from penstock.metadata.image import ManifestRef, PartitionKey, WalRef
from penstock.storage.settling.composing import CopyRange, IfHurt, adopt, compose, create
from penstock.storage.stores.objects import ObjectStore
from penstock.wire.buffers import Buffer

SEGMENT_PREFIX = "segments/"
MANIFEST_PREFIX = "manifests/"
INDEX_SUFFIX = ".index"
FIRST_REPAIR_NAME = 900_000_000_000
"""From here on names are not counted, but drawn by who repairs what an incarnation wrote."""
# Handled before other work on the loop gets its turn: well under a millisecond.
_STEP_EXTENTS = 1000
_STEP_MANIFESTS = 50
_REMEMBERED_PIECES_MAX = 500_000
"""Of footers that were written here: eight bytes each. Those of other objects are read when they are
needed."""


class Run(NamedTuple):
    """A stretch of one partition's extents that becomes one piece of one object."""

    topic_id: bytes
    partition: int
    extents: Extents
    kind: Hashable = None
    """Only runs of one kind share an object."""
    facts: Facts | None = None
    """What batches must obey that are copied."""


class Written(NamedTuple):
    segment: SegmentRef
    extents: Extents


class Attempt:
    """The objects of one try to change manifests, from before they are written until it is known what refers
    to them."""

    __slots__ = ("doubtful", "made", "proposed")

    def __init__(self) -> None:
        self.made: dict[str, str] = {}
        """Each object, and the one whose footer says what it holds ("" for manifests)."""
        self.proposed: set[str] = set()
        """Those that the metadata log was asked to refer to."""
        self.doubtful = False
        """It did not answer, and may still do it."""


class SegmentWriter:
    def __init__(self, store: ObjectStore, own: WalRef, clock: Clock) -> None:
        self._store = store
        self._own = own
        self._clock = clock
        self._count = 0
        self._contents: OrderedDict[str, tuple[PartitionKey, ...]] = OrderedDict()
        self._partitions: dict[PartitionKey, PartitionKey] = {}
        """So that all contents share one value for each partition."""
        self._pieces = 0
        self.bytes_copied = 0

    def _name(self, prefix: str, attempt: Attempt) -> str:
        self._count += 1
        key = f"{prefix}{self._own.broker}/{self._own.epoch}/{self._count:012d}"
        attempt.made[key] = key if prefix == SEGMENT_PREFIX else ""
        return key

    def contents(self, index_key: str) -> tuple[PartitionKey, ...] | None:
        """The partitions that an object holds pieces of, by its footer: as far as it was written here and is
        remembered."""
        return self._contents.get(index_key)

    def _remember(self, index_key: str, runs: Sequence[Run]) -> None:
        keys = dict.fromkeys((run.topic_id, run.partition) for run in runs)
        self._contents[index_key] = tuple(self._partitions.setdefault(key, key) for key in keys)
        self._pieces += len(self._contents[index_key])
        while self._pieces > _REMEMBERED_PIECES_MAX:
            _key, forgotten = self._contents.popitem(last=False)
            self._pieces -= len(forgotten)

    async def copy(
        self, runs: Sequence[Run], key_of: Callable[[int], str], attempt: Attempt, if_hurt: IfHurt
    ) -> list[Written]:
        """Copy runs into new objects: the new segments in the order of the runs. HurtSourceError."""
        written: dict[int, Written] = {}
        sizes = [run.extents.total_bytes() for run in runs]
        for numbers in pack(sizes, [run.kind for run in runs]):
            key = self._name(SEGMENT_PREFIX, attempt)
            layouts: list[Layout] = []
            ranges: list[CopyRange] = []
            position = 0
            for number in numbers:
                layout = Layout(position)
                extents = runs[number].extents
                for start in range(0, len(extents), _STEP_EXTENTS):
                    layout.add(extents, start, min(start + _STEP_EXTENTS, len(extents)))
                    await asyncio.sleep(0)
                ranges += _ranges(layout, key_of, runs[number].facts)
                layouts.append(layout)
                position = layout.position
            placed = [
                runs[n]._replace(extents=layout.extents) for n, layout in zip(numbers, layouts, strict=True)
            ]
            tail, segments = self._indexes(placed, key, key, position)
            await compose(self._store, key, ranges, tail, if_hurt)
            self.bytes_copied += position
            for number, run, segment in zip(numbers, placed, segments, strict=True):
                written[number] = Written(segment, run.extents)
        return [written[number] for number in range(len(runs))]

    async def write(self, runs: Sequence[Run], data: Sequence[Buffer], attempt: Attempt) -> list[Written]:
        """Write runs whose batches are in memory, into new objects: the new segments in the order of the
        runs. The extents of each run count positions from the beginning of its data."""
        written: dict[int, Written] = {}
        for numbers in pack([len(one) for one in data], [run.kind for run in runs]):
            key = self._name(SEGMENT_PREFIX, attempt)
            placed: list[Run] = []
            position = 0
            for number in numbers:
                run = runs[number]
                placed.append(run._replace(extents=run.extents.moved(position)))
                position += len(data[number])
            tail, segments = self._indexes(placed, key, key, position)
            await create(self._store, key, *(data[number] for number in numbers), tail)
            for number, run, segment in zip(numbers, placed, segments, strict=True):
                written[number] = Written(segment, run.extents)
        return [written[number] for number in range(len(runs))]

    async def adopt(
        self, file_key: str, file_bytes: int, runs: Sequence[Run], attempt: Attempt
    ) -> list[Written] | None:
        """Make a write-ahead file a segment of all its partitions, as it is. None where that cannot be."""
        key = self._name(SEGMENT_PREFIX, attempt)
        index_key = key + INDEX_SUFFIX
        attempt.made[key] = attempt.made[index_key] = index_key
        stored, segments = self._indexes(runs, key, index_key, 0, file_bytes)
        # The index first: what has no index has no reader.
        await create(self._store, index_key, stored)
        if not await adopt(self._store, file_key, key):
            return None
        return [Written(segment, run.extents) for segment, run in zip(segments, runs, strict=True)]

    def _indexes(
        self, runs: Sequence[Run], key: str, index_key: str, position: int, object_bytes: int | None = None
    ) -> tuple[bytes, list[SegmentRef]]:
        """The indexes and the footer of an object, which begin at `position`, and what they describe.
        `object_bytes`: the size of the object `key`, where that is not the one that they end."""
        stored = [run.extents.encode() for run in runs]
        places: list[tuple[int, int, int, int]] = []
        entries: list[PieceRef] = []
        for run, index in zip(runs, stored, strict=True):
            base, end = run.extents.base_offsets[0], run.extents.last_offsets[-1] + 1
            places.append((base, end, position, len(index)))
            data_key = key if key != index_key else ""
            entries.append(PieceRef(run.topic_id, run.partition, *places[-1], data_key))
            position += len(index)
        footer = encode_footer(Footer(tuple(entries)))
        size = position + len(footer) if object_bytes is None else object_bytes
        now_ms = self._clock.time_ms()
        segments = [
            SegmentRef(
                key,
                base,
                end,
                run.extents.total_bytes(),
                max(run.extents.max_timestamps),
                index_key,
                index_start,
                index_length,
                min(run.extents.max_timestamps),
                now_ms,
                size,
            )
            for run, (base, end, index_start, index_length) in zip(runs, places, strict=True)
        ]
        self._remember(index_key, runs)
        return b"".join((*stored, footer)), segments

    async def write_manifests(
        self, manifests: Sequence[Manifest], level: int, attempt: Attempt
    ) -> list[ManifestRef]:
        """All manifests of one settling, in one object, as brokers at the feature level read them."""
        key = self._name(MANIFEST_PREFIX, attempt)
        parts = []
        refs = []
        position = 0
        for number, manifest in enumerate(manifests):
            if number % _STEP_MANIFESTS == _STEP_MANIFESTS - 1:
                await asyncio.sleep(0)
            part = encode_manifest(manifest, level)
            parts.append(part)
            refs.append(ManifestRef(key, position, len(part)))
            position += len(part)
        await create(self._store, key, *parts)
        return refs


def _ranges(layout: Layout, key_of: Callable[[int], str], facts: Facts | None) -> Iterator[CopyRange]:
    assert facts is not None, "what is copied is checked"
    for file, together in groupby(layout.sources, key=itemgetter(0)):
        key = key_of(file)
        for _file, position, length, base_offset, last_offset in together:
            yield CopyRange(key, position, length, base_offset, last_offset, facts)
