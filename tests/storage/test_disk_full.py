"""A full disk and a read-only one: producers get errors, readers go on, and it recovers by itself."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.storage.partitions.answers import Appended
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.objects import StoreFullError, StoreReadOnlyError
from penstock.wire.errors import ErrorCode
from tests.storage.faults import FaultyFiles
from tests.storage.test_settling import fill, forget_tails
from tests.storage.world import World, append, append_ok, batch, own_partition, read_all


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture(params=[False, True], ids=["os", "fsync"])
async def faulty(request: pytest.FixtureRequest, tmp_path: Path, files: FaultyFiles) -> AsyncIterator[World]:
    world = World(DirectoryStore(str(tmp_path / "store"), sync=request.param, files=files))
    yield world
    files.bytes_left, files.read_only, files.dead = None, False, False
    await world.close()


async def test_a_full_disk(faulty: World, files: FaultyFiles) -> None:
    ledger = await faulty.start()
    topic = await faulty.create_topic("t")
    partition = own_partition(ledger, topic)
    await fill(ledger, partition, 5)

    def numbered(sequence: int) -> bytearray:
        return batch(b"n" * 300, producer_id=3, producer_epoch=0, base_sequence=sequence)

    await append_ok(ledger, partition, numbered(0))
    for left in (0, 1, 60, 200, 400):
        files.bytes_left = left
        refused = await append(ledger, partition, numbered(1), numbered(2))
        assert refused == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        assert partition.high_watermark == partition.next_offset == 6
        forget_tails(ledger)
        assert len(await read_all(ledger, partition)) == 6
    with pytest.raises(StoreFullError):
        await faulty.store.create("somewhere", b"x" * 10_000)
    files.bytes_left = None
    # The same batches again: their first attempt left no trace in the producer's state.
    assert await append_ok(ledger, partition, numbered(1), numbered(2)) == [6, 7]
    await faulty.kill(ledger)
    ledger = await faulty.start()
    assert len(await read_all(ledger, own_partition(ledger, topic))) == 8


async def test_a_read_only_disk(faulty: World, files: FaultyFiles) -> None:
    ledger = await faulty.start()
    topic = await faulty.create_topic("t")
    partition = own_partition(ledger, topic)
    await fill(ledger, partition, 5)
    files.read_only = True
    assert await append(ledger, partition, batch(b"no")) == [ErrorCode.KAFKA_STORAGE_ERROR]
    with pytest.raises(StoreReadOnlyError):
        await faulty.store.create("somewhere", b"x")
    with pytest.raises(StoreReadOnlyError):
        await ledger.settle()
    forget_tails(ledger)
    assert len(await read_all(ledger, partition)) == 5
    files.read_only = False
    assert await append_ok(ledger, partition, batch(b"yes")) == [5]
    assert await ledger.settle()
    assert len(await read_all(ledger, partition)) == 6


async def test_space_that_ends_at_any_byte_of_a_flush(tmp_path: Path) -> None:
    for left in range(0, 420, 7):
        files = FaultyFiles()
        world = World(DirectoryStore(str(tmp_path / str(left)), files=files))
        ledger = await world.start()
        topic = await world.create_topic("t")
        partition = own_partition(ledger, topic)
        await append_ok(ledger, partition, batch(b"first"))
        files.bytes_left = left
        (answer,) = await append(ledger, partition, batch(b"second" * 20))
        files.bytes_left = None
        await append_ok(ledger, partition, batch(b"third"))
        await world.kill(ledger)
        ledger = await world.start()
        values = [value for _, value in await read_all(ledger, own_partition(ledger, topic))]
        expected = (
            [b"first", b"third"] if isinstance(answer, ErrorCode) else [b"first", b"second" * 20, b"third"]
        )
        assert values == expected, left
        await world.close()


async def test_what_could_not_be_cut_off_is_never_taken_for_a_flush(tmp_path: Path) -> None:
    files = FaultyFiles()
    world = World(DirectoryStore(str(tmp_path / "store"), files=files))
    ledger = await world.start()
    topic = await world.create_topic("t")
    partition = own_partition(ledger, topic)
    await append_ok(ledger, partition, batch(b"first"))
    # A large flush fails after most of it is written, and cannot be cut off again.
    files.bytes_left = 5000
    files.ftruncate = lambda fd, length: (_ for _ in ()).throw(OSError(30, "no"))  # type: ignore[method-assign]
    assert await append(ledger, partition, batch(b"x" * 6000)) == [ErrorCode.KAFKA_STORAGE_ERROR]
    files.bytes_left = None
    # A smaller one goes over it; what lies beyond is left of the other.
    await append_ok(ledger, partition, batch(b"second"))
    await world.kill(ledger)
    ledger = await world.start()
    partition = own_partition(ledger, topic)
    assert [value for _, value in await read_all(ledger, partition)] == [b"first", b"second"]
    await world.close()


async def test_bytes_that_look_like_a_flush_are_not_one(local: World) -> None:
    """A producer that sends a copy of a real flush as its value cannot make recovery read it."""
    ledger = await local.start()
    topic = await local.create_topic("t")
    partition = own_partition(ledger, topic)
    await append_ok(ledger, partition, batch(b"real"))
    assert isinstance(local.store, DirectoryStore)
    path = local.store.path(f"wal/1/{ledger.wal.epoch}/{0:020d}")
    flush = Path(path).read_bytes()[60:]
    await append_ok(ledger, partition, batch(flush, flush))
    await local.kill(ledger)
    os.truncate(path, os.path.getsize(path) - 3)  # The flush that holds the copies is cut short.
    ledger = await local.start()
    assert [value for _, value in await read_all(ledger, own_partition(ledger, topic))] == [b"real"]


async def test_a_failed_sync_ends_the_incarnation(tmp_path: Path) -> None:
    files = FaultyFiles()
    world = World(DirectoryStore(str(tmp_path / "store"), sync=True, files=files))
    ledger = await world.start()
    topic = await world.create_topic("t")
    partition = own_partition(ledger, topic)
    await append_ok(ledger, partition, batch(b"kept"))
    files.sync_fails = True
    assert await append(ledger, partition, batch(b"unknown")) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert world.ended and partition.closed
    files.sync_fails = False
    await world.kill(ledger)
    ledger = await world.start()
    values = [value for _, value in await read_all(ledger, own_partition(ledger, topic))]
    # It was written and not acknowledged: both are right, but it must stay as the seal found it.
    assert values in ([b"kept"], [b"kept", b"unknown"])
    await world.kill(ledger)
    ledger = await world.start()
    assert [value for _, value in await read_all(ledger, own_partition(ledger, topic))] == values
    await world.close()


async def test_leases_and_seals_work_on_a_full_disk(faulty: World, files: FaultyFiles) -> None:
    ledger = await faulty.start()
    await faulty.store.put("live/1", b"epoch=1 count=000001")
    files.bytes_left = 0
    for count in range(2, 6):
        await faulty.store.put("live/1", b"epoch=1 count=%06d" % count)
        assert await faulty.store.get("live/1") == b"epoch=1 count=%06d" % count
    assert await faulty.wal_store.seal(ledger.wal) == 0
    assert not await faulty.store.create("live/1", b"taken")


_LIMITED = """
import asyncio, resource, signal, sys
from penstock.storage.partitions.answers import Appended
from tests.storage.world import World, append, append_ok, batch, own_partition, read_all
from penstock.storage.stores.directory import DirectoryStore

