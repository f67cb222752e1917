"""The write-ahead log's bytes: a file of flushes, or one object per flush.

A flush holds the batches of every partition that the broker appended to in one go:

    header   52 bytes   FLUSH_HEADER, below
    data                the batches, whole, grouped by partition, nothing between them
    index               per partition: BLOCK_HEADER, then the 61-byte header of each of its batches,
                        then whatever follows those 61 bytes of each control batch

The index repeats batch headers because they say everything that recovery needs (offsets, sequences,
times, epochs, and by the batch length also positions), so that a log of gigabytes is recovered by reading
its indexes alone. Markers of transactions carry their meaning in the record, so they are repeated whole.

The index comes last and the header carries its CRC: a flush that was cut short anywhere has a wrong index
CRC. That is where a log ends if nothing whole follows; else it is damage (`salvage`). A file begins with
FILE_HEADER and a random nonce that every flush header repeats. Bytes that a producer chose, or that an
earlier use of the same blocks left behind, are therefore never taken for a flush.

All integers are big-endian, as in the batches.
"""

import struct
from collections.abc import Container, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from penstock.wire.batch import CONTROL, HEADER, HEADER_SIZE, BatchHeader
from penstock.wire.buffers import Buffer
from penstock.wire.checksum import crc32c

_FLUSH_MAGIC = b"PWF1"
_FLUSH_BODY = struct.Struct(">Q8sQIIIQ")
FLUSH_HEADER_SIZE = 8 + _FLUSH_BODY.size

_FILE_MAGIC = b"PNSTKWL1"
_FILE_BODY = struct.Struct(">8sHiqQQ8s16s")
FILE_HEADER_SIZE = _FILE_BODY.size + 4
NONCE_AT = 16
"""Where the nonce lies in a flush header."""

BLOCK_HEADER = struct.Struct(">16siQII")
"""topic id, partition, position of the first batch in the flush, batches, bytes of control records after
the batch headers."""

FILE_SYNCED = 1


class FlushError(Exception):
    """The bytes are not a whole flush of this log."""


class FileHeader(NamedTuple):
    flags: int
    broker: int
    epoch: int
    number: int
    first_flush: int
    nonce: bytes
    boot: bytes
    """Identifies the machine's boot: a file written under the present boot cannot have lost what the
    operating system accepted."""


class FlushHeader(NamedTuple):
    number: int
    nonce: bytes
    data_size: int
    index_size: int
    index_crc: int
    batch_count: int
    time_ms: int

    @property
    def size(self) -> int:
        return FLUSH_HEADER_SIZE + self.data_size + self.index_size


class FlushedBatch(NamedTuple):
    header: BatchHeader
    position: int
    """From the first byte of the flush."""
    control: bytes
    """What follows the 61-byte header, for control batches only."""


class FlushBlock(NamedTuple):
    """The batches of one partition in one flush. They are decoded when asked for: a reader that looks for
    some partitions steps over the others."""

    topic_id: bytes
    partition: int
    position: int
    batch_count: int
    headers: memoryview
    control: memoryview

    def batches(self) -> Iterator[FlushedBatch]:
        position = self.position
        at = 0
        for values in HEADER.iter_unpack(self.headers):
            header = BatchHeader._make(values)
            control = b""
            if header.attributes & CONTROL:
                rest = header.size - HEADER_SIZE
                control = bytes(self.control[at : at + rest])
                at += rest
            yield FlushedBatch(header, position, control)
            position += header.size


def encode_file_header(header: FileHeader) -> bytes:
    body = _FILE_BODY.pack(_FILE_MAGIC, *header)
    return body + crc32c(body).to_bytes(4, "big")


def decode_file_header(buf: Buffer) -> FileHeader:
    if len(buf) < FILE_HEADER_SIZE:
        raise FlushError("the file is shorter than its header")
    body = bytes(buf[: _FILE_BODY.size])
    if crc32c(body) != int.from_bytes(buf[_FILE_BODY.size : FILE_HEADER_SIZE], "big"):
        raise FlushError("the file header has a wrong checksum")
    magic, *fields = _FILE_BODY.unpack(body)
    if magic != _FILE_MAGIC:
        raise FlushError("the file is not a write-ahead log of this format version")
    return FileHeader(*fields)


