"""Which store is whose: a metadata log in etcd is found from the store, and never a wrong one."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.clock import SystemClock
from penstock.cluster.home import IDENTITY_KEY, HomeError, find, join, open_elsewhere
from penstock.cluster.metadata_log import MetadataLog
from penstock.cluster.reading import ImageReader
from penstock.metadata.codec import DamagedError, Identity, decode_identity, encode_identity
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import ObjectInfo, ObjectStore
from tests.storage.fake_etcd import FakeMember, Keys

from .rig import creating, registering


class Places:
    """Places for metadata that only have a name."""

    def __init__(self) -> None:
        self.stores: dict[str, MemoryStore] = {}

    def open(self, location: str) -> ObjectStore:
        return self.stores.setdefault(location, MemoryStore())


def ids(name: str = "a") -> str:
    return f"cluster-{name}"


async def test_a_new_cluster_is_named_in_both_places() -> None:
    store, places = MemoryStore(), Places()
    home = await join(store, "etcd://x", ids, places.open)
    assert home == ("cluster-a", places.stores["etcd://x"])
    assert decode_identity(store.objects[IDENTITY_KEY]) == Identity.new("cluster-a", "etcd://x")
    assert decode_identity(places.stores["etcd://x"].objects[IDENTITY_KEY]) == Identity.new("cluster-a")
    for again in ("etcd://x", ""):
        assert await join(store, again, lambda: ids("b"), places.open) == home


async def test_all_brokers_of_a_new_cluster_at_once() -> None:
    store, places = MemoryStore(), Places()
    for place in ("etcd://x", ""):
        joining = (join(store, place, lambda n=n: ids(str(n)), places.open) for n in range(5))  # type: ignore[misc]
        homes = await asyncio.gather(*joining)
        assert len({home.cluster_id for home in homes}) == 1


async def test_a_crash_between_the_two_is_completed() -> None:
    store, places = MemoryStore(), Places()
    store.objects[IDENTITY_KEY] = encode_identity(Identity.new("cluster-a", "etcd://x"))
    assert (await join(store, "etcd://x", lambda: ids("b"), places.open)).cluster_id == "cluster-a"


async def refused(store: MemoryStore, metadata: str, places: Places) -> str:
    before = dict(store.objects)
    with pytest.raises(HomeError) as why:
        await join(store, metadata, lambda: ids("new"), places.open)
    assert store.objects == before
    assert "\n" not in str(why.value)
    return str(why.value)


async def test_what_does_not_belong_together_is_refused() -> None:
    places = Places()
    store, other, plain = MemoryStore(), MemoryStore(), MemoryStore()
    await join(store, "etcd://x", lambda: ids("a"), places.open)
    await join(other, "etcd://y", lambda: ids("b"), places.open)
    await join(plain, "", lambda: ids("c"), places.open)
    assert "without --metadata" in await refused(plain, "etcd://x", places)
    assert "cluster-b" in await refused(store, "etcd://y", places)
    assert "etcd://x" in await refused(store, "etcd://empty", places)
    assert "another prefix" in await refused(MemoryStore(), "etcd://x", places)


async def test_an_etcd_that_lost_everything_is_not_started_on() -> None:
    store, places = MemoryStore(), Places()
    await join(store, "etcd://x", ids, places.open)
    await store.create("wal/1/1/00000000000000000000", b"records")
    places.stores["etcd://x"].objects.clear()
    assert "is gone from etcd://x" in await refused(store, "", places)


class Overtaken(MemoryStore):
    """While its objects are listed, another broker of the new cluster goes all the way."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        self._places.stores["etcd://x"].objects.setdefault(
            IDENTITY_KEY, encode_identity(Identity.new("cluster-a"))
        )
        await self.create("wal/2/1/00000000000000000000", b"records")
        async for info in super().list(prefix):
            yield info


async def test_a_broker_that_is_overtaken_while_the_cluster_is_founded() -> None:
    places = Places()
    store = Overtaken(places)
    store.objects[IDENTITY_KEY] = encode_identity(Identity.new("cluster-a", "etcd://x"))
    assert (await join(store, "etcd://x", lambda: ids("b"), places.open)).cluster_id == "cluster-a"


async def test_new_addresses_are_written_into_the_store() -> None:
    store, places = MemoryStore(), Places()
    await join(store, "etcd://x", ids, places.open)
    places.stores["etcd://x2"] = places.stores["etcd://x"]
    await join(store, "etcd://x2", ids, places.open)
    assert decode_identity(store.objects[IDENTITY_KEY]).metadata == "etcd://x2"


@pytest.mark.parametrize("key", ["wal/1/1/0", "segments/1/1/0", "manifests/1/1/0", "meta/log/000000000001"])
async def test_no_second_cluster_is_founded_over_the_records_of_a_first(key: str) -> None:
    store = MemoryStore()
    store.objects[key] = b"somebody's"
    for metadata in ("", "etcd://x"):
        assert "second cluster" in await refused(store, metadata, Places())


def test_other_places_are_refused() -> None:
    with pytest.raises(HomeError, match="etcd://"):
        open_elsewhere("s3://bucket")


@pytest.fixture
async def member() -> AsyncIterator[tuple[FakeMember, str]]:
    made = FakeMember(Keys())
    yield made, f"etcd://{await made.start()}/here"
    await made.stop()


async def test_a_log_in_etcd_is_found_from_the_store(member: tuple[FakeMember, str]) -> None:
    """Also its snapshots; and the store itself has nothing of it but its place."""
    keys, url = member[0].keys, member[1]
    store = MemoryStore()
    log = MetadataLog(store, SystemClock(), metadata=url, snapshot_entries=5, jitter=lambda: 0.0)
    await log.open()
    await log.propose(registering(1))
    reader = ImageReader(store)
    for number in range(20):
        await log.propose(creating(f"topic-{number}"))
        await log.snapshot_written()
        assert await reader.refresh() == log.image
    second = MetadataLog(store, SystemClock())
    await second.open()
    assert second.image == log.image
    assert await ImageReader(store).refresh() == log.image
    assert list(store.objects) == [IDENTITY_KEY]
    assert b"here/meta/snapshot/000000001" in keys.values and b"here/meta/log/000000000001" not in keys.values
    for one in (log, second):
        await one.close()


class FlippedOnce(MemoryStore):
    """The first answer is hurt on its way."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    async def get(self, key: str) -> bytes | None:
        found = await super().get(key)
        if found and self.times:
            self.times -= 1
            hurt = bytearray(found)
            hurt[hurt.index(b"cluster-a")] ^= 1
            return bytes(hurt)
        return found


async def test_an_identity_that_was_hurt_on_its_way_is_read_again() -> None:
    store = FlippedOnce(1)
    store.objects[IDENTITY_KEY] = encode_identity(Identity.new("cluster-a"))
    home = await find(store, lambda location: store)
    assert home is not None and home.cluster_id == "cluster-a"
    store.times = 1
    assert (await join(store, "", lambda: "other", lambda location: store)).cluster_id == "cluster-a"


async def test_a_damaged_identity_is_named() -> None:
    store = FlippedOnce(1000)
    store.objects[IDENTITY_KEY] = encode_identity(Identity.new("cluster-a"))
    with pytest.raises(DamagedError, match="meta/cluster is damaged: its checksum does not match; `penstock"):
        await join(store, "", lambda: "other", lambda location: store)
