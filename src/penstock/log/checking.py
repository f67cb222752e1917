<<<<<<< HEAD
"""Whether stored batches are what was written: checked against the index that says where they lie.

A batch's CRC covers all but its first 21 bytes. What is in those is known from elsewhere: the base offset
from the index and the batches before it, the length from where the next one begins, the leader epoch from
the partition's table of epochs. Where compaction has been, offsets are missing between batches; there a base
offset is only known to lie between those of its neighbours.

A batch that is hurt does not hide those behind it: the next place at which a whole batch of a later offset
begins is looked for, and the range between is what is hurt.
"""

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from penstock.log.epochs import EpochStart, epoch_at
from penstock.log.extents import Extent
from penstock.wire.batch import HEADER_SIZE, LENGTH_FROM, BatchHeader, check_batch, read_header
from penstock.wire.buffers import Buffer
from penstock.wire.correction import corrections
from penstock.wire.errors import BatchError

_PREFIX = Struct(">qiib")
"""Base offset, length, leader epoch, magic."""
_CRC_AT = 17
_CRC_FROM = 21


class Whole(NamedTuple):
    """A batch that is as it was written."""

    position: int
    header: BatchHeader


class Hurt(NamedTuple):
    """Bytes in which a whole batch should lie, or some: `length` from `position`. The offsets from `start` up
    to, not including, `end` are not accounted for."""

    position: int
    length: int
    start: int
    end: int
    reason: str


class Rules(NamedTuple):
    """What is known of a partition's batches beside their index."""

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


def check_extent(stored: Buffer, start: int, extent: Extent, rules: Rules) -> Iterator[Whole | Hurt]:
    """The batches of one extent, whose bytes are in `stored` from `start` on. Positions are given as in the
    object that the extent lies in."""
    moved = extent.position - start
    end = start + extent.length
    at, expected = start, extent.base_offset
    first = True
    while at < end:
        header, problem = _next(stored, at, end, expected, extent.last_offset, rules)
        if problem is None and first and header is not None and header.base_offset != expected:
            problem = f"the extent begins at offset {header.base_offset}, and the index says {expected}"
        first = False
        if header is not None and problem is None:
            yield Whole(at + moved, header)
            at += header.size
            expected = header.last_offset + 1
            continue
        following = _resume(stored, at, end, expected, extent.last_offset, rules)
        stop, after = (end, extent.last_offset + 1) if following is None else following
        yield Hurt(at + moved, stop - at, expected, after, problem or "a batch is damaged")
        at, expected = stop, after
    if expected <= extent.last_offset:
        reason = f"the index says that offset {extent.last_offset} is the last one"
        yield Hurt(extent.position, extent.length, expected, extent.last_offset + 1, reason)


def _next(
    stored: Buffer, at: int, end: int, expected: int, last: int, rules: Rules
) -> tuple[BatchHeader | None, str | None]:
    try:
        header = check_batch(stored, at, end)
    except BatchError as error:
        return None, str(error)
    return header, rules.problem(header, expected, last)


