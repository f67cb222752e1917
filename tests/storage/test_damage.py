"""One byte of a write-ahead log is not what was written, each of them in turn: whatever was acknowledged is
read back or said to be hurt, no offset is given twice, and what the byte has nothing to do with is whole.

The log is small, and has all there is in one: several files, several partitions in a flush, a flush that is
followed by others and one that is not, a control batch, a settled part.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import pytest

from penstock.storage.ledger.ledger import Ledger
from penstock.storage.partitions.answers import Slice
from penstock.storage.partitions.partition import Partition
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.lanes import Lane
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import HurtRangeError, ObjectStore
from penstock.storage.wal import objects
from penstock.storage.wal.directory import DirectoryWalStore
from penstock.storage.wal.objects import ObjectWalStore
from penstock.storage.wal.port import WalStore
from penstock.wire.batch import iter_batches, iter_records
from tests.storage.memory_files import MemoryFiles
from tests.storage.world import Metadata, World, append_ok, batch, own_partition


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is damaged here stays damaged."""
    monkeypatch.setattr(objects, "_SALVAGE_PAUSES_SECONDS", (0.0,))


BOOT, OTHER_BOOT = b"the present boot", b"a boot before it"
PARTITIONS = 3
T = TypeVar("T")


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
    for number in range(3):
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


class InlineStore(DirectoryStore):
    """On a disk in memory, which needs no threads."""

    async def run(self, work: Callable[..., T], *args: object, lane: Lane = Lane.WRITE) -> T:
        return work(*args)


def open_directory(
    files: MemoryFiles, sync: bool, file_bytes: int
) -> tuple[DirectoryStore, DirectoryWalStore]:
    store = InlineStore("/disk", sync=sync, files=files)
    return store, DirectoryWalStore(store, file_bytes=file_bytes)


def hurt_at(whole: bytes, at: int) -> bytes:
    """A bit of one byte is changed, of every third byte all bits."""
    hurt = bytearray(whole)
    hurt[at] ^= 1 << at % 8 if at % 3 else 0xFF
    return bytes(hurt)


CASES = [
    (False, BOOT, False),
    (False, OTHER_BOOT, True),
    (False, OTHER_BOOT, False),
    (True, BOOT, True),
    (True, OTHER_BOOT, False),
]


@pytest.mark.parametrize(("sync", "boot", "large"), CASES)
async def test_each_byte_of_the_files(sync: bool, boot: bytes, large: bool) -> None:
    """`large`: all flushes in one file; else a file holds few."""
    file_bytes = 1 << 20 if large else 900
    disk = MemoryFiles(BOOT)
    written = await write(World(*open_directory(disk, sync, file_bytes)))
    paths = sorted(path for path in disk.contents if "/wal/" in path and path[-1].isdecimal())
    assert large == (len(paths) <= 2)
    losses = 0
    for path in paths:
        whole = bytes(disk.contents[path])
        for at in range(len(whole)):
            files = disk.copy(boot, path, hurt_at(whole, at))
            lost = await check(written, *open_directory(files, sync, file_bytes))
            assert lost <= 2, "one byte hurts one batch"
            losses += bool(lost)
    assert losses, "hurt batches are found"


async def test_each_byte_of_the_objects() -> None:
    store = MemoryStore()
    written = await write(World(store, ObjectWalStore(store)))
    losses = 0
    for key in sorted(key for key in store.objects if key.startswith("wal/")):
        whole = store.objects[key]
        for at in range(len(whole)):
            other = MemoryStore()
            other.objects = {**store.objects, key: hurt_at(whole, at)}
            losses += bool(await check(written, other, ObjectWalStore(other)))
    assert losses


@pytest.mark.parametrize("contents", [b"", b"short", b"\0" * 8, b"\0" * 100, b"x" * 60])
async def test_an_object_that_is_not_a_flush_any_more_is_no_seal(contents: bytes) -> None:
    store = MemoryStore()
    written = await write(World(store, ObjectWalStore(store)))
    keys = sorted(key for key in store.objects if key.startswith("wal/"))[2:]
    for key in keys:
        other = MemoryStore()
        other.objects = {**store.objects, key: contents}
        assert await check(written, other, ObjectWalStore(other))


@pytest.mark.parametrize("sync", [False, True])
async def test_pieces_of_the_files(sync: bool) -> None:
    """More than a byte is hurt: not all can be salvaged, but what is lost is said."""
    rng = random.Random(7)
    disk = MemoryFiles(BOOT)
    written = await write(World(*open_directory(disk, sync, 900)))
    paths = sorted(path for path in disk.contents if "/wal/" in path and path[-1].isdecimal())
    for _ in range(300):
        path = rng.choice(paths)
        hurt = bytearray(disk.contents[path])
        at = rng.randrange(len(hurt))
        length = min(rng.choice((2, 8, 30, 100, 400)), len(hurt) - at)
        # Zeros at the end of a synced log may be what a sync left that failed, before anybody was answered.
        smear = bytes(length) if not sync and rng.random() < 0.5 else rng.randbytes(length)
        hurt[at : at + length] = smear
        await check(written, *open_directory(disk.copy(BOOT, path, bytes(hurt)), sync, 900))
