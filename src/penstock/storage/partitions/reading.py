"""Reads a partition: from the tail cache, from write-ahead logs, from segments.

Nothing here lists the store. A read is answered at once if the tail cache has the batches, or if the index is
in memory and the store has the bytes at hand (the page cache of a local directory). Otherwise it is an
awaitable. The reader checks bytes from the store (`log.verifying`), and knows the hurt ranges: a client that
asks for lost records gets an error, and others get their records. It keeps indexes of segments in memory,
bounded in bytes, least recently used out first. It does the same with blocks of objects on a remote store.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from penstock.log.checking import Facts
from penstock.log.extents import Extents
from penstock.log.manifest import SegmentRef
from penstock.log.markers import AbortedTransaction
from penstock.log.slicing import Range, cut, plan_ranges
from penstock.log.verifying import ExtentBytes, Sums, Verification
from penstock.storage.partitions.answers import OffsetOutOfRangeError, Slice
from penstock.storage.partitions.partition import Partition
from penstock.storage.reader.indexes import decode_index
from penstock.storage.stores.block_cache import BlockCache, DistantStore
from penstock.storage.stores.objects import (
    DamagedObjectError,
    HurtRangeError,
    ObjectMissingError,
    ObjectStore,
)
from penstock.wire.buffers import Buffer

_FETCHES_AT_ONCE = 8
_READS_MAX = 3
"""What is hurt so many times in a row is hurt in the store."""
_EXTENT_BYTES_HELD = 48  # Six columns of eight bytes.


@runtime_checkable
class ImmediateStore(Protocol):
    """A store that can tell, without waiting, whether it has a range at hand."""

    def get_range_now(self, key: str, start: int, length: int) -> Buffer | None: ...


class Reader:
    def __init__(self, store: ObjectStore, file_key: Callable[[int], str], cache_bytes_max: int) -> None:
        """`cache_bytes_max`: for indexes and, on a distant store, mostly for blocks."""
        self._store = store
        self.file_key = file_key
        self.blocks: BlockCache | None = None
        self._index_bytes_max = cache_bytes_max
        if isinstance(store, DistantStore):
            self._index_bytes_max = cache_bytes_max // 4
            self.blocks = BlockCache(store, cache_bytes_max - self._index_bytes_max)
        near = self.blocks or store
        self._now = near.get_range_now if isinstance(near, ImmediateStore) else None
        self._index_bytes = 0
        self._indexes: OrderedDict[tuple[str, int], Extents] = OrderedDict()
        self._sums = Sums()
        self.requests = 0
        """Reads of the store, for metrics."""
        self.held: dict[str, int] = {}
        """Objects that a read is on, and how many: these are not deleted."""

    def read(
        self, partition: Partition, offset: int, max_bytes: int, limit_offset: int
    ) -> Slice | Awaitable[Slice]:
        if not partition.log_start_offset <= offset <= partition.high_watermark:
            raise OffsetOutOfRangeError(
                f"offset {offset} is not in [{partition.log_start_offset}, {partition.high_watermark}]"
            )
        tail = partition.tail
        if 0 <= tail.start <= offset < limit_offset:
            return Slice(*tail.read(offset, max_bytes, limit_offset), partition.aborted)
        if offset >= limit_offset:
            return Slice([], 0, offset)
        if partition.hurt:
            return self._read_around(partition, offset, max_bytes, limit_offset)
        return self._read_whole(partition, offset, max_bytes, limit_offset)

    def _read_around(
        self, partition: Partition, offset: int, max_bytes: int, limit_offset: int
    ) -> Slice | Awaitable[Slice]:
        """Up to the next hurt range, if there is anything."""
        after = next((one for one in partition.hurt if one.end > offset), None)
        if after is None or after.start >= limit_offset:
            return self._read_whole(partition, offset, max_bytes, limit_offset)
        hurt = HurtRangeError(partition.topic, partition.index, after.start, after.end, after.reason)
        if after.start <= offset:
            raise hurt
        answer = self._read_whole(partition, offset, max_bytes, after.start)
        if isinstance(answer, Slice):
            return _something(answer, hurt)
        return self._read_something(answer, hurt)

    async def _read_something(self, answer: Awaitable[Slice], hurt: HurtRangeError) -> Slice:
        return _something(await answer, hurt)

    def _read_whole(
        self, partition: Partition, offset: int, max_bytes: int, limit_offset: int
    ) -> Slice | Awaitable[Slice]:
        answer = self._read_stored(partition, offset, max_bytes, limit_offset)
        if isinstance(answer, Slice):
            return answer
        return self._finish(answer, partition, offset, max_bytes, limit_offset)

    async def _finish(
        self,
        answer: Awaitable[Slice],
        partition: Partition,
        offset: int,
        max_bytes: int,
        limit_offset: int,
    ) -> Slice:
        try:
            return await answer
        except ObjectMissingError:
            # Settling or merging may have replaced the object while the read was on its way.
            again = self._read_stored(partition, offset, max_bytes, limit_offset)
            return again if isinstance(again, Slice) else await again

    def _read_stored(
        self, partition: Partition, offset: int, max_bytes: int, limit_offset: int
    ) -> Slice | Awaitable[Slice]:
        if offset >= partition.settled_end:
            return self._read_unsettled(partition, offset, max_bytes, limit_offset)
        return self._read_settled(partition, offset, max_bytes, limit_offset)

    def _read_unsettled(
        self, partition: Partition, offset: int, max_bytes: int, limit_offset: int
    ) -> Slice | Awaitable[Slice]:
        extents = partition.unsettled
        first = extents.find(offset)
        ranges = plan_ranges(extents, first, max_bytes, limit_offset)
        keys = [self.file_key(planned.file) for planned in ranges]
        aborted = partition.aborted
        wanted = _Wanted(partition, extents, first, ranges, offset, max_bytes, limit_offset, aborted)
        return self._read_ranges(keys, wanted)

    def _read_settled(
        self, partition: Partition, offset: int, max_bytes: int, limit_offset: int
    ) -> Slice | Awaitable[Slice]:
        segment = find_segment(partition, offset)
        if segment is None:
            # Compaction took the end of the settled part: the next record is unsettled.
            return self._read_unsettled(partition, offset, max_bytes, limit_offset)
        extents = self._cached_index(segment)
        aborted = partition.aborted
        if extents is None:
            return self._read_with_index(partition, segment, offset, max_bytes, limit_offset, aborted)
        return self._read_segment(partition, segment, extents, offset, max_bytes, limit_offset, aborted)

    async def _read_with_index(
        self,
        partition: Partition,
        segment: SegmentRef,
        offset: int,
        max_bytes: int,
        limit_offset: int,
        aborted: Sequence[AbortedTransaction],
    ) -> Slice:
        try:
            extents = await self.index(segment)
        except DamagedObjectError as error:
            raise HurtRangeError(
                partition.topic, partition.index, segment.base_offset, segment.end_offset, str(error)
            ) from error
        answer = self._read_segment(partition, segment, extents, offset, max_bytes, limit_offset, aborted)
        return answer if isinstance(answer, Slice) else await answer

    def _read_segment(
        self,
        partition: Partition,
        segment: SegmentRef,
        extents: Extents,
        offset: int,
        max_bytes: int,
        limit_offset: int,
        aborted: Sequence[AbortedTransaction],
    ) -> Slice | Awaitable[Slice]:
        """`aborted`: the partition's when it named this segment."""
        first = extents.find(offset)
        if first == len(extents):
            # Compaction took the end of this segment.
            return self.read(partition, segment.end_offset, max_bytes, limit_offset)
        ranges = plan_ranges(extents, first, max_bytes, limit_offset)
        wanted = _Wanted(partition, extents, first, ranges, offset, max_bytes, limit_offset, aborted)
        return self._read_ranges([segment.key] * len(ranges), wanted)

    def _read_ranges(self, keys: Sequence[str], wanted: "_Wanted") -> Slice | Awaitable[Slice]:
        buffers: list[Buffer] = []
        if self._now is not None:
            for key, planned in zip(keys, wanted.ranges, strict=True):
                self.requests += 1
                buffer = self._now(key, planned.position, planned.length)
                if buffer is None:
                    break
                buffers.append(buffer)
        if len(buffers) < len(wanted.ranges):
            return self._read_later(keys, wanted, buffers)
        check = self._check_of(wanted, buffers)
        if not check.step() or check.lost:
            return self._check_on(keys, wanted, check)
        return _checked(wanted, check)

    async def _read_later(self, keys: Sequence[str], wanted: "_Wanted", buffers: list[Buffer]) -> Slice:
        ranges = wanted.ranges
        for first in range(len(buffers), len(ranges), _FETCHES_AT_ONCE):
            some = range(first, min(first + _FETCHES_AT_ONCE, len(ranges)))
            buffers += await asyncio.gather(
                *(self._fetch_cached(keys[at], ranges[at].position, ranges[at].length) for at in some)
            )
        return await self._check_on(keys, wanted, self._check_of(wanted, buffers))

    def _check_of(self, wanted: "_Wanted", buffers: Sequence[Buffer]) -> Verification:
        pieces: list[ExtentBytes] = []
        at = wanted.first
        bases, lasts = wanted.extents.base_offsets, wanted.extents.last_offsets
        topic_id, index = wanted.partition.topic_id, wanted.partition.index
        for planned, buffer in zip(wanted.ranges, buffers, strict=True):
            view = memoryview(buffer)
            for start, length in planned.pieces:
                stored = view[start : start + length]
                pieces.append(ExtentBytes(stored, bases[at], lasts[at], topic_id, index))
                at += 1
        return Verification(pieces, facts_of(wanted.partition), self._sums)

    async def _check_on(self, keys: Sequence[str], wanted: "_Wanted", check: Verification) -> Slice:
        for left in reversed(range(_READS_MAX)):
            while not check.step():  # noqa: ASYNC110  Others have their turn.
                await asyncio.sleep(0)
            if not (check.lost and left):
                break
            check = self._check_of(wanted, await self._read_anew(keys, wanted.ranges))
        return _checked(wanted, check)

    async def _read_anew(self, keys: Sequence[str], ranges: Sequence[Range]) -> list[Buffer]:
        """What the store gives this time. Bytes may be hurt on their way, and in a cache they stay so."""
        if self.blocks is not None:
            for key, planned in zip(keys, ranges, strict=True):
                self.blocks.forget(key, planned.position, planned.length)
        return [
            await self._fetch_cached(key, planned.position, planned.length)
            for key, planned in zip(keys, ranges, strict=True)
        ]

    async def fetch(self, key: str, start: int, length: int) -> Buffer:
        """Read a range of an object that is held from deletion meanwhile."""
        return await self._held(key, self._store.get_range(key, start, length))

    async def _fetch_cached(self, key: str, start: int, length: int) -> Buffer:
        """The same through the cache of blocks: for records that somebody else may ask for, too."""
        near = self.blocks or self._store
        return await self._held(key, near.get_range(key, start, length))

    async def _held(self, key: str, reading: Awaitable[Buffer]) -> Buffer:
        self.requests += 1
        self.held[key] = self.held.get(key, 0) + 1
        try:
            return await reading
        finally:
            self.held[key] -= 1
            if not self.held[key]:
                del self.held[key]

    def _cached_index(self, segment: SegmentRef) -> Extents | None:
        key = (segment.index_key, segment.index_start)
        extents = self._indexes.get(key)
        if extents is not None:
            self._indexes.move_to_end(key)
        return extents

    async def index(self, segment: SegmentRef) -> Extents:
        """The extents of a segment, from memory or from the store."""
        extents = self._cached_index(segment)
        if extents is not None:
            return extents
        stored = await self.fetch(segment.index_key, segment.index_start, segment.index_length)
        extents = decode_index(stored, segment)
        self.remember_index(segment, extents)
        return extents

    def remember_index(self, segment: SegmentRef, extents: Extents) -> None:
        key = (segment.index_key, segment.index_start)
        if key in self._indexes:
            return
        self._indexes[key] = extents
        self._index_bytes += len(extents) * _EXTENT_BYTES_HELD
        while self._index_bytes > self._index_bytes_max and len(self._indexes) > 1:
            _, dropped = self._indexes.popitem(last=False)
            self._index_bytes -= len(dropped) * _EXTENT_BYTES_HELD


