"""Where the batches of one partition lie: columns of extents, in the order of offsets.

An extent is a run of adjacent batches in one file or object. Small batches that lie side by side share one,
up to EXTENT_BYTES. So the index stays small and a lookup walks few batch headers. Each extent keeps the
greatest timestamp in it, so it is the time index too.

The extents are columns of machine integers, not an object each: a busy broker holds some hundred thousand.

Stored form (of a segment's index): a count, then the columns base offset, last offset, greatest timestamp,
position, length, each as little-endian 64-bit integers, then a CRC32C of all before it.
"""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from penstock.wire.buffers import Buffer
from penstock.wire.checksum import crc32c

if TYPE_CHECKING:
    from penstock.log.partition import Placed

EXTENT_BYTES = 64 * 1024
_WORD = 8
_COLUMNS = 5


class Extent(NamedTuple):
    base_offset: int
    last_offset: int
    max_timestamp: int
    position: int
    length: int
    file: int = 0


class ExtentsError(Exception):
    """The stored index is damaged."""


class Extents:
    __slots__ = ("base_offsets", "files", "last_offsets", "lengths", "max_timestamps", "positions")

    def __init__(self) -> None:
        self.base_offsets = array("q")
        self.last_offsets = array("q")
        self.max_timestamps = array("q")
        self.positions = array("q")
        self.lengths = array("q")
        self.files = array("q")
        """Which file: a number that the owner of the extents understands."""

    def __len__(self) -> int:
        return len(self.base_offsets)

    def __getitem__(self, at: int) -> Extent:
        return Extent(
            self.base_offsets[at],
            self.last_offsets[at],
            self.max_timestamps[at],
            self.positions[at],
            self.lengths[at],
            self.files[at],
        )

    def append(
        self,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        position: int,
        length: int,
        file: int = 0,
    ) -> None:
        """Add a batch (or a run of them) after the last one; it joins the last extent if it touches it."""
        lengths = self.lengths
        if (
            lengths
            and self.positions[-1] + lengths[-1] == position
            and lengths[-1] + length <= EXTENT_BYTES
            and self.files[-1] == file
            and self.last_offsets[-1] + 1 == base_offset
        ):
            lengths[-1] += length
            self.last_offsets[-1] = last_offset
            self.max_timestamps[-1] = max(self.max_timestamps[-1], max_timestamp)
            return
        self.base_offsets.append(base_offset)
        self.last_offsets.append(last_offset)
        self.max_timestamps.append(max_timestamp)
        self.positions.append(position)
        lengths.append(length)
        self.files.append(file)

    def append_batches(
        self, batches: "Iterable[tuple[Buffer, Placed, object]]", position: int, file: int
    ) -> int:
        """Add batches that lie side by side from `position` on, offset after offset; where they end.

        On the hot path: one `append` for as many of them as share an extent."""
        start = position
        base = last = latest = 0
        for batch, (base_offset, last_offset, timestamp, _append_time), _done in batches:
            size = len(batch)
            if position + size - start > EXTENT_BYTES and position > start:
                self.append(base, last, latest, start, position - start, file)
                start = position
            if position == start:
                base, latest = base_offset, timestamp
            elif timestamp > latest:
                latest = timestamp
            last = last_offset
            position += size
        if position > start:
            self.append(base, last, latest, start, position - start, file)
        return position

    def extend(self, other: "Extents", files: "array[int]") -> None:
        """Add all extents of another run, which begins after the last one here, as they are."""
        for mine, theirs in zip(self._stored(), other._stored(), strict=True):
            mine.extend(theirs)
        self.files.extend(files)

    def find(self, offset: int) -> int:
        """The first extent that ends at or after `offset`; len(self) if there is none."""
        return bisect_left(self.last_offsets, offset)

    def find_timestamp(self, timestamp: int, start: int = 0) -> int:
        """The first extent from `start` on with a record at or after `timestamp`; len(self) if none."""
        times = self.max_timestamps
        for at in range(start, len(times)):
            if times[at] >= timestamp:
                return at
        return len(times)

    def total_bytes(self) -> int:
        return sum(self.lengths)

    def is_of(self, base_offset: int, end_offset: int, size_bytes: int) -> bool:
        """Whether these can be all extents of a segment that begins and ends so and has so many bytes."""
        offset = base_offset
        for base, last in zip(self.base_offsets, self.last_offsets, strict=True):
            if not offset <= base <= last:
                return False
            offset = last + 1
        return offset <= end_offset and min(self.lengths, default=1) > 0 and self.total_bytes() == size_bytes

    def slice(self, start: int, end: int) -> "Extents":
        part = Extents()
        for mine, theirs in zip(part.columns(), self.columns(), strict=True):
            mine.extend(theirs[start:end])
        return part

    def moved(self, by: int) -> "Extents":
        """The same batches, `by` bytes further on."""
        there = self.slice(0, len(self))
        there.positions = array("q", (position + by for position in self.positions))
        return there

    def columns(self) -> tuple["array[int]", ...]:
        """Base offsets, last offsets, greatest timestamps, positions, lengths, files."""
        return (*self._stored(), self.files)

    def _stored(self) -> tuple["array[int]", ...]:
        return self.base_offsets, self.last_offsets, self.max_timestamps, self.positions, self.lengths

    def encode(self) -> bytes:
        count = array("q", (len(self),))
        body = b"".join(_little(column).tobytes() for column in (count, *self._stored()))
        return body + crc32c(body).to_bytes(4, "little")

    @classmethod
    def decode(cls, stored: Buffer) -> "Extents":
        body = memoryview(stored)[:-4]
        if len(stored) < _WORD + 4 or crc32c(body) != int.from_bytes(stored[-4:], "little"):
            raise ExtentsError("the index has a wrong checksum")
        count = int.from_bytes(body[:_WORD], "little")
        if len(body) != _WORD * (1 + _COLUMNS * count):
            raise ExtentsError("the index has a wrong size")
        extents = cls()
        at = _WORD
        for column in extents._stored():
            column.frombytes(body[at : at + _WORD * count])
            _little(column, in_place=True)
            at += _WORD * count
        extents.files.frombytes(bytes(_WORD * count))
        return extents


def _little(column: "array[int]", *, in_place: bool = False) -> "array[int]":
    if sys.byteorder == "little":
        return column
    swapped = column if in_place else column[:]
    swapped.byteswap()
    return swapped
