"""Reading a partition of `__consumer_offsets` into a shard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.log.markers import MarkerKind, parse_marker
from penstock.storage.answers import Slice
from penstock.wire.batch import CONTROL, TRANSACTIONAL, iter_batches, iter_raw, records_block
from penstock.wire.errors import WireError

if TYPE_CHECKING:
    from penstock.groups.shard import Shard
    from penstock.storage.ledger import Ledger, Partition
    from penstock.wire.buffers import Buffer

log = logging.getLogger(__name__)

SLICE_BYTES = 128 * 1024
"""Read and applied in one go, some ten milliseconds; then other work gets its turn."""


async def load(ledger: Ledger, partition: Partition, shard: Shard) -> int:
    """Apply every durable record of the partition, in order; how many there were. Raises StoreError."""
    offset, end = partition.log_start_offset, partition.high_watermark
    count = 0
    while offset < end:
        found = ledger.read(partition, offset, SLICE_BYTES, limit_offset=end)
        slice_ = found if isinstance(found, Slice) else await found
        read, offset = _apply(slice_.buffers, offset, shard)
        count += read
        if not read and not slice_.buffers:
            break  # Compaction left nothing up to the end.
        await asyncio.sleep(0)
    return count


def _apply(buffers: Sequence[Buffer], offset: int, shard: Shard) -> tuple[int, int]:
    """How many records there were from `offset` on, and where the next slice begins."""
    data = memoryview(b"".join(buffers))
    count = 0
    for position, header in iter_batches(data):
        following = header.base_offset + header.last_offset_delta + 1
        block = records_block(data, position, header)
        if header.attributes & CONTROL:
            marker = parse_marker(block)
            if marker is not None:
                shard.load_marker(header.producer_id, committed=marker.kind is MarkerKind.COMMIT)
        else:
            producer_id = header.producer_id if header.attributes & TRANSACTIONAL else -1
            for _, delta, key_at, key_end, value_at, value_end, _ in iter_raw(block, header.record_count):
                if header.base_offset + delta < offset or key_end < key_at:
                    continue
                count += 1
                value = block[value_at:value_end] if value_end >= value_at else None
                try:
                    shard.load(block[key_at:key_end], value, producer_id)
                except WireError:
                    # Whoever wrote it, it says nothing that could be acted on.
                    log.exception("a record was skipped offset=%d", header.base_offset + delta)
        offset = following
    return count, offset
