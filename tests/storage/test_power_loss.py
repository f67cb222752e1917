"""durability=fsync: what was acknowledged survives a loss of power, on a disk that forgets the rest. The
metadata log survives in any mode."""

import asyncio
import random
from pathlib import Path

import pytest

from penstock.cluster.metadata_log import MetadataLog
from penstock.log.policy import LogPolicy
from penstock.metadata.commands import CreateTopic, RegisterBroker
from penstock.metadata.image import ClusterImage
from penstock.storage.ledger.ledger import Ledger
from penstock.storage.partitions.answers import Appended
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.objects import StoreError
from penstock.storage.wal.directory import DirectoryWalStore
from penstock.storage.wal.following import follow_log
from penstock.wire.errors import ErrorCode
from tests.clocks import HandClock
from tests.storage.faults import ForgetfulFiles, VolatileFiles
from tests.storage.test_settling import PROMPT, collect
from tests.storage.world import (
    LISTENERS,
    World,
    append,
    append_ok,
    batch,
    own_partition,
    read,
    read_all,
)


class Machine:
    """A world on a disk that loses power: each `lose_power` goes on with what the disk kept."""

    def __init__(self, directory: Path, seed: int | None, *, sync: bool = True) -> None:
        self._directory = directory
        self._sync = sync
        self._rng = random.Random(seed) if seed is not None else None
        self._lives = 0
        self.world = World(*self._open(directory / "0"))

    def _open(self, root: Path) -> tuple[DirectoryStore, DirectoryWalStore]:
        self.files = VolatileFiles(root)
        store = DirectoryStore(str(root), sync=self._sync, files=self.files)
        boot = self._lives.to_bytes(16, "big", signed=False) or bytes(16)
        return store, DirectoryWalStore(store, file_bytes=4000, boot=b"boot" + boot[4:])

    async def lose_power(self, ledger: Ledger) -> None:
        self._lives += 1
        root = self._directory / str(self._lives)
        self.files.lose_power(root, self._rng)
        await self.world.kill(ledger)
        await self.world.store.close()
        self.world.store, self.world.wal_store = self._open(root)


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
async def test_acknowledged_records_survive(tmp_path: Path, seed: int | None) -> None:
    machine = Machine(tmp_path, seed)
    world = machine.world
    steps = random.Random(seed)
    topic = b""
    acknowledged: list[tuple[int, bytes]] = []
    for life in range(4):
        ledger = await world.start(settings=PROMPT)
        topic = topic or await world.create_topic("t", 2)
        partition = own_partition(ledger, topic)
        found = dict(await read_all(ledger, partition))
        assert [found.get(offset) for offset, _ in acknowledged] == [value for _, value in acknowledged]
        assert sorted(found) == list(range(partition.high_watermark))
        acknowledged = list(found.items())
        for number in range(15):
            value = b"%d.%d " % (life, number) * steps.randint(1, 60)
            (offset,) = await append_ok(ledger, partition, batch(value))
            acknowledged.append((offset, value))
            await append_ok(ledger, own_partition(ledger, topic, 1), batch(b"between"))
            if steps.random() < 0.2:
                await ledger.settle()
                await collect(ledger)
        # A flush that was written and not synced when the power went.
        answers: list[Appended | ErrorCode] = []
        ledger.append(partition, batch(b"in flight " * 20), answers.append)
        await asyncio.sleep(0)
        await machine.lose_power(ledger)
    ledger = await world.start()
    found = dict(await read_all(ledger, own_partition(ledger, topic)))
    assert [found.get(offset) for offset, _ in acknowledged] == [value for _, value in acknowledged]
    await world.close()


