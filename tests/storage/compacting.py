"""What tests of compaction share: a compacted topic, its updates, and what is left of them in storage."""

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.log.policy import LogPolicy
from penstock.storage.ledger.ledger import Ledger
from penstock.storage.partitions.partition import Partition
from penstock.wire.batch import Record, build_batch, iter_batches, iter_records
from tests.storage.world import QUIET, World, append_ok, read

DAY = 86_400_000
NOW = 1_700_000_000_000
COMPACT = LogPolicy(compact=True, delete=False, segment_ms=0, min_cleanable_ratio=0.0, file_delete_delay_ms=0)
"""Whatever is settled may be cleaned at once."""
Pairs = list[tuple[int, str, str | None]]
PROMPT = msgspec.structs.replace(QUIET, delete_delay_ms=0)


async def compacted(world: World, policy: LogPolicy = COMPACT, partitions: int = 1) -> tuple[Ledger, bytes]:
    world.policies["t"] = policy
    ledger = await world.start(settings=PROMPT)
    return ledger, await world.create_topic("t", partitions)


def updates(*pairs: tuple[str, str | None], time: int = NOW, **options: Any) -> bytearray:
    records = [
        Record(at, time + at, key.encode(), value.encode() if value is not None else None)
        for at, (key, value) in enumerate(pairs)
    ]
    return build_batch(records, **options)


async def write(ledger: Ledger, partition: Partition, *pairs: tuple[str, str | None], **options: Any) -> None:
    """A batch for each pair."""
    await append_ok(ledger, partition, *(updates(pair, **options) for pair in pairs))


async def stored(ledger: Ledger, partition: Partition, start: int | None = None) -> list[Record]:
    """Every record that lies in storage, as a reader with small fetches gets them."""
    while ledger._cache._order:
        ledger._cache._evict()
    offset = partition.log_start_offset if start is None else start
    found: list[Record] = []
    while offset < partition.high_watermark:
        part = await read(ledger, partition, offset, 200)
        assert part.next_offset > offset
        joined = b"".join(part.buffers)
        for position, header in iter_batches(joined):
            assert header.last_offset >= offset
            if not header.is_control:
                found += (record for record in iter_records(joined, position) if record.offset >= offset)
        offset = part.next_offset
    assert [r.offset for r in found] == sorted({r.offset for r in found})
    return found


def pairs_of(records: Sequence[Record]) -> Pairs:
    return [
        (r.offset, (r.key or b"").decode(), r.value.decode() if r.value is not None else None)
        for r in records
    ]


def last_of(pairs: Pairs) -> Pairs:
    """The last record of each key."""
    return sorted({key: (offset, key, value) for offset, key, value in pairs}.values())


async def collect(ledger: Ledger) -> None:
    await ledger._garbage.collect(ledger._holdings.image)


def referred(ledger: Ledger) -> set[str]:
    keys: set[str] = set()
    for partition in ledger._partitions.values():
        if partition.manifest is not None:
            for segment in partition.manifest.segments:
                keys |= {segment.key, segment.index_key}
    return keys