def _resume(
    stored: Buffer, at: int, end: int, expected: int, last: int, rules: Rules
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
        if expected < base and header.last_offset <= last and rules.problem(header, base, last) is None:
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


def correct_batch(stored: Buffer, fits: Callable[[BatchHeader], bool]) -> bytes | None:
    """The batch that fills `stored`, if it is whole but for one bit and then fits."""
    for candidate in corrections(stored, _CRC_FROM, len(stored), _CRC_AT):
        try:
            header = check_batch(candidate)
        except BatchError:
            continue
        if header.size == len(stored) and fits(header):
            return bytes(candidate)
    return None
=======
"""Whether stored batches are still as they were written: what is read from the store is checked before anybody
gets it.

The CRC of a batch covers all but its base offset, its length and its leader epoch. Offsets and lengths join: the
batches of an extent lie one after the other, offset after offset, from its first to its last. So a batch that is
hurt anywhere but in its leader epoch is found, and the next one that is whole tells where the damage ends. Where
compaction was, offsets may be left out, but never go back.

One step checks a bounded number of batches. On the hot path of cold reads, and plain for it.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from penstock.wire.batch import CRC_FROM, HEADER_SIZE, LENGTH_FROM
from penstock.wire.buffers import Buffer
from penstock.wire.checksum import crc32c

_FRONT = Struct(">qiibI2xi")
"""Base offset, length, leader epoch, magic, CRC, the last offset's delta."""
_LENGTH_MIN = HEADER_SIZE - LENGTH_FROM
_BASE = Struct(">q")
_MAGIC = b"\x02"
_MAGIC_AT = 16

STEP_BATCHES = 500
STEP_BYTES = 4 * 1024 * 1024
"""About half a millisecond."""


class ExtentBytes(NamedTuple):
    """The bytes of an extent, and the offsets that lie in it."""

    stored: memoryview
    base_offset: int
    last_offset: int


class Lost(NamedTuple):
    """Offsets from `start` up to, not including, `end` whose batches are not whole."""

    start: int
    end: int


class Check:
    """Checks extents in order, in steps. `runs` are the stretches of whole batches, `lost` what lies between."""

    def __init__(self, extents: Sequence[ExtentBytes], compacted_end: int = 0) -> None:
        """Below `compacted_end` offsets may be left out."""
        self.runs: list[memoryview] = []
        self.lost: list[Lost] = []
        self._extents = extents
        self._compacted_end = compacted_end
        self._number = 0
        self._at = 0
        self._offset = extents[0].base_offset if extents else 0

    def step(self) -> bool:
        """Go on checking; True once everything was."""
        batches = size = 0
        while self._number < len(self._extents):
            if batches >= STEP_BATCHES or size >= STEP_BYTES:
                return False
            piece = self._extents[self._number]
            start = self._at
            stored, end = piece.stored, len(piece.stored)
            at, offset = start, self._offset
            gaps = piece.base_offset < self._compacted_end
            limit = batches + STEP_BATCHES
            while at < end and batches < limit:
                batch = _whole_batch(stored, at, end, offset, piece.last_offset if gaps and at else offset)
                if batch is None:
                    break
                at, offset = batch
                batches += 1
            size += at - start
            if at > start:
                self.runs.append(stored[start:at])
            if at < end and batches < limit:
                at, after = _find_whole(stored, at, end, offset, piece.last_offset)
                self.lost.append(Lost(offset, after))
                offset = after
            elif at == end and offset != piece.last_offset + 1:
                # The index has the right checksum, so it is the batches that are not what they were.
                self.lost.append(Lost(offset, piece.last_offset + 1))
            self._at, self._offset = at, offset
            if at >= end:
                self._number += 1
                self._at = 0
                if self._number < len(self._extents):
                    self._offset = self._extents[self._number].base_offset
        return True


def _whole_batch(stored: Buffer, at: int, end: int, offset: int, latest: int) -> tuple[int, int] | None:
    """Where the batch at `at` ends, and the offset after it; None if it is not whole, or does not begin with an
    offset from `offset` to `latest`."""
    if at + HEADER_SIZE > end:
        return None
    base, length, _epoch, magic, crc, delta = _FRONT.unpack_from(stored, at)
    stop = at + LENGTH_FROM + length
    if not offset <= base <= latest or magic != 2 or length < _LENGTH_MIN or stop > end or delta < 0:
        return None
    if crc32c(stored[at + CRC_FROM : stop]) != crc:
        return None
    return stop, base + delta + 1


def _find_whole(stored: memoryview, at: int, end: int, offset: int, last_offset: int) -> tuple[int, int]:
    """The next whole batch after the one at `at`: where it begins, and its base offset; the end if there is
    none."""
    for start in _candidates(stored, at, end):
        (base,) = _BASE.unpack_from(stored, start)
        if offset < base <= last_offset and _whole_batch(stored, start, end, base, base) is not None:
            return start, base
    return end, last_offset + 1


def _candidates(stored: memoryview, at: int, end: int) -> Iterator[int]:
    """Where a batch may begin: behind the hurt one if its length is right, else wherever it could."""
    length = _FRONT.unpack_from(stored, at)[1] if at + HEADER_SIZE <= end else -1
    behind = at + LENGTH_FROM + length
    if at < behind <= end - HEADER_SIZE:
        yield behind
    rest = bytes(stored[at:end])
    found = rest.find(_MAGIC, _MAGIC_AT + 1)
    while 0 <= found <= len(rest) - (HEADER_SIZE - _MAGIC_AT):
        yield at + found - _MAGIC_AT
        found = rest.find(_MAGIC, found + 1)
>>>>>>> b6be892 (A flipped bit in a write-ahead log ends nothing: what is hurt is salvaged or said, and what was refused is tried again)