@pytest.mark.parametrize("seed", [None, 1, 2, 3, 4, 5])
async def test_what_is_settled_survives_in_the_default_mode(tmp_path: Path, seed: int | None) -> None:
    """durability=os: a loss of power costs at most what was not settled. Segments and manifests are on the
    disk before the metadata log, which is not part of this world, refers to them."""
    machine = Machine(tmp_path, seed, sync=False)
    world = machine.world
    world.policies["t"] = LogPolicy(segment_bytes=3000, file_delete_delay_ms=0)
    ledger = await world.start(settings=PROMPT)
    topic = await world.create_topic("t", 2)
    for number in range(12):
        for index in range(2):
            partition = own_partition(ledger, topic, index)
            value = b"%d " % number * 300
            await append_ok(ledger, partition, batch(value))
        if number % 3 == 2:
            assert await ledger.settle()
            await ledger._settler.merge()
            await collect(ledger)
    settled = [await read_all(ledger, own_partition(ledger, topic, index)) for index in range(2)]
    await machine.lose_power(ledger)
    ledger = await world.start(settings=PROMPT)
    for index in range(2):
        assert await read_all(ledger, own_partition(ledger, topic, index)) == settled[index]
    await world.close()


async def test_an_adopted_file_survives_in_the_default_mode(tmp_path: Path) -> None:
    machine = Machine(tmp_path, None, sync=False)
    world = machine.world
    assert isinstance(world.store, DirectoryStore)
    world.wal_store = DirectoryWalStore(world.store, file_bytes=2 * 1024 * 1024)
    ledger = await world.start(settings=PROMPT)
    topic = await world.create_topic("t")
    for number in range(30):
        await append_ok(ledger, own_partition(ledger, topic), batch(bytes([number]) * 100_000))
    assert await ledger.settle()
    assert ledger.counters()["files_adopted"]
    await append_ok(ledger, own_partition(ledger, topic), batch(b"the next file"))
    assert await ledger.settle()
    await collect(ledger)
    await machine.lose_power(ledger)
    ledger = await world.start(settings=PROMPT)
    found = await read_all(ledger, own_partition(ledger, topic), 1 << 20)
    assert [value[:1] for _, value in found] == [bytes([number]) for number in range(30)] + [b"t"]
    await world.close()


@pytest.mark.parametrize("goes_on", [False, True])
async def test_an_unsynced_flush_with_holes_is_cut_off_at_the_end_only(tmp_path: Path, goes_on: bool) -> None:
    """The index of a flush may reach the disk without its batches: the batches are checked too. If a whole
    flush follows, its records keep their offsets, and readers pass over the hole."""
    world = World(DirectoryStore(str(tmp_path)))
    ledger = await world.start()
    topic = await world.create_topic("t")
    partition = own_partition(ledger, topic)
    await append_ok(ledger, partition, batch(b"whole"))
    await append_ok(ledger, partition, batch(b"h" * 5000))
    if goes_on:
        await append_ok(ledger, partition, batch(b"after the hole"))
    await world.kill(ledger)
    path = next((tmp_path / "wal").rglob("0*"))
    content = bytearray(path.read_bytes())
    at = content.index(b"h" * 5000)
    content[at + 1000 : at + 2000] = bytes(1000)
    path.write_bytes(content)
    assert isinstance(world.store, DirectoryStore)
    # The same boot: nothing can have got lost, and nothing is checked. Another one: it is.
    assert await world.wal_store.seal(ledger.wal) == 2 + goes_on
    world.wal_store = DirectoryWalStore(world.store, boot=b"another boot ...")
    ledger = await world.start()
    partition = own_partition(ledger, topic)
    if not goes_on:
        assert [value for _, value in await read_all(ledger, partition)] == [b"whole"]
    else:
        assert partition.high_watermark == 3 and not partition.hurt
        assert await read_all(ledger, partition) == [(0, b"whole"), (2, b"after the hole")]
        assert (await read(ledger, partition, 1)).next_offset == 3
    await world.close()


