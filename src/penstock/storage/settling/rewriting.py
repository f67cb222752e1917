"""Copies neighbouring segments of partitions into new objects: to have fewer, or to empty old objects.

A stretch of segments becomes one. `settler` (merging) and `moving` choose the stretches.
Settling, retention and compaction go on meanwhile. If one of them took a segment of the stretch away, its
copy is dropped. Segments that are hurt are left alone (`hurt_sources`).
"""

import logging
from array import array
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from penstock.log.compaction import Replacement, replaced
from penstock.log.extents import Extents
from penstock.log.manifest import SegmentRef
from penstock.log.settling import lifetime
from penstock.metadata.image import PartitionKey
from penstock.storage.partitions.partition import Partition
from penstock.storage.partitions.reading import Reader, facts_of
from penstock.storage.settling.change import Base, Change, key_of
from penstock.storage.settling.committing import Committer
from penstock.storage.settling.composing import HurtSourceError
from penstock.storage.settling.hurt_sources import HurtSources
from penstock.storage.settling.segment_writer import Run, SegmentWriter, Written
from penstock.storage.stores.objects import StoreError

logger = logging.getLogger(__name__)


class Stretch(NamedTuple):
    """Segments of one partition that follow each other."""

    partition: Partition
    segments: tuple[SegmentRef, ...]


class Rewriter:
    def __init__(
        self, committer: Committer, reader: Reader, writer: SegmentWriter, hurt: HurtSources
    ) -> None:
        self._committer = committer
        self._reader = reader
        self._writer = writer
        self.hurt = hurt

    async def rewrite(self, stretches: Sequence[Stretch]) -> int:
        """Copy each stretch into one new segment: in how many partitions that was done. A partition whose
        indexes cannot be read is left alone. A segment that is hurt parts its stretch."""
        while True:
            whole = [part for stretch in stretches for part in self._whole(stretch)]
            if not whole:
                return 0
            try:
                return await self._rewrite(whole)
            except HurtSourceError as error:
                logger.warning("an object is not rewritten: %s", error)
                self.hurt.leave_alone(error.key)

    def _whole(self, stretch: Stretch) -> Iterator[Stretch]:
        """The parts of a stretch that are not known to be hurt."""
        for is_hurt, segments in groupby(stretch.segments, self.hurt.is_hurt):
            if not is_hurt:
                yield Stretch(stretch.partition, tuple(segments))

    async def _rewrite(self, stretches: Sequence[Stretch]) -> int:
        with self._committer.attempt() as attempt:
            sources: list[Stretch] = []
            runs: list[Run] = []
            keys: list[str] = []
            for stretch in stretches:
                joined = await self._joined(stretch, keys)
                if joined is not None and len(joined):
                    partition = stretch.partition
                    sources.append(stretch)
                    kind, facts = lifetime(partition.policy), facts_of(partition)
                    runs.append(Run(*key_of(partition), joined, kind, facts))
            copies = await self._writer.copy(runs, keys.__getitem__, attempt, lambda _key: False)
            together: dict[PartitionKey, list[tuple[Stretch, Written]]] = {}
            for stretch, copy in zip(sources, copies, strict=True):
                together.setdefault(key_of(stretch.partition), []).append((stretch, copy))

            def fold(wanted: Collection[PartitionKey]) -> list[Change]:
                folded = (self._fold(together[key]) for key in wanted)
                return [change for change in folded if change is not None]

            done = await self._committer.commit(attempt, together, fold)
        return len(done or ())

    async def _joined(self, stretch: Stretch, keys: list[str]) -> Extents | None:
        """The extents of a stretch, from the log start on; the files they name are numbers in `keys`."""
        joined = Extents()
        for segment in stretch.segments:
            try:
                extents = await self._reader.index(segment)
            except StoreError as error:
                partition = stretch.partition
                logger.warning(
                    "segments could not be copied topic=%s partition=%d: %s",
                    partition.topic, partition.index, error,
                )  # fmt: skip
                return None
            first = extents.find(stretch.partition.log_start_offset)
            kept = extents.slice(first, len(extents)) if first else extents
            joined.extend(kept, array("q", (len(keys),)) * len(kept))
            keys.append(segment.key)
        return joined

    def _fold(self, copied: Sequence[tuple[Stretch, Written]]) -> Change | None:
        partition = copied[0][0].partition
        base = Base.of(partition)
        if base.manifest is None or not self._committer.is_open(partition):
            return None
        replacements = [Replacement(stretch.segments, (_aged(stretch, copy),)) for stretch, copy in copied]
        manifest = replaced(base.manifest, replacements)
        if manifest is None:
            return None
        return Change(partition, base, manifest, written=tuple(copy for _stretch, copy in copied))


def _aged(stretch: Stretch, copy: Written) -> SegmentRef:
    """The new segment. Records without a time are as old as before."""
    settled_ms = max(segment.settled_ms for segment in stretch.segments)
    return msgspec.structs.replace(copy.segment, settled_ms=settled_ms)
