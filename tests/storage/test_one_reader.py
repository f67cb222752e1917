"""Recovery and readers of the store agree on what it holds, whatever happened to it."""

from __future__ import annotations

import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from conformance import parts
from penstock.cluster.reading import ImageReader
from penstock.log.manifest import decode_manifest, encode_manifest
from penstock.metadata.commands import AdvanceLogStart, CreateTopic, LogStart
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import ObjectStore
from penstock.storage.wal.objects import ObjectWalStore
from penstock.wire.batch import Record, build_batch
from tests.formats.make import FOLDER
from tests.storage import test_damage, test_power_holes
from tests.storage.agreement import Seen, Sight, agreed
from tests.storage.compacting import compacted, updates
from tests.storage.memory_files import MemoryFiles
from tests.storage.test_damage import BOOT, OTHER_BOOT, hurt_at, open_directory
from tests.storage.world import World, append_ok, batch, own_partition

TIME = 1_700_000_000_000
STORES = sorted(FOLDER.glob("v*/*.tar.gz"))


@pytest.fixture(params=["os", "fsync", "memory"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    store: ObjectStore = MemoryStore()
    if request.param != "memory":
        store = DirectoryStore(str(tmp_path / "store"), sync=request.param == "fsync")
    made = World(store)
    yield made
    await made.close()


async def look(world: World) -> Sight:
    for ledger in list(world.ledgers):
        await world.kill(ledger)
    return await agreed(world.store, world.wal_store, world.metadata.image)


async def only(world: World) -> Seen:
    (seen,) = (await look(world)).values()
    assert isinstance(seen, Seen), seen
    return seen


def data(producer: int, sequence: int, time: int = TIME) -> bytearray:
    records = [Record(0, time, b"k", b"v")]
    return build_batch(
        records, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True
    )


def marker(producer: int, kind: int) -> bytearray:
    records = [Record(0, TIME, b"\0\0" + kind.to_bytes(2, "big"), bytes(6))]
    return build_batch(records, producer_id=producer, producer_epoch=0, transactional=True, control=True)


async def test_several_incarnations_settled_in_part(world: World) -> None:
    ledger = await world.start()
    topic = await world.create_topic("t", 3)
    for number in range(4):
        for index in range(3):
            partition = own_partition(ledger, topic, index)
            await append_ok(ledger, partition, batch(b"a", b"b", timestamp=TIME + 3 * number + index))
        if number == 1:
            await ledger.settle()
        if number != 3:
            await world.kill(ledger)
            ledger = await world.start()
    sight = await look(world)
    for seen in sight.values():
        assert isinstance(seen, Seen)
        assert seen.end == 8 and seen.segments and seen.unsettled
        assert len(seen.epochs) > 2, "the epochs of settled records are known, too"


async def test_transactions(world: World) -> None:
    ledger = await world.start()
    partition = own_partition(ledger, await world.create_topic("t"))
    await append_ok(ledger, partition, data(5, 0), data(6, 0), marker(5, 0))
    await ledger.settle()
    await append_ok(ledger, partition, data(5, 1), marker(5, 0), data(7, 0))
    seen = await only(world)
    assert (seen.end, seen.stable_end, len(seen.aborted)) == (6, 1, 2)


@pytest.mark.parametrize("log_start", [1, 2, 4])
async def test_a_log_that_begins_inside_transactions(world: World, log_start: int) -> None:
    ledger = await world.start()
    topic = await world.create_topic("t")
    partition = own_partition(ledger, topic)
    await append_ok(ledger, partition, data(5, 0), data(6, 0), data(5, 1))
    if log_start > 1:
        await ledger.settle()
    await append_ok(ledger, partition, data(7, 0), marker(6, 0))
    await ledger.delete_records(partition, log_start)
    assert partition.last_stable_offset == log_start
    seen = await only(world)
    assert (seen.start, seen.end, seen.stable_end) == (log_start, 5, log_start)
    assert [one.first_offset for one in seen.aborted] == [1]


async def test_compaction_left_gaps(world: World) -> None:
    ledger, topic = await compacted(world)
    partition = own_partition(ledger, topic)
    for number in range(6):
        pairs = (("a", str(number)), ("b", str(number)))
        await append_ok(ledger, partition, updates(*pairs, time=TIME + number))
        await ledger.settle()
    assert await ledger.clean()
    await append_ok(ledger, partition, updates(("c", "1")))
    await only(world)


async def test_a_topic_that_was_deleted_and_created_again(world: World) -> None:
    ledger = await world.start()
    topic = await world.create_topic("t")
    await append_ok(ledger, own_partition(ledger, topic), batch(b"old"), batch(b"older"))
    await ledger.settle()
    await append_ok(ledger, own_partition(ledger, topic), batch(b"old"))
    await world.delete_topic(topic)
    await world.kill(ledger)
    # The name is the same, the id is not.
    ledger = await world.start()
    other = b"another id".ljust(16)
    await world.metadata.change(CreateTopic(other, "t", ((1,),)))
    await append_ok(ledger, own_partition(ledger, other), batch(b"new"))
    assert (await only(world)).end == 1


async def test_records_below_the_log_start_are_missing(world: World) -> None:
    """A gap between what was settled and the logs, all of it deleted: nothing is lost."""
    ledger = await world.start()
    topic = await world.create_topic("t")
    partition = own_partition(ledger, topic)
    await append_ok(ledger, partition, batch(b"a"), batch(b"b"))
    await ledger.settle()
    partition.pass_over(10)
    await append_ok(ledger, partition, batch(b"c"), batch(b"d"))
    assert [(one.start, one.end) for one in (await only(world)).hurt] == [(2, 10)]
    for start, hurt in ((5, [(5, 10)]), (10, []), (11, [])):
        await advance(world, topic, start)
        seen = await only(world)
        assert (seen.start, seen.end) == (start, 12)
        assert [(one.start, one.end) for one in seen.hurt] == hurt


async def test_a_log_start_beyond_what_is_left(world: World) -> None:
    """A loss of power took records that were deleted anyway: their offsets are not given again."""
    ledger = await world.start()
    topic = await world.create_topic("t")
    await append_ok(ledger, own_partition(ledger, topic), batch(b"a"), batch(b"b"))
    await world.kill(ledger)
    await advance(world, topic, 7)
    seen = await only(world)
    assert (seen.start, seen.end, seen.stable_end) == (7, 7, 7)


async def advance(world: World, topic: bytes, start: int) -> None:
    info = world.metadata.image.partition(topic, 0)
    assert info is not None
    broker = world.metadata.image.brokers[info.leader]
    change = LogStart(topic, 0, info.leader_epoch, start)
    await world.metadata.change(AdvanceLogStart(info.leader, broker.epoch, (change,)))


@pytest.mark.parametrize("of_another", [False, True])
async def test_a_manifest_that_is_hurt_or_of_another_partition(world: World, of_another: bool) -> None:
    ledger = await world.start()
    topic = await world.create_topic("t", 2)
    await append_ok(ledger, own_partition(ledger, topic, 0), batch(b"a"))
    await append_ok(ledger, own_partition(ledger, topic, 1), batch(b"b"))
    await ledger.settle()
    info = world.metadata.image.partition(topic, 0)
    assert info is not None and info.manifest is not None
    ref = info.manifest
    stored = bytearray(await world.store.get(ref.key) or b"")
    manifest = decode_manifest(stored[ref.start : ref.start + ref.length])
    if of_another:
        other = encode_manifest(msgspec.structs.replace(manifest, partition=1))
        assert len(other) == ref.length
        stored[ref.start : ref.start + ref.length] = other
    else:
        stored[ref.start + ref.length - 1] ^= 1
    await world.store.put(ref.key, bytes(stored))
    sight = await look(world)
    assert isinstance(sight[topic, 0], str) and isinstance(sight[topic, 1], Seen)


@pytest.mark.parametrize("path", STORES, ids=lambda path: f"{path.parent.name}-{path.name.partition('.')[0]}")
async def test_stores_of_every_format(path: Path, tmp_path: Path) -> None:
    with tarfile.open(path) as opened:
        parts.unpack(opened, tmp_path / "store")
    world = World(DirectoryStore(str(tmp_path / "store")))
    image = await ImageReader(world.store).refresh()
    sight = await agreed(world.store, world.wal_store, image)
    assert all(isinstance(seen, Seen) for seen in sight.values())
    await world.close()


@pytest.mark.parametrize(("sync", "boot", "large"), test_damage.CASES)
async def test_hurt_files(sync: bool, boot: bytes, large: bool) -> None:
    """A byte in each place, and a stretch of them, also at the end of the log."""
    file_bytes = 1 << 20 if large else 900
    disk = MemoryFiles(BOOT)
    written = await test_damage.write(World(*open_directory(disk, sync, file_bytes)))
    lost = 0
    for path in sorted(path for path in disk.contents if "/wal/" in path and path[-1].isdecimal()):
        whole = bytes(disk.contents[path])
        stretches = [whole[:at] + b"x" * 200 + whole[at + 200 :] for at in range(0, len(whole), 160)]
        for hurt in (*stretches, *(hurt_at(whole, at) for at in range(0, len(whole), 17))):
            files = disk.copy(boot, path, hurt)
            sight = await agreed(*open_directory(files, sync, file_bytes), written.metadata.image)
            lost += any(isinstance(seen, Seen) and bool(seen.hurt) for seen in sight.values())
    assert lost


async def test_hurt_objects() -> None:
    store = MemoryStore()
    written = await test_damage.write(World(store, ObjectWalStore(store)))
    lost = 0
    for key in sorted(key for key in store.objects if key.startswith("wal/"))[1:]:
        whole = store.objects[key]
        for hurt in (b"x" * len(whole), *(hurt_at(whole, at) for at in range(0, len(whole), 17))):
            other = MemoryStore()
            other.objects = {**store.objects, key: hurt}
            sight = await agreed(other, ObjectWalStore(other), written.metadata.image)
            lost += any(isinstance(seen, Seen) and bool(seen.hurt) for seen in sight.values())
    assert lost


@pytest.mark.parametrize("file_bytes", [9000, 1 << 20])
async def test_holes_after_a_loss_of_power(file_bytes: int) -> None:
    written = await test_power_holes.write(file_bytes)
    for path in written.files():
        whole = bytes(written.disk.contents[path])
        for block in range(-(-len(whole) // test_power_holes.BLOCK)):
            for left in (test_power_holes.with_holes(whole, [block]), whole[: block * 4096 + 100]):
                disk = written.disk.copy(OTHER_BOOT, path, left)
                await agreed(*open_directory(disk, False, file_bytes), written.image)
