"""One behaviour suite for the ObjectStore port, run against every implementation.

The remote one runs against the SDK's own store in memory, the one on etcd against a fake member. Against a
real server as well if PENSTOCK_TEST_STORE names one (s3://bucket/prefix, with the service's usual environment
variables, or etcd://host:port).
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import GenericError, PermissionDeniedError
from obstore.store import MemoryStore as Backend

from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import (
    ObjectInfo,
    ObjectMissingError,
    ObjectStore,
    StoreError,
    StoreUnavailableError,
)
from penstock.storage.stores.opening import open_store
from penstock.storage.stores.remote import RemoteStore
from tests.storage.fake_etcd import FakeMember, Keys
from tests.storage.world import keys_of

KINDS = ["directory", "directory-fsync", "memory", "remote-memory", "etcd"]
if os.environ.get("PENSTOCK_TEST_STORE"):
    KINDS.append("remote")


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    opened: ObjectStore
    member: FakeMember | None = None
    match request.param:
        case "directory":
            opened = open_store(str(tmp_path / "store"))
        case "directory-fsync":
            opened = open_store(f"file://{tmp_path}/store", sync=True)
        case "memory":
            opened = open_store("memory://")
        case "remote-memory":
            opened = RemoteStore("memory://", backend=Backend())
        case "etcd":
            member = FakeMember(Keys())
            opened = open_store(f"etcd://{await member.start()}/suite")
        case _:
            opened = open_store(f"{os.environ['PENSTOCK_TEST_STORE']}/{os.urandom(6).hex()}")
    yield opened
    async for info in opened.list(""):
        await opened.delete(info.key)
    await opened.close()
    if member is not None:
        await member.stop()


async def test_create_is_once(store: ObjectStore) -> None:
    assert await store.create("a/b", b"one", bytearray(b" and "), memoryview(b"two"))
    assert not await store.create("a/b", b"three")
    assert await store.get("a/b") == b"one and two"
    assert await store.create("a/c")
    assert await store.get("a/c") == b""


async def test_a_size_is_known_without_the_contents(store: ObjectStore) -> None:
    assert await store.size("a/b") is None
    await store.create("a/b", b"one", b"two")
    await store.create("a/bc", b"three")
    assert await store.size("a/b") == 6


async def test_a_store_says_whether_it_is_a_directory(store: ObjectStore, tmp_path: Path) -> None:
    await store.create("meta/cluster", b"")
    assert (store.local is not None) is (tmp_path / "store/meta/cluster").exists()


async def test_exactly_one_of_many_creators_wins(store: ObjectStore) -> None:
    for round_number in range(5):
        key = f"race/{round_number}"
        won = await asyncio.gather(*(store.create(key, b"writer %d" % n) for n in range(12)))
        assert sum(won) == 1
        assert await store.get(key) == b"writer %d" % won.index(True)


async def test_put_replaces(store: ObjectStore) -> None:
    for contents in (b"1", b"22", b"1", b"x" * 10_000, b"2", b""):
        await store.put("live/1", contents)
        assert await store.get("live/1") == contents
    assert not await store.create("live/1", b"taken")


async def test_readers_see_the_old_or_the_new(store: ObjectStore) -> None:
    await store.put("live/1", b"a" * 2000)
    stop = False

    async def write() -> None:
        for number in range(60):
            await store.put("live/1", bytes([97 + number % 26]) * 2000)
            await asyncio.sleep(0)

    async def watch() -> None:
        while not stop:
            seen = await store.get("live/1")
            assert seen is not None and len(seen) == 2000 and len(set(seen)) == 1
            await asyncio.sleep(0)

    watching = asyncio.ensure_future(watch())
    await write()
    stop = True
    await watching


async def test_ranges(store: ObjectStore) -> None:
    contents = random.Random(1).randbytes(300_000)
    await store.create("data", contents)
    for start, length in ((0, 1), (0, 300_000), (299_999, 1), (100, 150_000), (5, 0)):
        assert await store.get_range("data", start, length) == contents[start : start + length]
    for key, start, length in (("data", 299_999, 2), ("data", 400_000, 1), ("none", 0, 1)):
        with pytest.raises(ObjectMissingError):
            await store.get_range(key, start, length)
    assert await store.get("none") is None


async def test_delete(store: ObjectStore) -> None:
    await store.create("a", b"1")
    assert await store.get_range("a", 0, 1) == b"1"
    await store.delete("a")
    await store.delete("a")
    assert await store.get("a") is None
    with pytest.raises(ObjectMissingError):
        await store.get_range("a", 0, 1)
    assert await store.create("a", b"2")
    assert await store.get_range("a", 0, 1) == b"2"


async def test_list_gives_keys_in_order_with_sizes(store: ObjectStore) -> None:
    keys = ["wal/1/10/000", "wal/1/10/001", "wal/1/2/000", "wal/12/1/000", "wal", "meta/log/1", "meta/log/11"]
    keys.remove("wal")
    for key in keys:
        await store.create(key, key.encode())
    assert await keys_of(store) == sorted(keys)
    assert await keys_of(store, "wal/1/") == ["wal/1/10/000", "wal/1/10/001", "wal/1/2/000"]
    assert await keys_of(store, "wal/1") == sorted(k for k in keys if k.startswith("wal/1"))
    assert await keys_of(store, "meta/log/1") == ["meta/log/1", "meta/log/11"]
    assert await keys_of(store, "none/") == []
    found = [info async for info in store.list("meta/log/11")]
    assert found == [ObjectInfo("meta/log/11", 11)]


async def test_large_objects(store: ObjectStore) -> None:
    """Snapshots of large clusters, on stores whose requests are bounded too."""
    one, two = random.Random(1).randbytes(5_000_000), random.Random(2).randbytes(2_000_000)
    assert await store.create("snapshot", one)
    assert not await store.create("snapshot", two)
    assert await store.get("snapshot") == one
    await store.put("snapshot", two)
    assert await store.get("snapshot") == two
    assert await store.get_range("snapshot", 1_900_000, 100_000) == two[1_900_000:]
    await store.put("snapshot", b"small")
    assert await store.get("snapshot") == b"small"
    await store.put("snapshot", one)
    await store.delete("snapshot")
    assert await keys_of(store) == []


# What only some implementations have.


@pytest.mark.parametrize("key", ["../escape", "/absolute", "a//b", "a/../b", "", "a/.hidden", "a\0b", "ä"])
async def test_a_directory_takes_only_keys(tmp_path: Path, key: str) -> None:
    store = DirectoryStore(str(tmp_path / "store"))
    for attempt in (store.create(key, b"x"), store.put(key, b"x"), store.get(key), store.delete(key)):
        with pytest.raises(StoreError):
            await attempt
    assert not (tmp_path / "escape").exists()
    await store.close()


async def test_two_processes_share_a_directory(tmp_path: Path) -> None:
    stores = [DirectoryStore(str(tmp_path)) for _ in range(2)]
    for number in range(20):
        won = await asyncio.gather(*(s.create(f"log/{number}", b"%d" % at) for at, s in enumerate(stores)))
        assert sum(won) == 1
        for at, one in enumerate(stores):
            await one.put("live/1", b"process %d round %02d" % (at, number))
            assert await stores[1 - at].get("live/1") == b"process %d round %02d" % (at, number)
    for one in stores:
        await one.close()


async def test_a_directory_leaves_no_temporary_files(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    for _ in range(3):
        await store.create("a", b"x")
        await store.put("big", b"x" * 10_000)
    assert [path.suffix for path in (tmp_path / "tmp").iterdir()] == [".lock"]
    await store.close()
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("location", ["nonsense://x", "s3://", "ftp://host/dir", "s3:/bucket", "etcd:2379"])
def test_a_url_that_names_no_store_is_refused_in_one_sentence(location: str) -> None:
    with pytest.raises(StoreError) as refused:
        open_store(location)
    assert "\n" not in str(refused.value) and location in str(refused.value)


class Flaky:
    """Makes the SDK's calls fail: before they have an effect, or after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, failures: list[str]) -> None:
        self._real = getattr(obstore, name)
        self.failures = failures
        self.calls = 0
        monkeypatch.setattr(obstore, name, self.call)

    async def call(self, *args: object, **options: object) -> object:
        self.calls += 1
        failure = self.failures.pop(0) if self.failures else ""
        if failure == "before":
            raise GenericError("503 slow down\nand more")
        if failure == "denied":
            raise PermissionDeniedError("403")
        result = await self._real(*args, **options)
        if failure == "after":
            raise GenericError("connection reset")
        return result


