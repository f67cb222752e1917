"""Objects are deleted on proof that nobody needs them, never because something could not be read."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from penstock.metadata.commands import AssignLeaders, LeaderMove
from penstock.storage.ledger.ledger import Ledger
from penstock.storage.settling.segment_writer import FIRST_REPAIR_NAME
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import (
    ObjectInfo,
    ObjectMissingError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from penstock.storage.wal.directory import DirectoryWalStore
from penstock.wire.buffers import Buffer
from tests.storage.test_settling import NO_DELAY, PROMPT, collect, fill, forget_tails
from tests.storage.world import World, append, batch, keys_of, own_partition, read_all


class SickStore(MemoryStore):
    """Refuses to read, write or delete some keys, and counts requests."""

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: Callable[[str], Exception | None] = lambda key: None
        self.undeletable: set[str] = set()
        self.full = False
        self.requests: list[str] = []

    def _read(self, kind: str, key: str) -> None:
        self.requests.append(kind)
        error = self.unreadable(key)
        if error is not None:
            raise error

    async def get(self, key: str) -> bytes | None:
        self._read("get", key)
        return await super().get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self._read("range", key)
        return await super().get_range(key, start, length)

    async def size(self, key: str) -> int | None:
        self._read("size", key)
        return await super().size(key)

    async def create(self, key: str, *parts: Buffer) -> bool:
        if self.full and key.startswith("manifests/"):
            raise StoreFullError("no room")
        return await super().create(key, *parts)

    async def delete(self, key: str) -> None:
        self.requests.append("delete")
        if key in self.undeletable:
            raise StoreReadOnlyError(f"could not delete {key}")
        await super().delete(key)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        self.requests.append("list")
        async for info in super().list(prefix):
            yield info


@pytest.fixture
def store() -> SickStore:
    return SickStore()


async def wait_and_collect(world: World, ledger: Ledger) -> None:
    """As the background does it: a sweep, and long enough for all that is doomed to be due."""
    await ledger._garbage.sweep(ledger._holdings.image, 0)
    for _ in range(3):
        world.clock.advance(3_600_000)
        await collect(ledger)


@pytest.mark.parametrize(
    "error", [StoreUnavailableError("later"), StoreError("403"), ObjectMissingError("moved away")]
)
async def test_what_cannot_be_opened_is_not_garbage(store: SickStore, error: StoreError) -> None:
    """Manifests cannot be read while a broker starts, for as long as one likes."""
    world = World(store)
    world.policies["t"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    topic, other = await world.create_topic("t"), await world.create_topic("other")
    await fill(ledger, own_partition(ledger, topic), 5)
    await ledger.settle()
    await world.kill(ledger)
    segments = await keys_of(store, "segments/")
    store.unreadable = lambda key: error if key.startswith("manifests/") else None
    starting = asyncio.create_task(world.start(settings=PROMPT))
    for _ in range(50):
        await asyncio.sleep(0)
    if starting.done():
        ledger = starting.result()
    else:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        store.unreadable = lambda key: None
        ledger = await world.start(settings=PROMPT)
        # Led, and not open yet.
        ledger._takeover.waiting[topic, 0] = ledger._partitions.pop((topic, 0))
        ledger._garbage.forget(ledger._takeover.waiting[topic, 0].manifest)
        store.unreadable = lambda key: error if key.startswith("manifests/") else None
    assert ledger.partition(topic, 0) is None
    await fill(ledger, own_partition(ledger, other), 1)
    await ledger.settle()
    await wait_and_collect(world, ledger)
    assert set(segments) <= set(await keys_of(store, "segments/"))
    store.unreadable = lambda key: None
    await world.kill(ledger)
    ledger = await world.start(settings=PROMPT)
    assert len(await read_all(ledger, own_partition(ledger, topic))) == 5
    await world.close()


async def two_brokers(world: World) -> tuple[Ledger, Ledger, bytes, bytes]:
    """Topic t is led by broker 1, u by broker 2; one object holds records of both."""
    world.policies["t"] = world.policies["u"] = NO_DELAY
    first, second = await world.start(1, PROMPT), await world.start(2, PROMPT)
    t, u = await world.create_topic("t"), await world.create_topic("u")
    for topic in (t, u):
        await fill(first, own_partition(first, topic), 3)
    await first.settle()
    old = own_partition(first, u)
    refs = await first.surrender([(u, 0)])
    move = LeaderMove(u, 0, old.leader_epoch, 2, settled=True, manifest=refs[u, 0].manifest)
    await world.metadata.change(AssignLeaders(1, first.wal.epoch, (move,)))
    await second.update(world.metadata.image)
    return first, second, t, u


async def test_an_unreadable_manifest_keeps_what_it_may_need_and_nothing_else(store: SickStore) -> None:
    world = World(store)
    first, second, t, u = await two_brokers(world)
    (shared,) = await keys_of(store, "segments/")
    ref = own_partition(second, u).manifest_ref
    assert ref is not None
    store.unreadable = lambda key: StoreError("rotten") if key == ref.key else None
    await fill(first, own_partition(first, t), 3)
    await first.settle()
    await world.delete_topic(t)
    for _ in range(3):
        world.clock.advance(60_000)
        await collect(first)
    # What broker 1 alone wrote to is gone, what broker 2 may need is not.
    assert await keys_of(store, "segments/") == [shared]
    store.unreadable = lambda key: None
    forget_tails(second)
    assert len(await read_all(second, own_partition(second, u))) == 3
    await world.delete_topic(u)
    for ledger in (first, second):
        world.clock.advance(3_600_000)
        await collect(ledger)
    assert await keys_of(store, "segments/") == []
    await world.close()


async def test_an_object_whose_footer_cannot_be_read_stays(store: SickStore) -> None:
    world = World(store)
    world.policies["t"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    topic = await world.create_topic("t")
    await fill(ledger, own_partition(ledger, topic), 3)
    await ledger.settle()
    (segment,) = await keys_of(store, "segments/")
    await world.kill(ledger)
    whole = store.objects[segment]
    ledger = await world.start(settings=PROMPT)
    await world.delete_topic(topic)
    for rotten in (whole[:-1], b"", whole[:-30] + bytes([whole[-30] ^ 1]) + whole[-29:]):
        store.objects[segment] = rotten
        world.clock.advance(3_600_000)
        await collect(ledger)
        assert await keys_of(store, "segments/") == [segment]
    store.objects[segment] = whole
    world.clock.advance(3_600_000)
    await collect(ledger)
    assert await keys_of(store, "segments/") == []
    await world.close()


async def test_an_object_that_is_gone_already_is_not_asked_about_for_ever(store: SickStore) -> None:
    """Its own footer is gone with it: somebody else deleted it."""
    world = World(store)
    world.policies["t"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    topic = await world.create_topic("t")
    await fill(ledger, own_partition(ledger, topic), 3)
    await ledger.settle()
    (segment,) = await keys_of(store, "segments/")
    await world.kill(ledger)
    ledger = await world.start(settings=PROMPT)
    await world.delete_topic(topic)
    del store.objects[segment]
    store.unreadable = lambda key: StoreUnavailableError("slow down") if key == segment else None
    await collect(ledger)
    assert segment in ledger._garbage._doomed
    store.unreadable = lambda key: None
    world.clock.advance(3_600_000)
    await collect(ledger)
    assert segment not in ledger._garbage._doomed
    await world.close()


async def test_deleting_an_object_takes_few_requests(store: SickStore) -> None:
    world = World(store)
    world.policies["t"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    topic = await world.create_topic("t", 3)
    for index in range(3):
        await fill(ledger, own_partition(ledger, topic, index), 3)
    await ledger.settle()
    await world.delete_topic(topic)
    ledger._garbage._own_starts.clear()
    store.requests.clear()
    await collect(ledger)
    assert await keys_of(store, "segments/") == []
    assert store.requests == ["delete", "delete", "list"], "what was written here is known"
    again = await world.create_topic("t", 3)
    for index in range(3):
        await fill(ledger, own_partition(ledger, again, index), 3)
    await ledger.settle()
    await world.kill(ledger)
    ledger = await world.start(settings=PROMPT)
    await world.delete_topic(again)
    store.requests.clear()
    await collect(ledger)
    assert sorted(store.requests) == ["delete", "delete", "range", "range", "size"]
    await world.close()


async def test_the_own_log_is_cut_without_a_list(store: SickStore) -> None:
    world = World(store)
    ledger = await world.start(settings=PROMPT)
    partition = own_partition(ledger, await world.create_topic("t"))
    for _ in range(5):
        await fill(ledger, partition, 3)
        await ledger.settle()
        store.requests.clear()
        await collect(ledger)
    assert "list" not in store.requests and store.requests.count("delete") >= 3
    assert len(await keys_of(store, f"wal/1/{ledger.wal.epoch}/")) == 1
    await world.close()


async def test_repairs_that_are_being_written_are_not_swept(store: SickStore) -> None:
    world = World(store)
    first = await world.start(settings=PROMPT)
    await world.kill(first)
    second = await world.start(settings=PROMPT)
    repairs = [f"segments/1/{one.wal.epoch}/{FIRST_REPAIR_NAME + 7}" for one in (first, second)]
    leftovers = [f"segments/1/{first.wal.epoch}/{7:012d}", "segments/notes.txt", "wal/1/x/y/z"]
    for key in [*repairs, *leftovers]:
        await store.create(key, b"")
    await wait_and_collect(world, second)
    assert set(repairs) <= set(await keys_of(store, "segments/"))
    await world.close()


async def test_what_cannot_be_deleted_does_not_hold_up_the_rest(store: SickStore) -> None:
    world = World(store)
    ledger = await world.start(settings=PROMPT)
    topics = []
    for number in range(5):
        world.policies[f"t{number}"] = NO_DELAY
        topics.append(await world.create_topic(f"t{number}"))
        await fill(ledger, own_partition(ledger, topics[-1]), 1)
        await ledger.settle()
    stuck = (await keys_of(store, "segments/"))[1]
    store.undeletable = {stuck}
    for topic in topics:
        await world.delete_topic(topic)
    await collect(ledger)
    assert await keys_of(store, "segments/") == [stuck]
    # It is tried again, less and less often.
    tries = 0
    for _ in range(1000):
        store.requests.clear()
        world.clock.advance(5000)
        await collect(ledger)
        tries += store.requests.count("delete")
    assert 5 <= tries <= 20
    store.undeletable.clear()
    world.clock.advance(600_000)
    await collect(ledger)
    assert await keys_of(store, "segments/") == []
    await world.close()


async def test_failed_settlings_leave_nothing_behind(store: SickStore) -> None:
    world = World(store)
    ledger = await world.start(settings=msgspec.structs.replace(PROMPT, delete_delay_ms=60_000))
    partition = own_partition(ledger, await world.create_topic("t"))
    await fill(ledger, partition, 5)
    store.full = True
    for _ in range(4):
        with pytest.raises(StoreFullError):
            await ledger.settle()
        await collect(ledger)
        assert await keys_of(store, "segments/") == []
    store.full = False
    assert await ledger.settle()
    assert len(await read_all(ledger, partition)) == 5
    await world.close()


async def test_an_object_that_appears_late_is_swept(store: SickStore) -> None:
    """A write was given up, what it had written was deleted, and then it arrived after all."""
    world = World(store)
    world.policies["t"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    partition = own_partition(ledger, await world.create_topic("t"))
    await fill(ledger, partition, 3)
    store.full = True
    with pytest.raises(StoreFullError):
        await ledger.settle()
    store.full = False
    (late,) = await keys_of(store, "segments/")
    content = store.objects[late]
    await collect(ledger)
    assert await keys_of(store, "segments/") == []
    store.objects[late] = content
    await ledger.settle()
    assert len(await keys_of(store, "segments/")) == 2
    await ledger._garbage.sweep(ledger._holdings.image, 0)
    await collect(ledger)
    assert partition.manifest is not None
    assert await keys_of(store, "segments/") == [segment.key for segment in partition.manifest.segments]
    assert len(await read_all(ledger, partition)) == 3
    await world.close()


async def test_an_index_outlives_the_file_that_it_describes(tmp_path: Path) -> None:
    """It is the proof that the file may go."""
    directory = DirectoryStore(str(tmp_path))
    world = World(directory, DirectoryWalStore(directory, file_bytes=2 * 1024 * 1024))
    world.policies["t"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    topic = await world.create_topic("t")
    for number in range(40):
        await append(ledger, own_partition(ledger, topic), batch(bytes([number]) * 100_000))
    await ledger.settle()
    assert ledger.counters()["files_adopted"]
    await world.kill(ledger)
    ledger = await world.start(settings=PROMPT)
    deleted: list[str] = []
    delete = directory.delete

    async def noted(key: str) -> None:
        deleted.append(key)
        await delete(key)

    directory.delete = noted  # type: ignore[method-assign]
    await world.delete_topic(topic)
    await collect(ledger)
    assert await keys_of(directory, "segments/") == []
    for key in deleted:
        if key.endswith(".index"):
            assert key.removesuffix(".index") in deleted[: deleted.index(key)]
    await world.close()


async def test_what_is_doomed_after_an_image_is_not_judged_by_it(store: SickStore) -> None:
    """A collection waits for another one; what is committed meanwhile is not in its image."""
    world = World(store)
    world.policies["t"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    topic = await world.create_topic("t")
    await fill(ledger, own_partition(ledger, topic), 3)
    garbage = ledger._garbage
    async with garbage._one_at_a_time:
        late = asyncio.create_task(garbage.collect(ledger._holdings.image))
        await asyncio.sleep(0)
        await ledger.settle()
    await late
    await world.kill(ledger)
    ledger = await world.start(settings=PROMPT)
    assert len(await read_all(ledger, own_partition(ledger, topic))) == 3
    await world.close()


async def test_a_file_that_another_broker_deleted_is_let_go_of(tmp_path: Path) -> None:
    """Its space would come back only when this process ends, or has opened many others."""
    store, other = DirectoryStore(str(tmp_path)), DirectoryStore(str(tmp_path))
    for key in ("segments/1/1/1", "segments/1/1/2"):
        await store.create(key, b"records")
        assert await store.get_range(key, 0, 7) == b"records"
    await other.delete("segments/1/1/1")
    held = store.descriptors.hold("segments/1/1/1")
    os.fstat(held.fd)
    store.descriptors.drop_deleted()
    os.fstat(held.fd)  # Somebody reads from it.
    store.descriptors.release(held)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(held.fd)
    assert await store.get_range("segments/1/1/2", 0, 7) == b"records"
    await store.close()
    await other.close()
