"""The batches of a range of offsets: where they lie, and reading them a window at a time."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from penstock.log.checking import Facts
from penstock.log.epochs import EpochStart, without_below
from penstock.log.extents import Extent, Extents
from penstock.log.isolation import Isolation
from penstock.log.manifest import HurtRange, SegmentRef
from penstock.log.slicing import plan_ranges
from penstock.log.verifying import ExtentBytes, Verification
from penstock.storage.reader.indexes import decode_index
from penstock.storage.reader.view import PartitionView, TailPiece
from penstock.storage.stores.blocking import BlockingStore, Read
from penstock.storage.stores.objects import DamagedObjectError, Range
from penstock.wire.buffers import Buffer

WINDOW_BYTES = 8 * 1024 * 1024
"""Read and decoded at a time: an Arrow batch's worth."""


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """Records of one partition, and where they lay when the view was read."""

    topic: str
    topic_id: bytes
    partition: int
    low: int
    high: int
    aborted: tuple[tuple[int, int, int], ...]
    """Producer id, first and last offset of the transactions whose records are not to be seen."""
    segments: tuple[SegmentRef, ...]
    tail: tuple[TailPiece, ...]
    lost: str = ""
    """Why the store does not hold these records any more; empty if it does."""
    epochs: tuple[EpochStart, ...] = ()
    compacted_end: int = 0
    """Below this, offsets may be missing between batches."""

    @property
    def facts(self) -> Facts:
        """What its batches are checked against."""
        return Facts(self.epochs, self.compacted_end)


class Window(NamedTuple):
    """Batches that are read in one go: where the runs of them lie in the bytes, and where they end."""

    pieces: list[tuple[int, int]]
    end_offset: int
    extents: list[Extent]
    """With their positions in the bytes."""


class HurtIndexError(DamagedObjectError):
    """The index of a segment is not as it was written."""

    def __init__(self, segment: SegmentRef, reason: str) -> None:
        super().__init__(reason)
        self.segment = segment


def hurt_in(view: PartitionView, low: int, high: int) -> list[HurtRange]:
    """What the store lost of a range, cut to it."""
    return [
        HurtRange(max(one.start, low), min(one.end, high), one.reason)
        for one in view.hurt
        if one.end > low and one.start < high
    ]


def lost_stretch(view: PartitionView, hurt: HurtRange) -> Stretch:
    """Records that nobody can read. A reader says so, or passes over them, as its user wants it."""
    return Stretch(
        view.topic, view.topic_id, view.index, hurt.start, hurt.end, (), (), (), hurt.reason or "damaged"
    )


def stretch_of(view: PartitionView, low: int, high: int, isolation: Isolation) -> Stretch:
    """Where the records of a range lie. At READ_COMMITTED, `high` is at most the view's stable end: only
    below it is known what became of transactions."""
    facts = view.facts
    hidden = view.aborted(low, high) if isolation is Isolation.READ_COMMITTED else ()
    return Stretch(
        view.topic,
        view.topic_id,
        view.index,
        low,
        high,
        tuple((one.producer_id, one.first_offset, one.last_offset) for one in hidden),
        tuple(s for s in view.segments if s.end_offset > low and s.base_offset < high),
        tuple(view.tail(low, high)),
        epochs=tuple(one for one in without_below(facts.epochs, low) if one[1] < high),
        compacted_end=facts.compacted_end,
    )


def windows(store: BlockingStore, stretch: Stretch, start: int) -> Iterator[Read[Window]]:
    """The reads that bring a stretch from `start` on, in order; `about` is the Window. HurtIndexError if the
    index of a segment is hurt beyond mending, and other StoreErrors."""
    for segment in stretch.segments:
        if segment.end_offset > start:
            yield from _of_extents(_index(store, segment), [segment.key], start, stretch.high)
    tail, keys = _as_extents(stretch.tail)
    yield from _of_extents(tail, keys, start, stretch.high)


def verified(data: Buffer, window: Window, facts: Facts) -> Verification:
    """Which batches of a window are as they were written, and what is lost."""
    view = memoryview(data)
    extents = [
        ExtentBytes(view[one.position : one.position + one.length], one.base_offset, one.last_offset)
        for one in window.extents
    ]
    verification = Verification(extents, facts)
    while not verification.step():
        pass
    return verification


def _index(store: BlockingStore, segment: SegmentRef) -> Extents:
    stored = store.read_range(Range(segment.index_key, segment.index_start, segment.index_length))
    try:
        return decode_index(stored, segment)
    except DamagedObjectError as error:
        raise HurtIndexError(segment, str(error)) from None


def _of_extents(extents: Extents, keys: Sequence[str], start: int, high: int) -> Iterator[Read[Window]]:
    at = extents.find(start)
    while at < len(extents) and extents.base_offsets[at] < high:
        # Partitions that are written at the same time lie in turns in a file: many ranges make a window.
        ranges: list[Range] = []
        pieces: list[tuple[int, int]] = []
        places: list[Extent] = []
        size = 0
        for part in plan_ranges(extents, at, WINDOW_BYTES, high):
            ranges.append(Range(keys[part.file], part.position, part.length))
            for number, piece in enumerate(part.pieces, at):
                place = size + piece.start
                places.append(extents[number]._replace(position=place))
                before = pieces.pop() if pieces and sum(pieces[-1]) == place else (place, 0)
                pieces.append((before[0], before[1] + piece.length))
            at += len(part.pieces)
            size += part.length
        yield Read(ranges, Window(pieces, extents.last_offsets[at - 1] + 1, places))


def _as_extents(tail: Sequence[TailPiece]) -> tuple[Extents, list[str]]:
    extents = Extents()
    keys: dict[str, int] = {}
    for key, position, length, base, last, timestamp in tail:
        extents.append(base, last, timestamp, position, length, keys.setdefault(key, len(keys)))
    return extents, list(keys)
