"""Offsets by time: extents narrow the search, then one extent is read and decoded."""

from collections.abc import AsyncIterator
from functools import partial
from typing import NamedTuple

from penstock.log.checking import Hurt, check_extent
from penstock.log.extents import Extents
from penstock.log.times import first_at_or_after, greatest
from penstock.storage.ledger.answers import TimestampOffset
from penstock.storage.ledger.opening import Openers
from penstock.storage.ledger.partition import Partition
from penstock.storage.ledger.reading import Reader, rules_of
from penstock.wire.buffers import Buffer


class _Source(NamedTuple):
    """A run of extents: a segment's, or the unsettled ones."""

    extents: Extents
    key: str | None
    """The object they lie in; None: each extent names its own file."""


class TimeSearch:
    def __init__(self, reader: Reader, openers: Openers) -> None:
        self._reader = reader
        self._openers = openers

    async def first_at_or_after(
        self, partition: Partition, timestamp: int, limit_offset: int
    ) -> TimestampOffset | None:
        async for source in self._sources(partition, timestamp):
            extents = source.extents
            at = extents.find_timestamp(timestamp, extents.find(partition.log_start_offset))
            while at < len(extents) and extents.base_offsets[at] < limit_offset:
                stored = await self._extent(source, at)
                found = await self._openers.run(
                    partial(first_at_or_after, stored, timestamp, partition.log_start_offset, limit_offset)
                )
                lost = _first_lost(extents, at, stored, partition)
                if lost is not None and (found is None or lost < found.offset):
                    # The record may be among those that are lost. Who reads on from there is told.
                    return TimestampOffset(lost, timestamp, partition.leader_epoch)
                if found is not None:
                    return TimestampOffset(*found)
                at = extents.find_timestamp(timestamp, at + 1)
        return None

    async def greatest(self, partition: Partition) -> TimestampOffset | None:
        """The first record with the greatest timestamp."""
        start, limit = partition.log_start_offset, partition.high_watermark
        best: int | None = None
        async for source in self._sources(partition, best):
            extents = source.extents
            first = extents.find(start)
            for at in range(first, len(extents)):
                time: int | None = extents.max_timestamps[at]
                if extents.base_offsets[at] < start:
                    # The record with that time may lie below the log start.
                    stored = await self._extent(source, at)
                    time = await self._openers.run(partial(greatest, stored, start, limit))
                if time is not None and (best is None or time > best):
                    best = time
        return None if best is None else await self.first_at_or_after(partition, best, limit)

    async def _sources(self, partition: Partition, timestamp: int | None) -> AsyncIterator[_Source]:
        """The extents of the partition in order, without segments that end before `timestamp`."""
        # Both as they are now: settling moves records from one to the other.
        segments = partition.manifest.segments if partition.manifest is not None else ()
        unsettled = partition.unsettled
        for segment in segments:
            if segment.end_offset <= partition.log_start_offset:
                continue
            if timestamp is None or segment.max_timestamp >= timestamp:
                yield _Source(await self._reader.index(segment), segment.key)
        yield _Source(unsettled, None)

    async def _extent(self, source: _Source, at: int) -> Buffer:
        extents = source.extents
        key = source.key if source.key is not None else self._reader.file_key(extents.files[at])
        return await self._reader.fetch(key, extents.positions[at], extents.lengths[at])


def _first_lost(extents: Extents, at: int, stored: Buffer, partition: Partition) -> int | None:
    """The first offset from the log start on in an extent whose batch is not whole."""
    start = partition.log_start_offset
    for found in check_extent(stored, 0, extents[at], rules_of(partition)):
        if isinstance(found, Hurt) and found.end > start:
            return max(found.start, start)
    return None