def find_segment(partition: Partition, offset: int) -> SegmentRef | None:
    """The first segment that ends after `offset`."""
    if partition.manifest is None:
        return None
    segments = partition.manifest.segments
    low, high = 0, len(segments)
    while low < high:
        middle = (low + high) // 2
        if segments[middle].end_offset <= offset:
            low = middle + 1
        else:
            high = middle
    return segments[low] if low < len(segments) else None


class _Wanted(NamedTuple):
    """The ranges that a read of stored batches asks for; they hold the extents from `first` on."""

    partition: Partition
    extents: Extents
    first: int
    ranges: Sequence[Range]
    offset: int
    max_bytes: int
    limit_offset: int
    aborted: Sequence[AbortedTransaction]


def facts_of(partition: Partition) -> Facts:
    """What batches of a partition are checked against."""
    manifest = partition.manifest
    return Facts(partition.epochs, manifest.compacted_end if manifest is not None else 0)


def _checked(wanted: _Wanted, check: Verification) -> Slice:
    """What is whole, up to the first batch that is not."""
    offset, limit_offset = wanted.offset, wanted.limit_offset
    after = next((lost for lost in check.lost if lost.end > offset), None)
    if after is None or after.start >= limit_offset:
        return Slice(*cut(check.runs, offset, wanted.max_bytes, limit_offset), wanted.aborted)
    partition = wanted.partition
    hurt = HurtRangeError(partition.topic, partition.index, *after)
    if after.start <= offset:
        raise hurt
    found = cut(check.runs, offset, wanted.max_bytes, after.start)
    return _something(Slice(*found, wanted.aborted), hurt)


def _something(found: Slice, hurt: HurtRangeError) -> Slice:
    """What was found up to a hurt range. If compaction left nothing there, the range comes next."""
    if not found.size:
        raise hurt
    return found
