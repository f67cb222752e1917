"""Where bytes can rot: a flipped bit at chosen places of a write-ahead file, and at any place of an object.

The layout is written down here once more, on purpose: the broker's own reader must not say where a header is.
"""

import random
import struct
from pathlib import Path
from typing import NamedTuple

FLUSH_HEADER_BYTES = 52
FLUSH_MAGIC = b"PWF1"
_SIZES = struct.Struct(">QII")
"""Within a flush header from byte 24: bytes of data, bytes of index, checksum of the index."""


class Flush(NamedTuple):
    start: int
    data_bytes: int
    index_bytes: int

    @property
    def index_start(self) -> int:
        return self.start + FLUSH_HEADER_BYTES + self.data_bytes

    @property
    def end(self) -> int:
        return self.index_start + self.index_bytes


def flushes(stored: bytes) -> list[Flush]:
    """The flushes of a healthy write-ahead file."""
    found, at = [], stored.index(FLUSH_MAGIC)
    while stored[at : at + 4] == FLUSH_MAGIC:
        data_bytes, index_bytes, _crc = _SIZES.unpack_from(stored, at + 24)
        flush = Flush(at, data_bytes, index_bytes)
        found.append(flush)
        at = flush.end
    return found


def wal_places(stored: bytes) -> dict[str, int]:
    """Bytes of a write-ahead file by what they belong to."""
    found = flushes(stored)
    first, middle, last = found[0], found[len(found) // 2], found[-1]
    return {
        "file header": 10,
        "file's nonce": 40,
        "first flush's magic": first.start,
        "first flush's header": first.start + 30,
        "middle flush's header": middle.start + 12,
        "middle flush's sizes": middle.start + 27,
        "middle flush's index": middle.index_start + 20,
        "middle flush's batch header": middle.start + FLUSH_HEADER_BYTES + 3,
        "middle flush's records": middle.start + FLUSH_HEADER_BYTES + middle.data_bytes - 5,
        "last flush's header": last.start + 12,
        "last flush's index": last.index_start + 20,
        "last flush's records": last.start + FLUSH_HEADER_BYTES + last.data_bytes - 5,
    }


def flip(path: Path, at: int, bit: int = 3) -> None:
    """Flip one bit in place; once more heals it."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << bit)]))


def flip_somewhere(path: Path, chance: random.Random) -> tuple[int, int]:
    """Flip one bit anywhere; where."""
    at, bit = chance.randrange(path.stat().st_size), chance.randrange(8)
    flip(path, at, bit)
    return at, bit