def encode_flush_header(
    number: int, nonce: bytes, data_size: int, index: Buffer, batch_count: int, time_ms: int
) -> bytes:
    """The header of a flush whose index block is `index`. On the hot path: once per flush."""
    body = _FLUSH_BODY.pack(number, nonce, data_size, len(index), crc32c(index), batch_count, time_ms)
    return _FLUSH_MAGIC + crc32c(body).to_bytes(4, "big") + body


def decode_flush_header(buf: Buffer) -> FlushHeader:
    if len(buf) < FLUSH_HEADER_SIZE or bytes(buf[:4]) != _FLUSH_MAGIC:
        raise FlushError("no flush begins here")
    body = bytes(buf[8:FLUSH_HEADER_SIZE])
    if crc32c(body) != int.from_bytes(buf[4:8], "big"):
        raise FlushError("the flush header has a wrong checksum")
    return FlushHeader(*_FLUSH_BODY.unpack(body))


def unpack_flush_body(body: Buffer) -> FlushHeader:
    """What follows magic and checksum in a flush header, unchecked."""
    return FlushHeader(*_FLUSH_BODY.unpack(body))


def unpack_file_body(body: Buffer) -> FileHeader:
    """What a file header says, its checksum left out and unchecked."""
    _magic, *fields = _FILE_BODY.unpack(body)
    return FileHeader(*fields)


def check_index(header: FlushHeader, index: Buffer) -> None:
    if len(index) != header.index_size or crc32c(index) != header.index_crc:
        raise FlushError("the flush was cut short")


def iter_blocks(index: Buffer) -> Iterator[FlushBlock]:
    """The blocks of an index whose checksum was right."""
    view = memoryview(index)
    at = 0
    while at < len(view):
        topic_id, partition, position, count, control_size = BLOCK_HEADER.unpack_from(view, at)
        headers_at = at + BLOCK_HEADER.size
        control_at = headers_at + count * HEADER_SIZE
        at = control_at + control_size
        if at > len(view):
            raise FlushError("the index block is longer than the index")
        yield FlushBlock(
            topic_id, partition, position, count, view[headers_at:control_at], view[control_at:at]
        )


def without_batches(index: Buffer, gone: Container[int]) -> bytes:
    """The same index without the batches that begin at these positions of the flush."""
    parts: list[Buffer] = []
    for block in iter_blocks(index):
        for is_gone, some in groupby(block.batches(), lambda batch: batch.position in gone):
            if is_gone:
                continue
            kept = list(some)
            control = b"".join(batch.control for batch in kept)
            named = (block.topic_id, block.partition, kept[0].position, len(kept), len(control))
            parts += (BLOCK_HEADER.pack(*named), *(HEADER.pack(*batch.header) for batch in kept), control)
    return b"".join(parts)


def encode_index(blocks: Sequence[tuple[bytes, int, Sequence[Buffer]]]) -> bytes:
    """The index of whole batches by (topic id, partition). The ledger builds the same bytes in place."""
    parts: list[Buffer] = []
    position = FLUSH_HEADER_SIZE
    for topic_id, partition, batches in blocks:
        rests = [batch[HEADER_SIZE:] for batch in batches if is_control(batch)]
        control_size = sum(map(len, rests))
        parts.append(BLOCK_HEADER.pack(topic_id, partition, position, len(batches), control_size))
        parts.extend(batch[:HEADER_SIZE] for batch in batches)
        parts.extend(rests)
        position += sum(map(len, batches))
    return b"".join(parts)


def is_control(batch: Buffer) -> bool:
    # The attributes are two bytes at 21; the flag lies in the low one.
    return bool(batch[22] & CONTROL)
