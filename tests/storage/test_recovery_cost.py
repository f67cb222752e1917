"""Opening a partition costs the same whatever its history: requests and bytes are counted."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.files import Files
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import ObjectInfo
from penstock.storage.wal.objects import ObjectWalWriter
from penstock.wire.buffers import Buffer
from tests.storage.test_settling import NO_DELAY, PROMPT, collect, fill
from tests.storage.world import QUIET, World, batch, own_partition, read_all


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()
        self.bytes_read = 0

    async def create(self, key: str, *parts: Buffer) -> bool:
        self.requests["create"] += 1
        return await super().create(key, *parts)

    async def get(self, key: str) -> bytes | None:
        self.requests["get"] += 1
        return await super().get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.requests["get_range"] += 1
        self.bytes_read += length
        return await super().get_range(key, start, length)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        self.requests["list"] += 1
        async for info in super().list(prefix):
            yield info


class CountingFiles(Files):
    def __init__(self) -> None:
        self.calls = 0
        self.bytes_read = 0

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        self.calls += 1
        return super().open(path, flags, mode)

    def pread(self, fd: int, length: int, position: int) -> bytes:
        self.calls += 1
        found = super().pread(fd, length, position)
        self.bytes_read += len(found)
        return found


async def grow(world: World, rounds: int, topics: dict[str, bytes]) -> None:
    """So many rounds of appending, settling and merging, then a kill with a little unsettled."""
    ledger = await world.start(settings=PROMPT)
    for name in ("t", "u"):
        world.policies[name] = NO_DELAY
        if name not in topics:
            topics[name] = await world.create_topic(name, 10)
    for _ in range(rounds):
        for index in range(10):
            await fill(ledger, own_partition(ledger, topics["t"], index), 5)
        await ledger.settle()
        while await ledger._settler.merge():
            pass
        await collect(ledger)
    await fill(ledger, own_partition(ledger, topics["t"]), 3)
    await world.kill(ledger)


async def test_requests_of_a_start_do_not_grow_with_history() -> None:
    store = CountingStore()
    world = World(store)
    topics: dict[str, bytes] = {}
    costs = []
    for rounds in (1, 10, 40):
        await grow(world, rounds, topics)
        store.requests.clear()
        store.bytes_read = 0
        ledger = await world.start(settings=PROMPT)
        costs.append((sum(store.requests.values()), store.bytes_read, dict(store.requests)))
        for index in range(10):
            assert own_partition(ledger, topics["t"], index).high_watermark > 0
        await world.kill(ledger)
    requests = [cost[0] for cost in costs]
    # Manifests of one settling lie in one object; merging may have spread them over a few.
    assert max(requests) <= requests[0] + 4, costs
    assert costs[2][1] < 3 * costs[0][1] + 10_000, costs
    await world.close()


async def test_a_start_on_a_directory_reads_the_unsettled_log_only(tmp_path: Path) -> None:
    files = CountingFiles()
    world = World(DirectoryStore(str(tmp_path / "store"), files=files))
    topics: dict[str, bytes] = {}
    costs = []
    for rounds in (1, 30):
        await grow(world, rounds, topics)
        files.calls = files.bytes_read = 0
        await world.kill(await world.start(settings=PROMPT))
        costs.append((files.calls, files.bytes_read))
    (calls, read_first), (calls_later, read_later) = costs
    assert calls_later <= calls + 8 and read_later < read_first + 100_000, costs
    await world.close()


async def test_opening_many_partitions_costs_few_requests() -> None:
    store = CountingStore()
    world = World(store)
    ledger = await world.start(settings=PROMPT)
    topic = await world.create_topic("t", 500)
    for index in range(500):
        await fill(ledger, own_partition(ledger, topic, index), 1)
    await ledger.settle()
    await fill(ledger, own_partition(ledger, topic, 7), 1)
    await world.kill(ledger)
    store.requests.clear()
    ledger = await world.start(settings=PROMPT)
    assert sum(store.requests.values()) < 12, store.requests
    assert own_partition(ledger, topic, 499).high_watermark == 1
    await world.close()


async def test_reading_never_lists() -> None:
    store = CountingStore()
    world = World(store)
    topics: dict[str, bytes] = {}
    await grow(world, 5, topics)
    ledger = await world.start(settings=PROMPT)
    store.requests.clear()
    partition = own_partition(ledger, topics["t"])
    assert len(await read_all(ledger, partition)) == 28
    await ledger.offset_for_timestamp(partition, 0, limit_offset=partition.high_watermark)
    await ledger.max_timestamp(partition)
    assert set(store.requests) == {"get_range"}
    await world.close()


@pytest.mark.parametrize("partitions", [1, 50])
async def test_one_put_per_flush_whatever_the_number_of_partitions(partitions: int) -> None:
    store = CountingStore()
    world = World(store)
    ledger = await world.start()
    topic = await world.create_topic("t", partitions)
    store.requests.clear()
    answers: list[object] = []
    for index in range(partitions):
        ledger.append(own_partition(ledger, topic, index), batch(b"x"), answers.append)
    assert ledger._flusher is not None
    await ledger._flusher.drain()
    assert len(answers) == partitions and store.requests == {"create": 1}
    await world.close()


async def test_what_was_read_ahead_of_a_silent_broker_is_not_waited_for() -> None:
    store = CountingStore()
    world = World(store)
    ledger = await world.start(settings=QUIET)
    partition = own_partition(ledger, await world.create_topic("t", 1))
    for _ in range(100):
        await fill(ledger, partition, 1)
    await world.wal_store.read_ahead(ledger.wal, 40)
    await fill(ledger, partition, 1)
    await world.wal_store.read_ahead(ledger.wal, 0)
    await world.wal_store.read_ahead(ledger.wal, 0)
    store.requests.clear()
    end = await world.seal(ledger.wal)
    flushes = [flush async for flush in world.wal_store.scan(ledger.wal, 0, end)]
    assert store.requests == {"create": 1}
    cold = [flush async for flush in world.wal_store.scan(ledger.wal, 0, end)]
    assert flushes == cold and [flush.number for flush in cold] == list(range(101))
    assert await world.seal(ledger.wal) == end == 101
    await world.kill(ledger)


async def test_a_broker_that_was_silent_and_wrote_on_is_sealed_at_its_end() -> None:
    store = CountingStore()
    world = World(store)
    ledger = await world.start(settings=QUIET)
    partition = own_partition(ledger, await world.create_topic("t", 1))
    for count in (3, 30):
        for _ in range(count):
            await fill(ledger, partition, 1)
        if count == 3:
            await world.wal_store.read_ahead(ledger.wal, 0)
    store.requests.clear()
    assert await world.seal(ledger.wal) == 33
    assert sum(store.requests.values()) < 6
    assert len([flush async for flush in world.wal_store.scan(ledger.wal, 0, 33)]) == 33
    await world.kill(ledger)


async def test_many_small_flushes_are_settled_whatever_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an object store each of them is a request to whoever takes over."""
    monkeypatch.setattr(ObjectWalWriter, "flushes_max", 20)
    store = CountingStore()
    world = World(store)
    ledger = await world.start(settings=QUIET)
    topic = await world.create_topic("t", 1)
    partition = own_partition(ledger, topic)
    assert ledger._upkeep is not None
    for _ in range(19):
        await fill(ledger, partition, 1)
    await ledger._upkeep.step()
    assert partition.manifest is None
    await fill(ledger, partition, 1)
    await ledger._upkeep.step()
    assert partition.manifest is not None
    assert partition.manifest.end_offset == 20
    await world.kill(ledger)


class BusyStore(MemoryStore):
    """Tells how many reads were under way at once."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = 0
        self.most = 0

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        return await super().get_range(key, start, length)


async def test_a_start_does_not_wait_for_one_object_after_the_other() -> None:
    store = BusyStore()
    world = World(store)
    ledger = await world.start(settings=QUIET)
    topic = await world.create_topic("t", 10)
    for index in range(10):
        await fill(ledger, own_partition(ledger, topic, index), 1)
        await ledger.settle()  # Each has its manifest in an object of its own.
    await world.kill(ledger)
    store.most = 0
    ledger = await world.start(settings=QUIET)
    assert store.most >= 10
    assert [len(await read_all(ledger, own_partition(ledger, topic, at))) for at in range(10)] == [1] * 10
    await world.kill(ledger)
