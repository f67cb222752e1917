"""Reads the records of a partition into its shard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.log.markers import MarkerKind, parse_marker
from penstock.log.replaying import LOST_OFFSETS_MAX
from penstock.storage.partitions.answers import Slice
from penstock.storage.stores.objects import HurtRangeError
from penstock.wire.batch import (
    CONTROL,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    iter_batches,
    iter_raw,
    records_block,
)
from penstock.wire.errors import WireError

if TYPE_CHECKING:
    from penstock.shards.shard import Shard
    from penstock.storage.ledger.ledger import Ledger, Partition
    from penstock.wire.batch import BatchHeader
    from penstock.wire.buffers import Buffer

log = logging.getLogger(__name__)

SLICE_BYTES = 128 * 1024
"""Read in one go, some milliseconds; then other work gets its turn."""
APPLIED_AT_ONCE = 500
"""Records taken into the shard in one go, likewise."""
_NOTHING = b""


async def load(ledger: Ledger, partition: Partition, shard: Shard) -> int:
    """Apply every durable record of the partition, in order; how many there were. Raises StoreError, also if
    records are damaged: who was told of a commit would be told of an older one. They may be brought back, or
    an administrator lets go of them (`penstock store repair --cut`).

    Nothing is durable that was not applied when this returns. Others may write meanwhile: the coordinators of
    transactions write markers, and tell of them only shards that serve.
    """
    offset = partition.log_start_offset
    loading = Loading(shard)
    while offset < partition.high_watermark:
        while offset < (end := partition.high_watermark):
            offset = await _read(ledger, partition, offset, end, loading)
            await asyncio.sleep(0)
        await loading.apply()
    return loading.count


async def _read(ledger: Ledger, partition: Partition, offset: int, end: int, loading: Loading) -> int:
    """Take a slice; where the next one begins."""
    try:
        found = ledger.read(partition, offset, SLICE_BYTES, limit_offset=end)
        slice_ = found if isinstance(found, Slice) else await found
    except HurtRangeError as error:
        if error.end - error.start < LOST_OFFSETS_MAX:
            raise
        # Nobody knows whether anything was there.
        log.error("a shard was loaded without records that may be lost: %s", error)
        return error.end
    if not slice_.buffers:
        return end  # Compaction left nothing up to there.
    return await loading.take(slice_.buffers, offset)


class Loading:
    """Records on their way into a shard.

    A record says all there is to say under its key. So of several under one key only the last is taken
    apart, in its place: the rest is what compaction would leave, and a group that commits every second
    costs a dictionary's entry a time. Tombstones are all taken, since they also end the pending commit
    of a transaction for the key. Records of transactions wait for their markers, so they are taken as
    they come.
    """

    __slots__ = ("_latest", "_shard", "count")

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._latest: dict[bytes | tuple[bytes, int], bytes | None] = {}
        """By key; by key and number, tombstones that something follows."""
        self.count = 0

    async def take(self, buffers: Sequence[Buffer], offset: int) -> int:
        """The records from `offset` on; where the next slice begins."""
        data = memoryview(b"".join(buffers))
        for position, header in iter_batches(data):
            block = records_block(data, position, header)
            if header.attributes & CONTROL:
                await self.apply()
                marker = parse_marker(block)
                if marker is not None:
                    self._shard.load_marker(header.producer_id, committed=marker.kind is MarkerKind.COMMIT)
            else:
                records = _records(block, header, offset)
                if header.attributes & TRANSACTIONAL:
                    await self.apply()
                    for key, value in records:
                        self.count += 1
                        self._load(key, value, header.producer_id)
                else:
                    latest = self._latest
                    for key, value in records:
                        self.count += 1
                        if latest.pop(key, _NOTHING) is None:
                            latest[key, self.count] = None
                        latest[key] = value
            offset = header.base_offset + header.last_offset_delta + 1
        return offset

    async def apply(self) -> None:
        """Everything taken so far is in the shard."""
        latest, self._latest = self._latest, {}
        for at, (key, value) in enumerate(latest.items(), 1):
            self._load(key if isinstance(key, bytes) else key[0], value, NO_PRODUCER_ID)
            if at % APPLIED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _load(self, key: bytes, value: bytes | None, producer_id: int) -> None:
        try:
            self._shard.load(key, value, producer_id)
        except WireError:
            # Whoever wrote it, it says nothing that could be acted on.
            log.exception("a record was skipped key=%s", key[:40].hex())


def _records(block: bytes, header: BatchHeader, offset: int) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and values from `offset` on; what has no key is nobody's."""
    base = header.base_offset
    for _, delta, key_at, key_end, value_at, value_end, _ in iter_raw(block, header.record_count):
        if base + delta >= offset and key_end >= key_at:
            value = block[value_at:value_end] if value_end >= value_at else None
            yield block[key_at:key_end], value
