"""Checks batches that were read from the store, before a reader gets them.

The check is a quick look at each batch: its CRC, its leader epoch, and that lengths and offsets join from the
first to the last of the extent. It costs about half a microsecond a batch, and sixty a megabyte. If it finds
anything, `checking` tells which batches are lost. One step looks at a bounded number of batches. The code is
on the path of cold reads, and plain for it.

Small batches cost by their number. So this module remembers the checksum over all bytes of an extent of many
batches that it found whole. Next time that one checksum proves that the bytes are the same. Bytes are never
taken for whole without a look at them.
"""

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from penstock.log.checking import Facts, Hurt, check_extent
from penstock.log.epochs import epoch_span
from penstock.log.extents import Extent
from penstock.wire.batch import CRC_FROM, HEADER_SIZE, LENGTH_FROM
from penstock.wire.checksum import crc32c

_FRONT = Struct(">qiibI2xi")
"""Base offset, length, leader epoch, magic, CRC, the last offset's delta."""
_LENGTH_MIN = HEADER_SIZE - LENGTH_FROM

STEP_BATCHES = 2000
STEP_BYTES = 16 * 1024 * 1024
"""About a millisecond, which is less than it takes to read as much from a page cache."""
SUMMED_BATCHES_MIN = 8
"""With fewer batches in an extent, one checksum of all of it is not much cheaper than theirs."""
SUMS_MAX = 8192
"""Half a gigabyte of records in extents of usual size; some three megabytes of memory."""


class ExtentBytes(NamedTuple):
    """The bytes of an extent, the offsets in it, and the partition that they are of, if it matters."""

    stored: memoryview
    base_offset: int
    last_offset: int
    topic_id: bytes = b""
    partition: int = 0


class Sums:
    """Checksums of extents that were found whole, each over all bytes of one extent. They stay true when
    settling moves the bytes, because it does not change them. The oldest go first."""

    def __init__(self, count_max: int = SUMS_MAX) -> None:
        self._count_max = count_max
        self._sums: dict[tuple[bytes, int, int, int], int] = {}

    def __len__(self) -> int:
        return len(self._sums)

    def vouch(self, extent: ExtentBytes) -> bool:
        """Are these the bytes that were found whole before?"""
        known = self._sums.get((extent.topic_id, extent.partition, extent.base_offset, extent.last_offset))
        return known is not None and crc32c(extent.stored) == known

    def learn(self, extent: ExtentBytes) -> None:
        place = (extent.topic_id, extent.partition, extent.base_offset, extent.last_offset)
        self._sums[place] = crc32c(extent.stored)
        if len(self._sums) > self._count_max:
            del self._sums[next(iter(self._sums))]


def all_whole(extents: Iterable[ExtentBytes], facts: Facts) -> Iterator[bool]:
    """Whether all batches of extents are whole, step by step: False as soon as one is not."""
    look = Verification((), facts)
    left = STEP_BATCHES
    for extent in extents:
        look._at = 0
        while True:
            count = look._verify(extent, left)
            if count is None:
                yield False
                return
            left -= count
            if left <= 0:
                yield True
                left = STEP_BATCHES
            if look._at == len(extent.stored):
                break
    yield True


class Lost(NamedTuple):
    """Offsets from `start` up to, not including, `end` whose batches are not whole."""

    start: int
    end: int
    reason: str


class Verification:
    """Looks at extents in order, in steps. `runs` are stretches of whole batches, `lost` are the ranges
    between."""

    def __init__(self, extents: Sequence[ExtentBytes], facts: Facts, sums: Sums | None = None) -> None:
        self.runs: list[memoryview] = []
        self.lost: list[Lost] = []
        self._extents = extents
        self._facts = facts
        self._sums = sums
        self._number = 0
        self._at = self._offset = 0
        """Where in the present extent it goes on, and with which offset."""

    def step(self) -> bool:
        """Go on; True once everything was looked at."""
        left, size, sums = STEP_BATCHES, 0, self._sums
        while self._number < len(self._extents):
            if left <= 0 or size >= STEP_BYTES:
                return False
            extent = self._extents[self._number]
            known = (
                sums is not None
                and extent.last_offset - extent.base_offset >= SUMMED_BATCHES_MIN - 1
                and not self._at
                and sums.vouch(extent)
            )
            count = 1 if known else self._verify(extent, left)
            if count is None:
                self._look_closely(extent)
            elif not known and self._at < len(extent.stored):
                return False
            else:
                if sums is not None and count >= SUMMED_BATCHES_MIN:
                    sums.learn(extent)
                self.runs.append(extent.stored)
                left -= count
                size += len(extent.stored)
            self._number += 1
            self._at = 0
        return True

    def _verify(self, extent: ExtentBytes, limit: int) -> int | None:
        """Look at up to `limit` batches; how many there were, None if one is not whole."""
        stored, end = extent.stored, len(extent.stored)
        at = self._at
        offset = self._offset if at else extent.base_offset
        gaps = extent.base_offset < self._facts.compacted_end
        last_header = end - HEADER_SIZE
        unpack, checksum = _FRONT.unpack_from, crc32c
        epochs = self._facts.epochs
        epoch, epoch_end = epoch_span(epochs, offset)
        count = 0
        while at <= last_header and count < limit:
            base, length, leader_epoch, magic, crc, delta = unpack(stored, at)
            if base >= epoch_end:
                epoch, epoch_end = epoch_span(epochs, base)
            if base != offset and not (gaps and at and offset < base <= extent.last_offset):
                return None
            stop = at + LENGTH_FROM + length
            if magic != 2 or stop > end or length < _LENGTH_MIN or delta < 0:
                return None
            if leader_epoch != epoch and epoch >= 0:
                return None
            if checksum(stored[at + CRC_FROM : stop]) != crc:
                return None
            at = stop
            offset = base + delta + 1
            count += 1
        if last_header < at < end:
            return None
        if at == end and offset != extent.last_offset + 1:
            return None
        self._at, self._offset = at, offset
        return count

    def _look_closely(self, extent: ExtentBytes) -> None:
        """Split an extent into what is whole and what is lost. Rare, and not bounded by steps."""
        place = Extent(extent.base_offset, extent.last_offset, 0, 0, len(extent.stored))
        start = end = 0
        for found in check_extent(extent.stored, 0, place, self._facts):
            if isinstance(found, Hurt):
                if end > start:
                    self.runs.append(extent.stored[start:end])
                self.lost.append(Lost(found.start, found.end, found.reason))
                start = end = found.position + found.length
            else:
                end = found.position + found.header.size
        if end > start:
            self.runs.append(extent.stored[start:end])
