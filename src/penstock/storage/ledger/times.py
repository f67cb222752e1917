"""Offsets by time, for the partitions led here: the same search as from the store alone. Indexes are kept in
memory, and objects are held from deletion meanwhile."""

from collections.abc import AsyncIterator
from functools import partial

from penstock.log.times import greatest
from penstock.storage.ledger.expanding import Expanders
from penstock.storage.partitions.answers import TimestampOffset
from penstock.storage.partitions.partition import Partition
from penstock.storage.partitions.reading import Reader, facts_of
from penstock.storage.reader.times import Source, Span, of_segment, search
from penstock.wire.buffers import Buffer


class TimeSearch:
    def __init__(self, reader: Reader, expanders: Expanders) -> None:
        self._reader = reader
        self._expanders = expanders

    async def first_at_or_after(
        self, partition: Partition, timestamp: int, limit_offset: int
    ) -> TimestampOffset | None:
        span = Span(partition.log_start_offset, limit_offset, facts_of(partition), partition.leader_epoch)
        sources = self._sources(partition, timestamp)
        found = await search(sources, timestamp, span, self._reader.fetch, self._expanders.run)
        return TimestampOffset(*found) if found is not None else None

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
                    time = await self._expanders.run(partial(greatest, stored, start, limit))
                if time is not None and (best is None or time > best):
                    best = time
        return None if best is None else await self.first_at_or_after(partition, best, limit)

    async def _sources(self, partition: Partition, timestamp: int | None) -> AsyncIterator[Source]:
        """The extents of the partition in order, without segments that end before `timestamp`."""
        # Both as they are now: settling moves records from one to the other.
        segments = partition.manifest.segments if partition.manifest is not None else ()
        unsettled = partition.unsettled
        for segment in segments:
            if segment.end_offset <= partition.log_start_offset:
                continue
            if timestamp is None or segment.max_timestamp >= timestamp:
                yield of_segment(segment, await self._reader.index(segment))
        yield Source(unsettled, self._reader.file_key)

    async def _extent(self, source: Source, at: int) -> Buffer:
        extents = source.extents
        key = source.key_of(extents.files[at])
        return await self._reader.fetch(key, extents.positions[at], extents.lengths[at])