async def main(path):
    world = World(DirectoryStore(path))
    ledger = await world.start()
    partition = own_partition(ledger, await world.create_topic("t"))
    await append_ok(ledger, partition, batch(b"x" * 1000))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    refused = 0
    for _ in range(5):
        (answer,) = await append(ledger, partition, batch(b"y" * 2000))
        refused += not isinstance(answer, Appended)
    assert refused == 4, refused
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await append_ok(ledger, partition, batch(b"z"))
    assert len(await read_all(ledger, partition)) == 3
    await world.kill(ledger)
    ledger = await world.start()
    assert len(await read_all(ledger, own_partition(ledger, partition.topic_id))) == 3
    await world.close()

asyncio.run(main(sys.argv[1]))
"""


def test_the_operating_systems_own_refusal(tmp_path: Path) -> None:
    """The real thing: the kernel refuses to let files grow (EFBIG), in a process of its own."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path / "store")],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _mount_tiny(path: Path) -> bool:
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)], capture_output=True, check=False
    )
    return mounted.returncode == 0


def _unmount(path: Path) -> None:
    subprocess.run(["umount", "-l", str(path)], check=True)


async def test_a_real_file_system_that_is_full(tmp_path: Path) -> None:
    """On a tiny file system where one can be mounted; elsewhere on a disk that says so."""
    mount = tmp_path / "tiny"
    files = FaultyFiles()
    real = _mount_tiny(mount)
    if not real:
        files.bytes_left = 250_000
    try:
        world = World(DirectoryStore(str(mount / "store"), files=files))
        ledger = await world.start()
        topic = await world.create_topic("t")
        partition = own_partition(ledger, topic)
        await world.store.put("live/1", b"lease 0")
        stored = 0
        filler = mount / "filler"
        while True:
            (answer,) = await append(ledger, partition, batch(b"v" * 10_000))
            if answer is ErrorCode.KAFKA_STORAGE_ERROR:
                break
            assert isinstance(answer, Appended)
            stored += 1
            if stored == 3:
                filler.write_bytes(bytes(100_000))
                if not real:
                    assert files.bytes_left is not None
                    files.bytes_left -= 100_000
        assert 5 < stored < 20
        await world.store.put("live/1", b"lease 1")
        forget_tails(ledger)
        assert len(await read_all(ledger, partition)) == stored
        filler.unlink()
        if not real:
            assert files.bytes_left is not None
            files.bytes_left += 100_000
        assert await append_ok(ledger, partition, batch(b"again")) == [stored]
        await world.kill(ledger)
        ledger = await world.start()
        assert len(await read_all(ledger, own_partition(ledger, topic))) == stored + 1
        await world.close()
    finally:
        if real:
            _unmount(mount)