@pytest.mark.parametrize("seed", [None, 4, 5])
async def test_what_the_store_said_is_there_is_there(tmp_path: Path, seed: int | None) -> None:
    files = VolatileFiles(tmp_path / "before")
    store = DirectoryStore(str(tmp_path / "before"), sync=True, files=files)
    for number in range(5):
        assert await store.create(f"meta/log/{number:03d}", b"entry %d" % number)
        await store.put("live/1", b"lease %d" % number)
    files.lose_power(tmp_path / "after", random.Random(seed) if seed is not None else None)
    after = DirectoryStore(str(tmp_path / "after"), sync=True)
    for number in range(5):
        assert await after.get(f"meta/log/{number:03d}") == b"entry %d" % number
    assert await after.get("live/1") == b"lease 4"
    await store.close()
    await after.close()


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
async def test_the_metadata_log_survives(tmp_path: Path, sync: bool, seed: int | None) -> None:
    """In either mode: records of the last seconds may go with durability=os, the cluster may not. With
    snapshots, which replace entries, and stubs, which replace snapshots."""
    files = VolatileFiles(tmp_path / "before")
    store = DirectoryStore(str(tmp_path / "before"), sync=sync, files=files)
    log = MetadataLog(store, HandClock(), snapshot_entries=2, jitter=lambda: 0.0)
    await log.open()
    register, create = RegisterBroker(1, LISTENERS), CreateTopic(b"t" * 16, "t", ((1,),))
    for command in (register, create):
        assert isinstance(await log.propose(lambda _, c=command: (c,)), ClusterImage)  # type: ignore[misc]
    for number in range(8):
        more = CreateTopic(number.to_bytes(16, "big"), f"t{number}", ((1,),))
        await log.propose(lambda _, c=more: (c,))  # type: ignore[misc]
        await log.snapshot_written()
    version = log.image.version
    files.lose_power(tmp_path / "after", random.Random(seed) if seed is not None else None)
    await log.close()
    await store.close()
    store = DirectoryStore(str(tmp_path / "after"), sync=sync)
    log = MetadataLog(store, HandClock())
    await log.open()
    assert log.image.version == version and len(log.image.topics) == 9
    await log.close()
    await store.close()


@pytest.mark.parametrize("flushes", [0, 3])
async def test_a_flush_that_could_not_be_synced_is_not_counted_from_memory(
    tmp_path: Path, flushes: int
) -> None:
    files = ForgetfulFiles()
    world = World(DirectoryStore(str(tmp_path / "store"), sync=True, files=files))
    ledger = await world.start()
    topic = await world.create_topic("t")
    partition = own_partition(ledger, topic)
    for number in range(flushes):
        await append_ok(ledger, partition, batch(b"%d" % number * 2000))
    if not flushes:
        await append_ok(ledger, partition, batch(b"a file is begun and synced"))
    files.sync_fails = True
    answers = await append(ledger, partition, batch(b"in doubt " * 500))
    assert answers == [ErrorCode.NOT_LEADER_OR_FOLLOWER] and world.ended
    acknowledged = max(flushes, 1)
    # A reader that follows the log does not see it either.
    tail = follow_log(world.store, ledger.wal, 0)
    assert len((await tail.read_on()).flushes) == acknowledged
    assert await world.wal_store.seal(ledger.wal) == acknowledged
    await world.kill(ledger)
    ledger = await world.start()
    partition = own_partition(ledger, topic)
    assert len(await read_all(ledger, partition)) == acknowledged == partition.high_watermark
    await world.close()


async def test_a_log_is_not_sealed_while_its_disk_does_not_sync(tmp_path: Path) -> None:
    files = ForgetfulFiles()
    world = World(DirectoryStore(str(tmp_path / "store"), sync=True, files=files))
    ledger = await world.start()
    await append_ok(ledger, own_partition(ledger, await world.create_topic("t")), batch(b"acknowledged"))
    files.sync_fails = True
    with pytest.raises(StoreError):
        await world.wal_store.seal(ledger.wal)
    await world.close()


