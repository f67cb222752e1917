"""The newest offset of each key in a stretch of a log, in bounded memory.

Kafka keeps a hash of 16 bytes for each key and trusts that no two keys share one. Here a key of up to 46
bytes stands for itself. A BLAKE2b digest of 47 bytes replaces a longer one: no short key can be mistaken for
it, and no producer can find two keys that share one.

A full map takes no more batches. Compaction then cleans with the keys that it has, and goes on from there in
another pass.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from penstock.wire import varint
from penstock.wire.errors import WireError

KEY_BYTES_MAX = 46
_DIGEST_BYTES = KEY_BYTES_MAX + 1

_MARKS_BITS = 20
"""At most so many, as a power of two: a megabyte."""

ENTRY_BYTES = 208
"""What a key costs at the worst moment, when the table has just grown: 80 for the key or its digest, 32 for
the offset, and what old and new table together take, measured."""


class LatestOffsets:
    def __init__(self, bytes_max: int) -> None:
        self.entries_max = max(1, bytes_max // ENTRY_BYTES)
        self.offsets: dict[bytes, int] = {}

    @property
    def full(self) -> bool:
        """Nothing should be added any more. The last batch may have gone beyond the bound: batches are
        taken whole, so that each pass gets on however small the bound is."""
        return len(self.offsets) >= self.entries_max

    def add(self, records: bytes, count: int, base_offset: int, last_delta: int) -> None:
        """Take over the keys of a batch that lies after all others. WireError if it cannot be read; then
        nothing was taken over."""
        self.offsets.update(keys_of(records, count, base_offset, last_delta))


class OffsetMarks:
    """Roughly which offsets of a stretch of the log are wanted. It excludes most batches without a look at
    their keys. If the stretch is long, a mark stands for a few neighbouring offsets."""

    def __init__(self, start_offset: int, end_offset: int) -> None:
        self._start = start_offset
        self._shift = max(0, (end_offset - start_offset).bit_length() - _MARKS_BITS)
        self._marks = bytearray(((end_offset - start_offset) >> self._shift) + 1)

    def add(self, offsets: Iterable[int]) -> None:
        """Offsets outside of the stretch are passed over."""
        start, shift, marks = self._start, self._shift, self._marks
        count = len(marks)
        for offset in offsets:
            at = (offset - start) >> shift
            if 0 <= at < count:
                marks[at] = 1

    def touch(self, base_offset: int, last_offset: int) -> bool:
        """Whether one of these offsets may be wanted."""
        start, shift = self._start, self._shift
        return self._marks.find(1, (base_offset - start) >> shift, ((last_offset - start) >> shift) + 1) >= 0


def map_key(key: bytes) -> bytes:
    """What stands for a key in the map."""
    return key if len(key) <= KEY_BYTES_MAX else blake2b(key, digest_size=_DIGEST_BYTES).digest()


def keys_of(  # noqa: PLR0915  One loop, without calls: each would cost a quarter of it.
    data: bytes, count: int, base_offset: int, last_delta: int
) -> dict[bytes, int]:
    """The keys in a records block, each with the offset of its last record. WireError if the block is not
    what the batch says, offsets that do not rise included: compaction could not tell which record is newer.

    Runs once for each record of a compacted topic, so numbers of one and two bytes, which nearly all are,
    are read in place, and whatever lies after the key is jumped over.
    """
    found: dict[bytes, int] = {}
    read = varint.read_zigzag
    pos, end = 0, len(data)
    previous = -1
    try:
        for _ in range(count):
            size = data[pos]
            pos += 1
            if size > 127:
                more = data[pos]
                if more < 128:
                    size = size & 127 | more << 7
                    pos += 1
                else:
                    size, pos = read(data, pos - 1)
                    size <<= 1
            stop = pos + (size >> 1)
            if size & 1 or not pos < stop <= end:
                raise WireError("a record claims an impossible size")
            pos += 1  # The record's attributes, which are unused.
            while data[pos] > 127:  # The timestamp.
                pos += 1
            pos += 1
            offset = data[pos]
            pos += 1
            if offset > 127:
                more = data[pos]
                if more < 128:
                    offset = offset & 127 | more << 7
                    pos += 1
                else:
                    offset, pos = read(data, pos - 1)
                    offset <<= 1
            if offset & 1 or offset <= previous:
                raise WireError("the offsets of a batch do not rise")
            previous = offset
            size = data[pos]
            pos += 1
            if size > 127:
                size, pos = read(data, pos - 1)
                size <<= 1
            if size >= 0 and not size & 1:
                key_end = pos + (size >> 1)
                if key_end >= stop:
                    raise WireError("a record is shorter than its key")
                key = data[pos:key_end]
                if size > 2 * KEY_BYTES_MAX:
                    key = map_key(key)
                found[key] = base_offset + (offset >> 1)
            pos = stop
    except IndexError:
        raise WireError("the records end too soon") from None
    if pos != end or previous > 2 * last_delta:
        raise WireError("there are more records than the batch says")
    return found


def kept_records(
    data: bytes, count: int, base_offset: int, newest: Mapping[bytes, int], tombstones_stay: bool
) -> tuple[list[tuple[int, int]], bool]:
    """Where the records start and end that no later record replaces, and whether tombstones are among them.

    The same walk as in `keys_of`, and for the same reason: every record of the clean part is looked at in
    every pass.
    """
    kept: list[tuple[int, int]] = []
    tombstones = False
    read = varint.read_zigzag
    pos, end = 0, len(data)
    try:
        for _ in range(count):
            start = pos
            size = data[pos]
            pos += 1
            if size > 127:
                size, pos = read(data, pos - 1)
                size <<= 1
            stop = pos + (size >> 1)
            if size & 1 or not pos < stop <= end:
                raise WireError("a record claims an impossible size")
            pos += 1
            while data[pos] > 127:
                pos += 1
            pos += 1
            offset = data[pos]
            pos += 1
            if offset > 127:
                offset, pos = read(data, pos - 1)
                offset <<= 1
            size = data[pos]
            pos += 1
            if size > 127:
                size, pos = read(data, pos - 1)
                size <<= 1
            if size >= 0 and not size & 1:
                key_end = pos + (size >> 1)
                if key_end >= stop:
                    raise WireError("a record is shorter than its key")
                key = data[pos:key_end]
                if size > 2 * KEY_BYTES_MAX:
                    key = map_key(key)
                if newest.get(key, -1) <= base_offset + (offset >> 1):
                    if data[key_end] != 1:  # The length of a value that is there is not -1.
                        kept.append((start, stop))
                    elif tombstones_stay:
                        kept.append((start, stop))
                        tombstones = True
            pos = stop
    except IndexError:
        raise WireError("the records end too soon") from None
    if pos != end:
        raise WireError("there are more records than the batch says")
    return kept, tombstones
