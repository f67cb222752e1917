"""Extents become ranges to read, and ranges become whole batches to answer with."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from penstock.log.extents import Extents
from penstock.wire.buffers import Buffer

_STEP = struct.Struct(">qi")  # base offset, length
_LAST_DELTA = struct.Struct(">i")
_LAST_DELTA_AT = 23
_PREFIX = 12

GAP_BYTES_MAX = 32 * 1024
"""Reading over a gap of this size costs less than another read."""


class Piece(NamedTuple):
    """An extent within a range that is read in one go."""

    start: int
    length: int


class Range(NamedTuple):
    """One read: `length` bytes from `position` of a file, and the pieces of it that are wanted."""

    file: int
    position: int
    length: int
    pieces: list[Piece]


class BatchAt(NamedTuple):
    position: int
    size: int
    base_offset: int
    last_offset: int


def plan_ranges(extents: Extents, first: int, max_bytes: int, limit_offset: int) -> list[Range]:
    """Ranges that hold the extents from `first` on, up to `max_bytes` of them but at least one.

    Neighbours in one file become one range. A range never spans more than `max_bytes` and gaps.
    """
    ranges: list[Range] = []
    pieces: list[Piece] = []
    file = start = stop = -1  # Of the range that is being put together.
    total = 0
    at = first
    end = len(extents)
    while at < end and extents.base_offsets[at] < limit_offset:
        length = extents.lengths[at]
        # Part of an extent that does not fit may fit: unless that wastes much, it is read and then cut.
        if total and length > max_bytes - total + GAP_BYTES_MAX:
            break
        position = extents.positions[at]
        if pieces and extents.files[at] == file and 0 <= position - stop <= GAP_BYTES_MAX:
            pieces.append(Piece(position - start, length))
        else:
            if pieces:
                ranges.append(Range(file, start, stop - start, pieces))
            pieces = [Piece(0, length)]
            file, start = extents.files[at], position
        stop = position + length
        total += length
        at += 1
        if total >= max_bytes:
            break
    if pieces:
        ranges.append(Range(file, start, stop - start, pieces))
    return ranges


def iter_batches(buffer: Buffer, start: int = 0, end: int | None = None) -> Iterator[BatchAt]:
    """The batches that lie one after the other in stored bytes."""
    end = len(buffer) if end is None else end
    while start < end:
        base, length = _STEP.unpack_from(buffer, start)
        (delta,) = _LAST_DELTA.unpack_from(buffer, start + _LAST_DELTA_AT)
        size = _PREFIX + length
        yield BatchAt(start, size, base, base + delta)
        start += size


def cut(
    pieces: list[memoryview], offset: int, max_bytes: int, limit_offset: int
) -> tuple[list[Buffer], int, int]:
    """Whole batches from the one that contains `offset` on, below `limit_offset`: the buffers, their bytes,
    the offset after them. At most `max_bytes`, but at least one batch if there is one.

    Only the first piece and those at the end are walked batch by batch: a piece is taken whole if it begins
    at or after `offset`, fits, and a piece after it begins below the limit too.
    """
    taken: list[Buffer] = []
    size = 0
    next_offset = offset
    for number, piece in enumerate(pieces):
        base = _STEP.unpack_from(piece)[0]
        following = pieces[number + 1] if number + 1 < len(pieces) else None
        if base >= offset and size + len(piece) <= max_bytes and following is not None:
            after = _STEP.unpack_from(following)[0]
            if after < limit_offset:
                taken.append(piece)
                size += len(piece)
                # Offsets are contiguous but for compaction, after which no record lies between.
                next_offset = after
                continue
        start = end = -1
        full = False
        for batch in iter_batches(piece):
            if batch.last_offset < offset:
                continue
            if batch.last_offset >= limit_offset or (size and size + batch.size > max_bytes):
                full = True
                break
            if start < 0:
                start = batch.position
            end = batch.position + batch.size
            size += batch.size
            next_offset = batch.last_offset + 1
        if start >= 0:
            taken.append(piece[start:end])
        if full:
            break
    return taken, size, next_offset
