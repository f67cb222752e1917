"""One byte of a write-ahead log is not what was written, each of them in turn: whatever was acknowledged is read
back or said to be hurt, no offset is given twice, and what the byte has nothing to do with is whole.

The log is small, and has all there is in one: several files, several partitions in a flush, a flush that is
followed by others and one that is not, a control batch, a settled part.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.storage.answers import Slice
from penstock.storage.directory import DirectoryStore
from penstock.storage.ledger import Ledger
from penstock.storage.memory import MemoryStore
from penstock.storage.objects import HurtRangeError, ObjectStore
from penstock.storage.partition import Partition
from penstock.storage.wal import WalStore
from penstock.storage.wal_directory import DirectoryWalStore
from penstock.storage.wal_objects import ObjectWalStore
from penstock.wire.batch import iter_batches, iter_records
from tests.storage.world import Metadata, World, append_ok, batch, own_partition

BOOT, OTHER_BOOT = b"the present boot", b"a boot before it"
PARTITIONS = 3


class Written(NamedTuple):
    """A store that a broker was killed on, and what was acknowledged there."""

    metadata: Metadata
    topic: bytes
    acknowledged: list[dict[int, bytes]]
    """By partition: value by offset."""
    settled: list[int]
    """By partition: what lies below this offset is in segments."""


async def write(world: World) -> Written:
    ledger = await world.start()
    topic = await world.create_topic("t", PARTITIONS)
    acknowledged: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]

    async def put(index: int, *values: bytes) -> None:
        partition = own_partition(ledger, topic, index)
        batches = [batch(b"%d %s" % (index, value), b"second") for value in values]
        offsets = await append_ok(ledger, partition, *batches)
        for offset, value in zip(offsets, values, strict=True):
            acknowledged[index][offset] = b"%d %s" % (index, value)
            acknowledged[index][offset + 1] = b"second"

    await put(0, b"settled")
    await ledger.settle()
    settled = [own_partition(ledger, topic, index).settled_end for index in range(PARTITIONS)]
    for number in range(4):
        await put(0, b"a%d" % number)
        if number % 2:
            await put(1, b"b%d" % number, b"b%d'" % number)
    await put(2, b"once")
    await put(0, b"last")
    await world.kill(ledger)
    await world.store.close()
    return Written(world.metadata, topic, acknowledged, settled)


class Found(NamedTuple):
    values: dict[int, bytes]
    hurt: list[tuple[int, int]]
    end: int


async def read_around(ledger: Ledger, partition: Partition) -> Found:
    """All that can be read, and what is said to be hurt."""
    values: dict[int, bytes] = {}
    hurt: list[tuple[int, int]] = []
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        try:
            answer = ledger.read(partition, offset, 150, limit_offset=partition.high_watermark)
            part = answer if isinstance(answer, Slice) else await answer
        except HurtRangeError as error:
            assert error.start <= offset < error.end
            hurt.append((offset, error.end))
            offset = error.end
            continue
        assert part.next_offset > offset
        data = b"".join(part.buffers)
        for position, _header in iter_batches(data):
            for record in iter_records(data, position):
                if record.offset >= offset:
                    assert record.value is not None
                    values[record.offset] = record.value
        offset = part.next_offset
    return Found(values, hurt, partition.high_watermark)


async def check(written: Written, store: ObjectStore, wal_store: WalStore) -> int:
    """Start on a store that something was done to: how many records are hurt."""
    world = World(store, wal_store)
    world.metadata.image = written.metadata.image
    ledger = await world.start()
    lost = 0
    for index, acknowledged in enumerate(written.acknowledged):
        partition = own_partition(ledger, written.topic, index)
        found = await read_around(ledger, partition)
        for offset, value in acknowledged.items():
            is_hurt = any(start <= offset < end for start, end in found.hurt)
            assert found.values.get(offset) == value or is_hurt, f"{index}-{offset} is gone without a word"
            assert offset not in found.values or not is_hurt
            lost += is_hurt
        assert found.values.items() <= acknowledged.items(), "nothing comes that was not acknowledged"
        assert found.end >= max(acknowledged) + 1
        (offset,) = await append_ok(ledger, partition, batch(b"next"))
        assert offset >= max(acknowledged) + 1, "an acknowledged offset is given again"
    await world.close()
    return lost


def copied(template: Path, target: Path) -> None:
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(template, target)


def log_files(root: Path) -> list[Path]:
    return sorted(path for path in (root / "wal").rglob("*") if path.is_file() and path.name.isdecimal())


Case = tuple[bool, bytes, bool]
CASES: Sequence[Case] = [
    (sync, boot, large) for sync in (False, True) for boot in (BOOT, OTHER_BOOT) for large in (False, True)
]


@pytest.mark.parametrize(("sync", "boot", "large"), CASES)
async def test_each_byte_of_the_files(tmp_path: Path, sync: bool, boot: bytes, large: bool) -> None:
    """`large`: all flushes in one file; else a file holds few."""
    file_bytes = 1 << 20 if large else 900

    def open_(path: Path, when: bytes) -> tuple[DirectoryStore, DirectoryWalStore]:
        # What is synced to a disk that is read at once needs no real one.
        store = DirectoryStore(str(path), sync=False)
        store.sync = sync
        return store, DirectoryWalStore(store, file_bytes=file_bytes, boot=when)

    template, root = tmp_path / "template", tmp_path / "store"
    written = await write(World(*open_(template, BOOT)))
    files = [path.relative_to(template) for path in log_files(template)]
    assert large == (len(files) <= 2)
    losses = 0
    for file in files:
        whole = (template / file).read_bytes()
        for at in range(len(whole)):
            copied(template, root)
            hurt = bytearray(whole)
            hurt[at] ^= 1 << at % 8 if at % 3 else 0xFF
            (root / file).write_bytes(hurt)
            lost = await check(written, *open_(root, boot))
            assert lost <= 4, "one byte hurts one batch"
            losses += bool(lost)
    assert losses, "hurt batches are found"
