"""Checks that stored batches are as they were written, against the index that says where they lie.

A batch's CRC covers all but its first 21 bytes. Those are known from elsewhere: the base offset from the
index and the batches before it, the length from the position of the next batch, the leader epoch from the
partition's table of epochs. Compaction leaves offsets out between batches; there a base offset is only known
to lie between those of its neighbours.

A hurt batch does not hide the batches behind it. The check looks for the next position at which a whole batch
of a later offset begins; the range before that position is hurt.
"""

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from penstock.log.epochs import EpochStart, epoch_at
from penstock.log.extents import Extent
from penstock.wire.batch import (
    CRC_AT,
    CRC_FROM,
    HEADER,
    HEADER_SIZE,
    LENGTH_FROM,
    BatchHeader,
    check_batch,
    read_header,
)
from penstock.wire.buffers import Buffer
from penstock.wire.correction import corrections
from penstock.wire.errors import BatchError

_PREFIX = Struct(">qiib")
"""Base offset, length, leader epoch, magic."""


class Whole(NamedTuple):
    """A batch that is as it was written."""

    position: int
    header: BatchHeader


class Hurt(NamedTuple):
    """Bytes in which one or more batches should lie whole and do not: `length` from `position`. The offsets
    from `start` up to, not including, `end` are missing."""

    position: int
    length: int
    start: int
    end: int
    reason: str


class Facts(NamedTuple):
    """The known facts of a partition's batches beside their index."""

    epochs: Sequence[EpochStart]
    compacted_end: int
    """Below this, offsets may be missing between batches."""

    def problem(self, header: BatchHeader, expected: int, last: int) -> str | None:
        """Why a batch that matches its CRC cannot be the next one: it begins at `expected` or, where
        compaction has been, later, and ends no later than `last`."""
        base = header.base_offset
        if base != expected and not expected < base < self.compacted_end:
            return f"a batch says that it begins at offset {base}, not {expected}"
        if header.last_offset > last:
            return f"a batch says that it ends at offset {header.last_offset}, and the index at {last}"
        epoch = epoch_at(self.epochs, base)
        if epoch >= 0 and header.leader_epoch != epoch:
            return f"a batch says that it has leader epoch {header.leader_epoch}, not {epoch}"
        return None


def check_extent(stored: Buffer, start: int, extent: Extent, facts: Facts) -> Iterator[Whole | Hurt]:
    """The batches of one extent, whose bytes are in `stored` from `start` on. Positions are given as in the
    object that the extent lies in."""
    moved = extent.position - start
    end = start + extent.length
    at, expected = start, extent.base_offset
    first = True
    while at < end:
        header, problem = _next(stored, at, end, expected, extent.last_offset, facts)
        if problem is None and first and header is not None and header.base_offset != expected:
            problem = f"the extent begins at offset {header.base_offset}, and the index says {expected}"
        first = False
        if header is not None and problem is None:
            yield Whole(at + moved, header)
            at += header.size
            expected = header.last_offset + 1
            continue
        following = _resume(stored, at, end, expected, extent.last_offset, facts)
        stop, after = (end, extent.last_offset + 1) if following is None else following
        yield Hurt(at + moved, stop - at, expected, after, problem or "a batch is damaged")
        at, expected = stop, after
    if expected <= extent.last_offset:
        reason = f"the index says that offset {extent.last_offset} is the last one"
        yield Hurt(extent.position, extent.length, expected, extent.last_offset + 1, reason)


def _next(
    stored: Buffer, at: int, end: int, expected: int, last: int, facts: Facts
) -> tuple[BatchHeader | None, str | None]:
    try:
        header = check_batch(stored, at, end)
    except BatchError as error:
        return None, str(error)
    return header, facts.problem(header, expected, last)


def _resume(
    stored: Buffer, at: int, end: int, expected: int, last: int, facts: Facts
) -> tuple[int, int] | None:
    """Where the next whole batch begins behind the one at `at`, and its base offset."""
    if end - at < HEADER_SIZE:
        return None
    length = read_header(stored, at).length + LENGTH_FROM
    # Mostly the length is not what is hurt.
    places = [at + length] if HEADER_SIZE <= length <= end - at - HEADER_SIZE else []
    for place in (*places, *_places(stored, at + HEADER_SIZE, end, expected, last)):
        try:
            header = check_batch(stored, place, end)
        except BatchError:
            continue
        base = header.base_offset
        if expected < base and header.last_offset <= last and facts.problem(header, base, last) is None:
            return place, base
    return None


def _places(stored: Buffer, start: int, end: int, expected: int, last: int) -> Iterator[int]:
    """Where a later batch may begin, by the part of its header that its CRC does not cover."""
    for place in range(start, end - HEADER_SIZE + 1):
        base, length, _epoch, magic = _PREFIX.unpack_from(stored, place)
        if (
            magic == 2
            and expected < base <= last
            and HEADER_SIZE - LENGTH_FROM <= length <= end - place - LENGTH_FROM
        ):
            yield place


def logged_problem(stored: Buffer, header: BatchHeader) -> str | None:
    """Why `stored` is not the batch of a flush whose header the flush's index repeats; None if it is."""
    try:
        check_batch(stored, 0, min(header.size, len(stored)))
    except BatchError as error:
        return str(error)
    if bytes(stored[:HEADER_SIZE]) != HEADER.pack(*header):
        return "the header of a batch is not what the flush's index repeats"
    return None


def correct_batch(stored: Buffer, fits: Callable[[BatchHeader], bool]) -> bytes | None:
    """The batch that fills `stored`, if it is whole but for one bit and then fits."""
    for candidate in corrections(stored, CRC_FROM, len(stored), CRC_AT):
        try:
            header = check_batch(candidate)
        except BatchError:
            continue
        if header.size == len(stored) and fits(header):
            return bytes(candidate)
    return None
