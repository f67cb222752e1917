"""Finds the changed byte in damaged bytes, by the effect of the change on their CRC32C.

A CRC is linear: the checksum of hurt bytes differs from the checksum of the whole ones by a value that
depends only on which bits were changed and how far from the end. This module walks that difference back from
the end, a byte at a time, to the place where it fits into a single byte. A step costs a table look-up, and
the bytes themselves are not read.

This is proof only as far as 32 bits go. Of other damage, one case in 2**32 / (255 * bytes) looks as if one
byte was changed, and one in 2**32 / (8 * bytes) as if one bit was. So this module leaves long stretches
alone, and callers check whatever else the bytes must agree with. `mended` is for bytes that say the same more
than once: numbers that are known, offsets and lengths that join. `corrections` is for the rest, and flips
single bits.
"""

from collections.abc import Iterator
from typing import Final, Literal

from penstock.wire.buffers import Buffer
from penstock.wire.checksum import crc32c

CORRECTED_BYTES_MAX: Final = 128 * 1024
"""Of other damage to this many bytes, one case in 4096 would be taken for a flipped bit."""
MENDED_BYTES_MAX: Final = 1024 * 1024
"""Some tenths of a second."""

_POLYNOMIAL: Final = 0x82F63B78
_BYTES_OF_CRC: Final = (0xFF, 0xFF00, 0xFF0000, 0xFF000000)


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


def _changes(length: int, difference: int) -> Iterator[tuple[int, int]]:
    """Each of `length` bytes whose change alone changes the CRC32C by `difference`, from the last one on, and
    which bits of it."""
    state = difference
    for at in range(length - 1, -1, -1):
        low = _BY_TOP[state >> 24]
        state = ((state ^ _TABLE[low]) << 8 & 0xFFFFFFFF) | low
        if state < 256:
            yield at, state


def mended(data: bytes, crc: int) -> bytes | None:
    """`data` as it must have been if at most one byte was changed, of it or of `crc`; None if it is more."""
    if len(data) > MENDED_BYTES_MAX:
        return None
    difference = crc32c(data) ^ crc
    if not difference or any(difference & mask == difference for mask in _BYTES_OF_CRC):
        return data
    return next((bytes(_changed(data, *change)) for change in _changes(len(data), difference)), None)


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
                    yield _changed(stored, at, 1 << bit)
        return
    if difference.bit_count() == 1:
        right = bytearray(stored)
        right[checksum_at : checksum_at + 4] = (checksum ^ difference).to_bytes(4, order)
        yield right
    for at, bits in _changes(end - start, difference):
        if bits.bit_count() == 1:
            yield _changed(stored, start + at, bits)


def _changed(stored: Buffer, at: int, bits: int) -> bytearray:
    changed = bytearray(stored)
    changed[at] ^= bits
    return changed
