"""Decides which records go into which segment objects.

A run is a stretch of one partition's extents that becomes one piece of one object. Runs respect segment.bytes
and segment.ms. They are packed in the order of partitions: large ones get an object of their own, small ones
share.

An object stays until the last of its pieces goes. So pieces share an object only if they are likely to go at
about the same time: compacted partitions lie apart from those that go by size, and these apart from those
that go by age.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from penstock.log.extents import EXTENT_BYTES, Extents
from penstock.log.manifest import SegmentRef
from penstock.log.policy import UNLIMITED, LogPolicy

OWN_OBJECT_BYTES = 1024 * 1024
"""A run of this size gets an object of its own: it can then be deleted without waiting for others."""
SHARED_OBJECT_BYTES = 64 * 1024 * 1024
SOURCE_BYTES_MAX = 1024 * 1024
"""What is copied in one go is in memory as a whole, and is checked there."""


class Source(NamedTuple):
    """Bytes to copy: `length` from `position` of a file (a number that the caller understands), in which
    batches lie from `base_offset` to `last_offset`."""

    file: int
    position: int
    length: int
    base_offset: int
    last_offset: int


def split(extents: Extents, bytes_max: int, span_ms_max: int) -> Iterator[Extents]:
    """Cut a partition's extents into stretches of at most `bytes_max` (or one extent) that span at most
    `span_ms_max` of record time, as segment.bytes and segment.ms ask."""
    if not extents:
        return
    times = extents.max_timestamps
    if extents.total_bytes() <= bytes_max and max(times) - min(times) <= span_ms_max:
        yield extents
        return
    start = 0
    size = 0
    for at in range(len(extents)):
        length = extents.lengths[at]
        if at > start and (size + length > bytes_max or times[at] - times[start] > span_ms_max):
            yield extents.slice(start, at)
            start, size = at, 0
        size += length
    yield extents.slice(start, len(extents))


class Layout:
    """Batches copied one after the other from a position on: their new extents, and the bytes to copy."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.extents = Extents()
        self.sources: list[Source] = []

    def add(self, run: Extents, start: int, end: int) -> None:
        """Place the extents from `start` up to, not including, `end` of a run. Neighbours in the source whose
        offsets join are copied in one go.

        One turn for each batch where many partitions write small ones in turn: written plainly for it."""
        extents, sources, position = self.extents, self.sources, self.position
        first, latest, placed, size = 0, 0, position, 0
        """The new extent that is being made."""
        file, source_at, length, base_offset, last = sources.pop() if sources else Source(-1, 0, 0, 0, -1)
        columns = (column[start:end] for column in run.columns())
        for base, last_offset, timestamp, at, grows, of in zip(*columns, strict=True):
            joins = base == last + 1
            if size and joins and size + grows <= EXTENT_BYTES:
                size += grows
                latest = max(latest, timestamp)
            else:
                if size:
                    extents.append(first, last, latest, placed, size)
                first, latest, placed, size = base, timestamp, position, grows
            position += grows
            if joins and source_at + length == at and file == of and length + grows <= SOURCE_BYTES_MAX:
                length += grows
            else:
                if length:
                    sources.append(Source(file, source_at, length, base_offset, last))
                file, source_at, length, base_offset = of, at, grows, base
            last = last_offset
        if size:
            extents.append(first, last, latest, placed, size)
        if length:
            sources.append(Source(file, source_at, length, base_offset, last))
        self.position = position


def lifetime(policy: LogPolicy) -> tuple[bool, bool, int]:
    """What is alike for runs that are likely to go together: whether keys, size or age decide, and the order
    of magnitude of the age."""
    by_age = policy.delete and policy.retention_ms != UNLIMITED
    age = policy.retention_ms.bit_length() // 4 if by_age else UNLIMITED
    return policy.compact, policy.delete and policy.retention_bytes != UNLIMITED, age


def pack(sizes: Sequence[int], kinds: Sequence[Hashable] = ()) -> Iterator[list[int]]:
    """Group runs, given by their sizes in the order of partitions, into objects: lists of their numbers.
    Where
    `kinds` are given, only runs of one kind share an object."""
    shared: dict[Hashable, list[int]] = {}
    shared_bytes: dict[Hashable, int] = {}
    for number, size in enumerate(sizes):
        if size >= OWN_OBJECT_BYTES:
            yield [number]
            continue
        kind = kinds[number] if kinds else None
        if shared_bytes.get(kind, 0) + size > SHARED_OBJECT_BYTES:
            yield shared.pop(kind)
            shared_bytes[kind] = 0
        shared.setdefault(kind, []).append(number)
        shared_bytes[kind] = shared_bytes.get(kind, 0) + size
    yield from shared.values()


def worth_adopting(file_bytes: int, live_bytes: int, extent_count: int, partition_count: int) -> bool:
    """Whether a whole write-ahead file serves as a segment as it is, without being copied.

    It does if it is mostly live batches of few partitions in large pieces: then reading one partition
    from it is nearly sequential, and little space waits for another partition's retention.
    """
    return (
        file_bytes >= 1024 * 1024
        and live_bytes * 10 >= file_bytes * 9
        and partition_count <= 8
        and live_bytes >= extent_count * 8 * 1024
    )


def merge_range(segments: Sequence[SegmentRef], count: int, bytes_max: int, span_ms_max: int) -> range | None:
    """Neighbouring small segments to merge into one: the newest `count` or more of one size class.

    Size classes grow by the factor `count`, so each record is copied a logarithmic number of times.
    """
    end = len(segments)
    while end >= count:
        limit = max(segments[end - 1].size_bytes, 64 * 1024) * count
        start = end
        size = 0
        while start > 0:
            segment = segments[start - 1]
            span = segments[end - 1].max_timestamp - segment.min_timestamp
            if segment.size_bytes > limit or size + segment.size_bytes > bytes_max or span > span_ms_max:
                break
            size += segment.size_bytes
            start -= 1
        if end - start >= count:
            return range(start, end)
        end = min(end - 1, start) if start < end else end - 1
    return None