async def test_what_the_system_has_counts_where_nobody_waited_for_the_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """durability=os: only a loss of power before the next settling may take what was acknowledged. The file
    is copied, not adopted: a sync that succeeds after one that failed proves nothing."""
    files = ForgetfulFiles()
    store = DirectoryStore(str(tmp_path / "store"), sync=False, files=files)
    world = World(store, DirectoryWalStore(store, file_bytes=2 * 1024 * 1024))
    ledger = await world.start(settings=PROMPT)
    topic = await world.create_topic("t")
    for number in range(15):
        await append_ok(ledger, own_partition(ledger, topic), batch(bytes([number]) * 100_000))
    await world.kill(ledger)
    files.sync_fails, files.below = True, "wal/"
    ledger = await world.start(settings=PROMPT)
    assert not files.sync_fails and "could not be synced, and was read from memory" in caplog.text
    partition = own_partition(ledger, topic)
    whole = [(number, bytes([number]) * 100_000) for number in range(15)]
    assert await read_all(ledger, partition, 1 << 20) == whole and not partition.hurt
    assert await ledger.settle()
    assert not ledger.counters()["files_adopted"]
    await world.kill(ledger)
    files.forget(tmp_path / "store")
    ledger = await world.start(settings=PROMPT)
    assert await read_all(ledger, own_partition(ledger, topic), 1 << 20) == whole
    await world.close()


async def test_a_file_that_failed_to_be_synced_once_is_never_adopted(tmp_path: Path) -> None:
    files = ForgetfulFiles()
    store = DirectoryStore(str(tmp_path / "store"), sync=False, files=files)
    world = World(store, DirectoryWalStore(store, file_bytes=2 * 1024 * 1024))
    ledger = await world.start(settings=PROMPT)
    topic = await world.create_topic("t")
    for number in range(15):
        await append_ok(ledger, own_partition(ledger, topic), batch(bytes([number]) * 100_000))
    files.sync_fails, files.below = True, "wal/"
    world.metadata.fail = StoreError("away")
    with pytest.raises(StoreError, match="away"):
        await ledger.settle()
    assert not files.sync_fails
    world.metadata.fail = None
    assert await ledger.settle()
    assert not ledger.counters()["files_adopted"]
    await world.close()


async def test_what_was_deleted_is_not_written_to_again(tmp_path: Path) -> None:
    """The power took a log whose first records were deleted, and nothing was settled: the partition goes on
    where its log starts, not at 0."""
    machine = Machine(tmp_path, None, sync=False)
    world = machine.world
    ledger = await world.start()
    topic = await world.create_topic("t")
    for number in range(5):
        await append_ok(ledger, own_partition(ledger, topic), batch(b"%d" % number))
    assert await ledger.delete_records(own_partition(ledger, topic), 3) == 3
    await machine.lose_power(ledger)
    ledger = await world.start()
    partition = own_partition(ledger, topic)
    assert (partition.log_start_offset, partition.high_watermark) == (3, 3)
    assert await append_ok(ledger, partition, batch(b"next")) == [3]
    assert await read_all(ledger, partition) == [(3, b"next")]
    await world.close()


@pytest.mark.parametrize("sync", [False, True])
async def test_what_a_seal_counts_survives(tmp_path: Path, sync: bool) -> None:
    """In either mode, and in all files: the count is kept in the metadata log, which survives."""
    machine = Machine(tmp_path, None, sync=sync)
    world = machine.world
    ledger = await world.start()
    partition = own_partition(ledger, await world.create_topic("t"))
    for number in range(10):
        await append_ok(ledger, partition, batch(b"%d" % number * 1500))
    count = await world.wal_store.seal(ledger.wal)
    assert count == 10
    await machine.lose_power(ledger)
    found = [flush async for flush in world.wal_store.scan(ledger.wal, 0, count)]
    assert [flush.number for flush in found] == list(range(count))
    assert not any(flush.damage for flush in found)
    assert await world.wal_store.seal(ledger.wal) == count
    await world.close()
