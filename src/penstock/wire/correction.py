"""Finding the one bit that was flipped, by what it did to a CRC32C.

A CRC is linear: the checksum of hurt bytes differs from that of the whole ones by something that depends only
on which bits were flipped and how far from the end. So the difference is walked back from the end, a byte at
a time, until it is that of a single bit. A step costs a table look-up, and the bytes themselves are not read.

That is proof only as far as 32 bits go. Of damage that is not one flipped bit, one case in 2**32 / (8 *
bytes) looks as if it were. So long stretches are not corrected here, and callers check whatever else the
bytes must agree with.
"""

from collections.abc import Iterator
from typing import Final, Literal

from penstock.wire.buffers import Buffer
from penstock.wire.checksum import crc32c

CORRECTED_BYTES_MAX: Final = 128 * 1024
"""Of other damage to this many bytes, one case in 4096 would be taken for a flipped bit."""

_POLYNOMIAL: Final = 0x82F63B78


def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        state = byte
        for _ in range(8):
            state = (state >> 1) ^ (_POLYNOMIAL if state & 1 else 0)
        table.append(state)
    return tuple(table)


_TABLE: Final = _table()
_BY_TOP: Final = {value >> 24: index for index, value in enumerate(_TABLE)}
_BITS: Final = {_TABLE[1 << bit]: bit for bit in range(8)}


def find_flip(length: int, difference: int) -> tuple[int, int] | None:
    """The byte and the bit whose flip changes the CRC32C of `length` bytes by `difference`."""
    state = difference
    for at in range(length - 1, -1, -1):
        bit = _BITS.get(state)
        if bit is not None:
            return at, bit
        low = _BY_TOP[state >> 24]
        state = ((state ^ _TABLE[low]) << 8 & 0xFFFFFFFF) | low
    return None


def corrections(
    stored: Buffer, start: int, end: int, checksum_at: int, order: Literal["big", "little"] = "big"
) -> Iterator[bytearray]:
    """Every way in which one flipped bit makes `stored` agree with the CRC32C at `checksum_at`, which covers
    the bytes from `start` up to `end`. Bits that it does not cover are all tried, where the checksum is right
    as it is. The caller takes the first that makes sense."""
    if len(stored) > CORRECTED_BYTES_MAX:
        return
    checksum = int.from_bytes(stored[checksum_at : checksum_at + 4], order)
    difference = crc32c(memoryview(stored)[start:end]) ^ checksum
    if not difference:
        covered = {*range(start, end), *range(checksum_at, checksum_at + 4)}
        for at in range(len(stored)):
            if at not in covered:
                for bit in range(8):
                    yield _flipped(stored, at, bit)
        return
    if difference.bit_count() == 1:
        bit = difference.bit_length() - 1
        byte = bit // 8
        yield _flipped(stored, checksum_at + (byte if order == "little" else 3 - byte), bit % 8)
    found = find_flip(end - start, difference)
    if found is not None:
        yield _flipped(stored, start + found[0], found[1])


def _flipped(stored: Buffer, at: int, bit: int) -> bytearray:
    changed = bytearray(stored)
    changed[at] ^= 1 << bit
    return changed
