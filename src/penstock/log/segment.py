"""A segment object: batches of one or many partitions, sorted by partition, and where to find them.

    batches                 of each partition, whole, in the order of offsets
    one index per piece     `extents` in stored form
    footer                  MessagePack of Footer, its CRC32C and its length (four bytes each, big-endian),
                            and the magic

A piece is the records of one partition in one object. Manifests point straight to indexes, so readers of a
partition never need the footer; it tells an audit, or a garbage collector, whose records an object holds.

An index object has the same form without batches: the indexes of write-ahead files that became segments
without being copied.
"""

import msgspec

from penstock.wire.buffers import Buffer
from penstock.wire.checksum import crc32c

MAGIC = b"PSEG1\0\0\n"
TRAILER_SIZE = 4 + 4 + len(MAGIC)


class SegmentError(Exception):
    """The object is not a segment, or damaged."""


class PieceRef(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic_id: bytes
    partition: int
    base_offset: int
    end_offset: int
    index_start: int
    index_length: int
    data_key: str = ""
    """The object that holds the batches, where it is not this one."""


class Footer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pieces: tuple[PieceRef, ...]


def encode_footer(footer: Footer) -> bytes:
    body = msgspec.msgpack.encode(footer)
    return body + crc32c(body).to_bytes(4, "big") + len(body).to_bytes(4, "big") + MAGIC


def footer_size(trailer: Buffer) -> int:
    """The bytes of the whole footer, from the last TRAILER_SIZE bytes of the object."""
    if len(trailer) != TRAILER_SIZE or bytes(trailer[-len(MAGIC) :]) != MAGIC:
        raise SegmentError("the object does not end as a segment does")
    return int.from_bytes(trailer[4:8], "big") + TRAILER_SIZE


def decode_footer(stored: Buffer) -> Footer:
    """The footer from its `footer_size` bytes."""
    size = footer_size(stored[-TRAILER_SIZE:])
    body = memoryview(stored)[:-TRAILER_SIZE]
    if len(stored) != size or crc32c(body) != int.from_bytes(stored[-TRAILER_SIZE : 4 - TRAILER_SIZE], "big"):
        raise SegmentError("the footer has a wrong checksum")
    try:
        return msgspec.msgpack.decode(body, type=Footer)
    except msgspec.MsgspecError as error:
        raise SegmentError(f"the footer cannot be read: {error}") from error
