"""Offsets by time, from the store: extents narrow the search, then one extent is read and decoded."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from penstock.log.extents import ExtentsError
from penstock.log.times import first_at_or_after
from penstock.spark.errors import CorruptLogError
from penstock.spark.read.view import PartitionView, TailPiece
from penstock.storage.ledger.reading import decode_index
from penstock.storage.stores.objects import ObjectStore


class _Place(NamedTuple):
    """A run of batches that may hold what is looked for."""

    key: str
    position: int
    length: int


async def offset_at(store: ObjectStore, view: PartitionView, time_ms: int, limit: int) -> int | None:
    """The first offset below `limit` whose record has this time or a later one; None if there is none."""
    async for place in _places(store, view, time_ms, limit):
        stored = await store.get_range(place.key, place.position, place.length)
        found = await asyncio.to_thread(first_at_or_after, stored, time_ms, view.log_start, limit)
        if found is not None:
            return found.offset
    return None


async def _places(store: ObjectStore, view: PartitionView, time_ms: int, limit: int) -> AsyncIterator[_Place]:
    for segment in view.segments:
        if segment.max_timestamp < time_ms or segment.end_offset <= view.log_start:
            continue
        if segment.base_offset >= limit:
            return
        stored = await store.get_range(segment.index_key, segment.index_start, segment.index_length)
        try:
            extents = decode_index(stored, segment)
        except ExtentsError as error:
            raise CorruptLogError(
                f"Topic {view.topic!r} partition {view.index} has a damaged index in"
                f" {segment.index_key}: {error}."
            ) from None
        at = extents.find_timestamp(time_ms, extents.find(view.log_start))
        while at < len(extents) and extents.base_offsets[at] < limit:
            yield _Place(segment.key, extents.positions[at], extents.lengths[at])
            at = extents.find_timestamp(time_ms, at + 1)
    tail: Sequence[TailPiece] = view.tail(view.log_start, limit)
    for piece in tail:
        if piece.max_timestamp >= time_ms:
            yield _Place(piece.key, piece.position, piece.length)
