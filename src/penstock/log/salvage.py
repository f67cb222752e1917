"""Reads as much as possible of a damaged flush.

A flush says the same more than once. The header has a checksum, and repeats the log's nonce and its own
number. Each batch has a CRC. The index repeats the batch headers, and its blocks join: each begins where the
batches of the one before end, and the last ends where the index begins. So:

    header hurt    a byte is mended by the checksum; else the index is found by its own structure
    index hurt     a byte is mended by the checksum; else its contents are taken from the batches again
    both hurt      blocks are found by the batches that they begin with

A salvaged flush counts like a whole one. This module does not look for hurt batches: their readers find them.
If a flush is beyond help, `FlushDamage` says what recovery needs to bound the loss.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from penstock.log.flush import (
    BLOCK_HEADER,
    FILE_HEADER_SIZE,
    FLUSH_HEADER_SIZE,
    FileHeader,
    FlushHeader,
    iter_blocks,
    unpack_file_body,
    unpack_flush_body,
)
from penstock.wire.batch import (
    CONTROL,
    CRC_AT,
    CRC_FROM,
    HEADER,
    HEADER_SIZE,
    BatchHeader,
    check_batch,
    read_header,
)
from penstock.wire.buffers import Buffer
from penstock.wire.checksum import crc32c
from penstock.wire.correction import mended
from penstock.wire.errors import BatchError

_POSITION = 20  # In a block header the position follows the topic id and the partition.
SECTOR_BYTES = 512
"""A disk writes so many or none; most file systems write eight times as many."""


class FlushDamage(NamedTuple):
    """The loss of a flush, beside the blocks that were salvaged."""

    reason: str
    strays: tuple[tuple[int, int], ...] = ()
    """First and last offset of its whole batches. Whose they are is not certain, also of those in blocks."""
    complete: bool = False
    """Whether the flush held no others."""
    torn: bool = False
    """A loss of power took it before the disk was told to keep it: nobody was promised that it is there. What
    is left in blocks is proven."""


class Salvaged(NamedTuple):
    size: int
    time_ms: int
    blocks: bytes
    damage: FlushDamage | None
    """None: nothing of the flush is lost."""
    nonce: bytes | None = None
    """As its header says, if that is known."""


class _Batch(NamedTuple):
    position: int
    header: BatchHeader


def salvage(region: bytes, number: int, nonce: bytes | None, time_ms: int) -> Salvaged:
    """What is left of the flush that begins `region`, which ends where something else begins.

    `nonce`: of the log, where it is known. `time_ms`: about when the flush was written, if it does not
    say."""
    proven = _proven_header(region, number, nonce)
    for header in (proven, _raw_header(region, number, nonce)):
        if header is not None and header.size <= len(region):
            index = _index(region, header)
            if index is not None:
                return Salvaged(header.size, header.time_ms, index, None, header.nonce)
    if proven is not None and proven.size <= len(region):
        index_at = FLUSH_HEADER_SIZE + proven.data_size
        batches, end = _whole_batches(region, index_at)
        reason = "its index is damaged"
        return _in_part(region[: proven.size], batches, proven.time_ms, reason, complete=end == index_at)
    found = _find_index(region)
    if found is not None:
        start, end = found
        index = _corrected(region, start, end)
        return Salvaged(end, time_ms, index, _unless_proven(region, index))
    batches, _end = _whole_batches(region, len(region))
    reason = "its header and its index are damaged" if region else "it is not there"
    return _in_part(region, batches, time_ms, reason, complete=False)


def mended_file_header(stored: bytes, first_flush: int) -> FileHeader | None:
    """The header of a file that begins with flush `first_flush`, if at most one byte of it is hurt."""
    if len(stored) < FILE_HEADER_SIZE:
        return None
    body = mended(stored[: FILE_HEADER_SIZE - 4], int.from_bytes(stored[FILE_HEADER_SIZE - 4 :][:4], "big"))
    header = unpack_file_body(body) if body is not None else None
    return header if header is not None and header.first_flush == first_flush else None


def is_cut_short(region: Buffer, number: int, nonce: bytes | None) -> bool:
    """Whether bytes are missing at the end of the flush that `region` begins with. Only a header with the
    right checksum says so."""
    if len(region) < FLUSH_HEADER_SIZE:
        return True
    header = _proven_header(region, number, nonce)
    return header is not None and header.size > len(region)


def holes(region: Buffer, position: int) -> list[tuple[int, int]]:
    """Where sectors of these bytes were never written: a loss of power leaves zeros there. Where there is
    nothing at all, that is a hole too.

    They lie at `position` of a file, begin with a flush, and end where a sector or the file ends. What the
    file held before that flush may have been written, so a hole may begin within the first sector."""
    view = memoryview(region)
    ends = [*range(SECTOR_BYTES - position % SECTOR_BYTES, len(view), SECTOR_BYTES), len(view)]
    return [(start, end) for start, end in pairwise((0, *ends)) if not any(view[start:end])]


def is_off_by_a_byte(stored: bytes, header: bytes) -> bool:
    """Whether one changed byte explains why a batch is not the one that the index repeats the header of."""
    changed = sum(one != other for one, other in zip(stored, header, strict=False))
    if changed:
        return changed == 1 and crc32c(header[CRC_FROM:] + stored[HEADER_SIZE:]) == read_header(header).crc
    return mended(stored[CRC_FROM:], read_header(header).crc) is not None


def _proven_header(region: Buffer, number: int, nonce: bytes | None) -> FlushHeader | None:
    """The header by its checksum, a byte mended if need be."""
    if len(region) < FLUSH_HEADER_SIZE:
        return None
    body = mended(bytes(region[8:FLUSH_HEADER_SIZE]), int.from_bytes(region[4:8], "big"))
    return _header_of(body, number, nonce) if body is not None else None


def _raw_header(region: Buffer, number: int, nonce: bytes | None) -> FlushHeader | None:
    """The header as it stands, whatever its checksum."""
    if len(region) < FLUSH_HEADER_SIZE:
        return None
    return _header_of(bytes(region[8:FLUSH_HEADER_SIZE]), number, nonce)


def _header_of(body: bytes, number: int, nonce: bytes | None) -> FlushHeader | None:
    header = unpack_flush_body(body)
    return header if header.number == number and nonce in (None, header.nonce) else None


def _index(region: bytes, header: FlushHeader) -> bytes | None:
    """The index of a flush whose header is right or was mended: as it is, or salvaged."""
    index_at = FLUSH_HEADER_SIZE + header.data_size
    index = region[index_at : header.size]
    again = index if crc32c(index) == header.index_crc else mended(index, header.index_crc)
    if again and _parse(again, 0, index_at) == len(again):
        return again
    batches, end = _whole_batches(region, index_at)
    return _rebuilt(region, index, batches, header.index_crc) if end == index_at else None


def _corrected(region: bytes, start: int, end: int) -> bytes:
    """An index that was found by its structure, with what the CRCs of whole batches cover taken from
    these."""
    index = bytearray(region[start:end])
    at = 0
    position = FLUSH_HEADER_SIZE
    while at < len(index):
        count, control_size = BLOCK_HEADER.unpack_from(index, at)[3:]
        at += BLOCK_HEADER.size
        for _ in range(count):
            size = read_header(index, at).size
            try:
                check_batch(region, position, start)
                index[at + CRC_AT : at + HEADER_SIZE] = region[position + CRC_AT : position + HEADER_SIZE]
            except BatchError:
                pass  # The index is all that is known of it.
            at += HEADER_SIZE
            position += size
        at += control_size
    return bytes(index)


def _unless_proven(region: bytes, index: bytes) -> FlushDamage | None:
    """An index that was found by its structure is right but for the names of partitions, which nothing else
    repeats. If the header still has its checksum, they are right too."""
    if unpack_flush_body(region[8:FLUSH_HEADER_SIZE]).index_crc == crc32c(index):
        return None
    told = [batch.header for block in iter_blocks(index) for batch in block.batches()]
    told += [header for _position, header in _whole_batches(region, len(region))[0]]
    strays = dict.fromkeys((header.base_offset, header.last_offset) for header in told)
    return FlushDamage("its header is damaged", tuple(strays), complete=True)


def _whole_batches(region: bytes, end: int) -> tuple[list[_Batch], int]:
    """The batches from the beginning of the data on, up to the first that is not whole, and where that is."""
    found = []
    at = FLUSH_HEADER_SIZE
    while at < end:
        try:
            header = check_batch(region, at, end)
        except BatchError:
            break
        found.append(_Batch(at, header))
        at += header.size
    return found, at


def _find_index(region: bytes) -> tuple[int, int] | None:
    """Where the index lies, found by its first block: that begins with the first batch."""
    first = FLUSH_HEADER_SIZE.to_bytes(8, "big")
    at = region.find(first, FLUSH_HEADER_SIZE + HEADER_SIZE)
    while at >= 0:
        start = at - _POSITION
        end = _parse(region, start, start)
        if end is not None:
            return start, end
        at = region.find(first, at + 1)
    return None


def _parse(region: bytes, start: int, data_end: int) -> int | None:
    """Where an index ends whose blocks join and cover the data up to `data_end`; None if they do not."""
    at = start
    position = FLUSH_HEADER_SIZE
    while position < data_end:
        if at + BLOCK_HEADER.size > len(region):
            return None
        _topic_id, partition, block_at, count, control_size = BLOCK_HEADER.unpack_from(region, at)
        headers_at = at + BLOCK_HEADER.size
        at = headers_at + count * HEADER_SIZE + control_size
        if block_at != position or partition < 0 or not count or at > len(region):
            return None
        control = 0
        for values in HEADER.iter_unpack(region[headers_at : headers_at + count * HEADER_SIZE]):
            header = BatchHeader._make(values)
            if header.magic != 2 or header.size < HEADER_SIZE:
                return None
            position += header.size
            control += header.size - HEADER_SIZE if header.attributes & CONTROL else 0
        if control != control_size:
            return None
    return at if position == data_end else None


def _rebuilt(region: bytes, index: bytes, batches: Sequence[_Batch], crc: int) -> bytes | None:
    """The index with everything that it repeats taken from the batches again; None if that is not it."""
    parts: list[bytes] = []
    at = done = 0
    while at + BLOCK_HEADER.size <= len(index) and done < len(batches):
        topic_id, partition, _position, count, _control_size = BLOCK_HEADER.unpack_from(index, at)
        block = _block(region, topic_id, partition, batches[done : done + count])
        parts.append(block)
        at += len(block)
        done += max(count, 1)
    whole = b"".join(parts)
    return whole if whole and crc32c(whole) == crc else None


def _block(region: bytes, topic_id: bytes, partition: int, batches: Sequence[_Batch]) -> bytes:
    headers, rests = [], []
    for position, header in batches:
        headers.append(region[position : position + HEADER_SIZE])
        if header.attributes & CONTROL:
            rests.append(region[position + HEADER_SIZE : position + header.size])
    control = b"".join(rests)
    first = batches[0].position if batches else 0
    return BLOCK_HEADER.pack(topic_id, partition, first, len(batches), len(control)) + b"".join(
        (*headers, control)
    )


def _in_part(
    region: bytes, batches: Sequence[_Batch], time_ms: int, reason: str, *, complete: bool
) -> Salvaged:
    """The blocks that are found by their first batch, and are whole. Whose they are is not proven by a
    checksum: recovery takes them if they go on where the partition ends."""
    blocks: list[bytes] = []
    index_at = batches[-1].position + batches[-1].header.size if batches else FLUSH_HEADER_SIZE
    at = 0
    while at < len(batches):
        found = _find_block(region, index_at, batches[at])
        count = 1
        if found is not None:
            topic_id, partition, _position, count, _control_size = BLOCK_HEADER.unpack_from(region, found)
            headers_at = found + BLOCK_HEADER.size
            block = batches[at : at + count]
            same = [_repeats(region, headers_at + n * HEADER_SIZE, batch) for n, batch in enumerate(block)]
            if count and len(same) == count and all(same):
                blocks.append(_block(region, topic_id, partition, block))
            else:
                count = 1
        at += count
    strays = [stray for batch in batches for stray in _offsets(region, index_at, batch)]
    damage = FlushDamage(reason, tuple(strays), complete)
    return Salvaged(len(region), time_ms, b"".join(blocks), damage)


def _offsets(region: bytes, index_at: int, batch: _Batch) -> Iterator[tuple[int, int]]:
    """The offsets of a batch: as it says, and as the index says if that differs, since no CRC covers them."""
    position, header = batch
    yield header.base_offset, header.last_offset
    found = region.find(region[position + CRC_AT : position + HEADER_SIZE], index_at + CRC_AT)
    if found >= 0:
        base = read_header(region, found - CRC_AT).base_offset
        if base != header.base_offset:
            yield base, base + header.last_offset_delta


def _find_block(region: bytes, start: int, batch: _Batch) -> int | None:
    """Where a block header says that its batches begin with this one, and repeats it."""
    needle = batch.position.to_bytes(8, "big")
    at = region.find(needle, start + _POSITION)
    while at >= 0:
        found = at - _POSITION
        if _repeats(region, found + BLOCK_HEADER.size, batch):
            return found
        at = region.find(needle, at + 1)
    return None


def _repeats(region: bytes, at: int, batch: _Batch) -> bool:
    return region[at : at + HEADER_SIZE] == region[batch.position : batch.position + HEADER_SIZE]