def remote(pauses: list[float]) -> RemoteStore:
    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    return RemoteStore("memory://", backend=Backend(), sleep=sleep)


async def test_a_lost_answer_is_settled_by_reading_back(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    store = remote(pauses)
    Flaky(monkeypatch, "put_async", ["after"])
    assert await store.create("k", b"mine"), "it was created, and the answer got lost"
    Flaky(monkeypatch, "put_async", ["before", "before"])
    assert not await store.create("k", b"theirs")
    assert await store.get("k") == b"mine"
    assert len(pauses) == 3 and all(0 < pause < 1 for pause in pauses)


async def test_a_store_that_stays_away_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    store = remote(pauses)
    flaky = Flaky(monkeypatch, "put_async", ["before"] * 100)
    with pytest.raises(StoreUnavailableError) as refused:
        await store.create("k", b"x")
    assert "\n" not in str(refused.value)
    assert 3 < flaky.calls < 20 and sum(pauses) < 30


async def test_a_refusal_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = remote([])
    flaky = Flaky(monkeypatch, "put_async", ["denied"])
    with pytest.raises(StoreError):
        await store.create("k", b"x")
    assert flaky.calls == 1


def test_memory_is_a_store() -> None:
    kept: ObjectStore = MemoryStore()
    assert kept
