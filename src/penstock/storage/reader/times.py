"""Offsets by time: extents narrow the search, then one extent is read and decoded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from penstock.log.checking import Facts, Hurt, check_extent
from penstock.log.extents import Extent, Extents
from penstock.log.manifest import SegmentRef
from penstock.log.times import RecordTime, first_at_or_after
from penstock.storage.reader.indexes import read_index
from penstock.storage.stores.objects import ObjectStore, ReadRange
from penstock.wire.buffers import Buffer

if TYPE_CHECKING:
    from penstock.storage.reader.view import PartitionView  # A broker has partitions of its own, and no view.


class Source(NamedTuple):
    """A run of extents: a segment's, or the unsettled ones."""

    extents: Extents
    key_of: Callable[[int], str]
    """The object that the extents of a file number lie in."""


def of_segment(segment: SegmentRef, extents: Extents) -> Source:
    return Source(extents, lambda _file: segment.key)


class Span(NamedTuple):
    """The records of a search, from `start` up to, not including, `limit`, and the facts about them."""

    start: int
    limit: int
    facts: Facts
    leader_epoch: int = -1
    """What is told as the epoch of records that are lost."""


Work = Callable[[int | None], RecordTime | None]
"""Called with how far a batch may expand; None: as far as any may. BatchError if one expands further."""
Run = Callable[[Work], Awaitable[RecordTime | None]]
"""Does what takes the processor some time, off the event loop."""


async def search(
    sources: AsyncIterator[Source], time_ms: int, span: Span, read: ReadRange, run: Run
) -> RecordTime | None:
    """The first record of this time or a later one. If it may be among records that are lost, the first of
    those: who reads on from there is told."""
    async for extents, key_of in sources:
        at = extents.find_timestamp(time_ms, extents.find(span.start))
        while at < len(extents) and extents.base_offsets[at] < span.limit:
            stored = await read(key_of(extents.files[at]), extents.positions[at], extents.lengths[at])
            found = await run(partial(_in_extent, stored, extents[at], time_ms, span))
            if found is not None:
                return found
            at = extents.find_timestamp(time_ms, at + 1)
    return None


def _in_extent(
    stored: Buffer, extent: Extent, time_ms: int, span: Span, expanded_limit: int | None
) -> RecordTime | None:
    found = first_at_or_after(stored, time_ms, span.start, span.limit, expanded_limit)
    lost = _first_lost(stored, extent, span)
    if lost is not None and (found is None or lost < found.offset):
        return RecordTime(lost, time_ms, span.leader_epoch)
    return found


def _first_lost(stored: Buffer, extent: Extent, span: Span) -> int | None:
    """The first offset of an extent whose batch is not whole."""
    for found in check_extent(stored, 0, extent, span.facts):
        if isinstance(found, Hurt) and found.end > span.start:
            lost = max(found.start, span.start)
            return lost if lost < span.limit else None
    return None


async def offset_at(store: ObjectStore, view: PartitionView, time_ms: int, limit: int) -> int | None:
    """The first offset of a partition below `limit` whose record has this time or a later one, or may have
    had it and is lost; None if there is none. DamagedObjectError if the index of a segment is hurt beyond
    mending, and other StoreErrors."""
    span = Span(view.log_start, limit, view.facts)
    found = await search(_sources(store, view, time_ms), time_ms, span, store.get_range, _in_a_thread)
    return found.offset if found is not None else None


async def _in_a_thread(work: Work) -> RecordTime | None:
    return await asyncio.to_thread(work, None)


async def _sources(store: ObjectStore, view: PartitionView, time_ms: int) -> AsyncIterator[Source]:
    for segment in view.segments:
        if segment.max_timestamp >= time_ms and segment.end_offset > view.log_start:
            yield of_segment(segment, await read_index(store, segment))
    yield Source(view.unsettled, view.file_key)
