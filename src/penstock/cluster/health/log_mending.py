"""Mends a hurt file of a sealed write-ahead log in memory, to its state before.

A flush's index repeats the header of each batch, so a header is taken from there, however many of its bits
are hurt. Else one flipped bit can be corrected, or a segment has the batch.
"""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.cluster.health.findings import Finding
from penstock.cluster.health.flushes import (
    FlushAt,
    StoredBytes,
    any_flush,
    read_flush,
)
from penstock.cluster.health.sources import Sources
from penstock.log.checking import Facts, correct_batch, logged_problem
from penstock.log.flush import (
    FILE_HEADER_SIZE,
    FLUSH_HEADER_SIZE,
    FlushedBatch,
    FlushError,
    decode_file_header,
    encode_file_header,
    encode_flush_header,
    iter_blocks,
)
from penstock.log.salvage import mended_file_header
from penstock.metadata.image import PartitionKey
from penstock.wire.batch import HEADER, HEADER_SIZE, check_batch
from penstock.wire.errors import BatchError

_ANYTHING = Facts((), 1 << 62)


class MendedLog(NamedTuple):
    stored: bytes
    left: list[tuple[int, int]]
    """The ranges of bytes that stay hurt."""

    def is_left(self, finding: Finding) -> bool:
        if finding.position < 0:
            return True
        end = finding.position + max(finding.length, 1)
        return any(finding.position < stop and start < end for start, stop in self.left)


async def mend_log(
    stored: bytes,
    key: str,
    end: int | None,
    sources: Sources,
    facts: Mapping[PartitionKey, Facts],
    *,
    in_file: bool,
) -> MendedLog:
    """The file, or object, with everything corrected that can be. `end`: the agreed end of the log."""
    whole = bytearray(stored)
    left: list[tuple[int, int]] = []
    number = int(key.rpartition("/")[2]) - (0 if in_file else 1)
    position = 0
    nonce = None
    if in_file:
        nonce = _mend_file_header(whole, number, left)
        position = FILE_HEADER_SIZE
    if not in_file:
        end = number + 1
    while position < len(whole) and (end is None or number < end):
        window = StoredBytes(key, bytes(whole))
        flush = await read_flush(window, position, number, nonce)
        if flush is None:
            flush = await any_flush(window, position, number, nonce, in_file=in_file)
            if flush is not None and flush.header.number == number:
                _patch(whole, flush)
            elif flush is None and end is None:
                break  # Where it was cut short.
            else:
                left.append((position, flush.position if flush is not None else len(whole)))
        if flush is None:
            break
        await _mend_batches(whole, flush, left, sources, facts)
        position, number = flush.position + flush.header.size, flush.header.number + 1
        nonce = flush.header.nonce
    return MendedLog(bytes(whole), left)


def _mend_file_header(whole: bytearray, first: int, left: list[tuple[int, int]]) -> bytes | None:
    try:
        return decode_file_header(whole).nonce
    except FlushError:
        pass
    header = mended_file_header(bytes(whole[:FILE_HEADER_SIZE]), first)
    if header is None:
        left.append((0, FILE_HEADER_SIZE))
        return None
    whole[:FILE_HEADER_SIZE] = encode_file_header(header)
    return header.nonce


def _patch(whole: bytearray, flush: FlushAt) -> None:
    header = flush.header
    start, index_at = flush.position, flush.position + FLUSH_HEADER_SIZE + header.data_size
    whole[start : start + FLUSH_HEADER_SIZE] = encode_flush_header(
        header.number, header.nonce, header.data_size, flush.blocks, header.batch_count, header.time_ms
    )
    whole[index_at : index_at + header.index_size] = flush.blocks


async def _mend_batches(
    whole: bytearray,
    flush: FlushAt,
    left: list[tuple[int, int]],
    sources: Sources,
    facts: Mapping[PartitionKey, Facts],
) -> None:
    for block in iter_blocks(flush.blocks):
        key = (block.topic_id, block.partition)
        for batch in block.batches():
            start = flush.position + batch.position
            stop = start + batch.header.size
            if logged_problem(whole[start:stop], batch.header) is not None:
                mended = await _mended(bytes(whole[start:stop]), batch, key, sources, facts)
                if mended is None:
                    left.append((start, stop))
                else:
                    whole[start:stop] = mended


async def _mended(
    stored: bytes,
    batch: FlushedBatch,
    key: PartitionKey,
    sources: Sources,
    facts: Mapping[PartitionKey, Facts],
) -> bytes | None:
    header = batch.header
    repeated = HEADER.pack(*header) + stored[HEADER_SIZE:]
    try:
        check_batch(repeated)
        return repeated
    except BatchError:
        pass
    known = facts.get(key, _ANYTHING)
    found = await sources.find(key, header.base_offset, header.last_offset + 1, known)
    copy = found.batches[0] if found is not None and len(found.batches) == 1 else b""
    if copy[:HEADER_SIZE] == repeated[:HEADER_SIZE]:
        return copy
    return correct_batch(repeated, lambda candidate: candidate == header)
