"""Writes segment objects, index objects and manifest objects for the settler.

Names carry the incarnation and a counter, so no name is ever used twice:

    segments/<broker>/<epoch>/<n>     manifests/<broker>/<epoch>/<n>
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.clock import Clock
from penstock.log.extents import Extents
from penstock.log.manifest import Manifest, SegmentRef, encode_manifest
from penstock.log.segment import Footer, PieceEntry, encode_footer
from penstock.log.settling import Layout, pack
from penstock.metadata.image import ManifestRef, WalRef
from penstock.storage.composing import CopyRange, adopt, compose
from penstock.storage.objects import ObjectStore, StoreError
from penstock.wire.buffers import Buffer

SEGMENT_PREFIX = "segments/"
MANIFEST_PREFIX = "manifests/"
INDEX_SUFFIX = ".index"
# Handled before other work on the loop gets its turn: well under a millisecond.
_STEP_EXTENTS = 300
_STEP_MANIFESTS = 50


class Run(NamedTuple):
    """A stretch of one partition's extents that becomes one piece of one object."""

    topic_id: bytes
    partition: int
    extents: Extents


class Written(NamedTuple):
    segment: SegmentRef
    extents: Extents


class SegmentWriter:
    def __init__(self, store: ObjectStore, own: WalRef, clock: Clock) -> None:
        self._store = store
        self._own = own
        self._clock = clock
        self._count = 0
        self.bytes_copied = 0
        self.level = 1
        """The cluster's feature level: it says which format manifests are written in."""

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._own.broker}/{self._own.epoch}/{self._count:012d}"

    async def copy(self, runs: Sequence[Run], key_of: Callable[[int], str]) -> list[Written]:
        """Copy runs into new objects: the new segments in the order of the runs."""
        written: dict[int, Written] = {}
        sizes = [run.extents.total_bytes() for run in runs]
        for numbers in pack(sizes):
            key = self._name(SEGMENT_PREFIX)
            layouts: list[Layout] = []
            ranges: list[CopyRange] = []
            position = 0
            for number in numbers:
                layout = Layout(position)
                extents = runs[number].extents
                for start in range(0, len(extents), _STEP_EXTENTS):
                    layout.add(extents, start, min(start + _STEP_EXTENTS, len(extents)))
                    await asyncio.sleep(0)
                ranges += (CopyRange(key_of(s.file), s.position, s.length) for s in layout.sources)
                layouts.append(layout)
                position = layout.position
            placed = [Run(*runs[n][:2], layout.extents) for n, layout in zip(numbers, layouts, strict=True)]
            tail, segments = self._indexes(placed, key, key, position)
            await compose(self._store, key, ranges, tail)
            self.bytes_copied += position
            for number, run, segment in zip(numbers, placed, segments, strict=True):
                written[number] = Written(segment, run.extents)
        return [written[number] for number in range(len(runs))]

    async def write(self, runs: Sequence[Run], data: Sequence[Buffer]) -> list[Written]:
        """Write runs whose batches are in memory, into new objects: the new segments in the order of the
        runs. The extents of each run count positions from the beginning of its data."""
        written: dict[int, Written] = {}
        made: list[str] = []
        try:
            for numbers in pack([len(one) for one in data]):
                key = self._name(SEGMENT_PREFIX)
                placed: list[Run] = []
                position = 0
                for number in numbers:
                    run = runs[number]
                    placed.append(run._replace(extents=run.extents.moved(position)))
                    position += len(data[number])
                tail, segments = self._indexes(placed, key, key, position)
                if not await self._store.create(key, *(data[number] for number in numbers), tail):
                    raise StoreError(f"{key} exists, although its name was never used")
                made.append(key)
                for number, run, segment in zip(numbers, placed, segments, strict=True):
                    written[number] = Written(segment, run.extents)
        except BaseException:
            # Nothing refers to these, and when the store is full they must not pile up.
            for key in made:
                with contextlib.suppress(StoreError):
                    await self._store.delete(key)
            raise
        return [written[number] for number in range(len(runs))]

    async def adopt(self, file_key: str, runs: Sequence[Run]) -> list[Written] | None:
        """Make a write-ahead file a segment of all its partitions, as it is. None where that cannot be."""
        key = self._name(SEGMENT_PREFIX)
        index_key = key + INDEX_SUFFIX
        stored, segments = self._indexes(runs, key, index_key, 0)
        # The index first: what has no index has no reader.
        if not await self._store.create(index_key, stored):
            raise StoreError(f"{index_key} exists, although its name was never used")
        if not await adopt(self._store, file_key, key):
            await self._store.delete(index_key)
            return None
        return [Written(segment, run.extents) for segment, run in zip(segments, runs, strict=True)]

    def _indexes(
        self, runs: Sequence[Run], key: str, index_key: str, position: int
    ) -> tuple[bytes, list[SegmentRef]]:
        """The indexes and the footer of an object, which begin at `position`, and what they describe."""
        parts: list[bytes] = []
        segments: list[SegmentRef] = []
        entries: list[PieceEntry] = []
        now_ms = self._clock.time_ms()
        for run in runs:
            extents = run.extents
            stored = extents.encode()
            base, end = extents.base_offsets[0], extents.last_offsets[-1] + 1
            segments.append(
                SegmentRef(
                    key,
                    base,
                    end,
                    extents.total_bytes(),
                    max(extents.max_timestamps),
                    index_key,
                    position,
                    len(stored),
                    min(extents.max_timestamps),
                    now_ms,
                )
            )
            data_key = key if key != index_key else ""
            entries.append(
                PieceEntry(run.topic_id, run.partition, base, end, position, len(stored), data_key)
            )
            parts.append(stored)
            position += len(stored)
        parts.append(encode_footer(Footer(tuple(entries))))
        return b"".join(parts), segments

    async def write_manifests(self, manifests: Sequence[Manifest]) -> list[ManifestRef]:
        """All manifests of one settling, in one object."""
        key = self._name(MANIFEST_PREFIX)
        parts = []
        refs = []
        position = 0
        for number, manifest in enumerate(manifests):
            if number % _STEP_MANIFESTS == _STEP_MANIFESTS - 1:
                await asyncio.sleep(0)
            part = encode_manifest(manifest, self.level)
            parts.append(part)
            refs.append(ManifestRef(key, position, len(part)))
            position += len(part)
        if not await self._store.create(key, *parts):
            raise StoreError(f"{key} exists, although its name was never used")
        return refs
