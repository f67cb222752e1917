"""The store on etcd beyond the port's behaviour suite: members that fail, lost answers, large values.

The members here are fakes in this process; `make etcd` runs the suite and a cluster on real ones.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator

import pytest

from penstock.storage.stores.etcd import HISTORY_SECONDS, INLINE_BYTES, EtcdStore, parse_url
from penstock.storage.stores.etcd_gateway import Credentials, Gateway, Member
from penstock.storage.stores.objects import (
    StoreError,
    StoreFullError,
    StoreRefusedError,
    StoreUnavailableError,
)
from tests.storage.fake_etcd import FakeMember, Keys
from tests.storage.world import keys_of


class World:
    """Three members and one store that asks the first of them first."""

    def __init__(self) -> None:
        self.keys = Keys()
        self.members = [FakeMember(self.keys) for _ in range(3)]
        self.now = 0.0
        self.pauses: list[float] = []
        self._stores: list[EtcdStore] = []
        self.addresses: list[str] = []

    async def start(self) -> None:
        self.addresses = [await member.start() for member in self.members]

    async def stop(self) -> None:
        for store in self._stores:
            await store.close()
        for member in self.members:
            await member.stop()

    def open(self, *, attempt: float = 5.0, in_all: float = 20.0, password: str = "") -> EtcdStore:
        async def sleep(seconds: float) -> None:
            self.pauses.append(seconds)

        gateway = Gateway(
            [Member(*_split(address)) for address in self.addresses],
            credentials=Credentials(user="penstock" if password else "", password=password),
            entropy=First(),
            sleep=sleep,
            attempt_seconds=attempt,
            request_seconds=in_all,
        )
        url = f"etcd://{','.join(self.addresses)}/test"
        self._stores.append(EtcdStore(url, gateway=gateway, monotonic=lambda: self.now))
        return self._stores[-1]


class First:
    """Entropy that always says the first."""

    def token(self, size: int) -> bytes:
        return os.urandom(size)

    def fraction(self) -> float:
        return 0.0


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.start()
    yield made
    await made.stop()


async def test_another_member_is_asked_when_one_is_gone(world: World) -> None:
    store = world.open()
    await store.put("a", b"1")
    assert len(world.members[0].paths) == 1
    await world.members[0].stop()
    assert await store.get("a") == b"1"
    assert len(world.members[1].paths) == 1 and not world.pauses, "the next one is asked at once"
    assert await store.get("a") == b"1"
    assert len(world.members[1].paths) == 2, "who answered last is asked first"
    await world.members[0].start()


@pytest.mark.parametrize("fault", ["page", "nothing"])
async def test_who_answers_in_the_place_of_etcd_answers_nothing(world: World, fault: str) -> None:
    """A lease would count as written, a key as not there, and a new one as somebody else's."""
    store, brief = world.open(), world.open(in_all=0.2)
    await store.put("a", b"1")
    for member in world.members:
        member.faults = [fault]
    assert await store.get("a") == b"1"
    for member in world.members:
        member.faults = [fault]
    assert await store.create("b", b"mine"), "the same in each attempt"
    for member in world.members:
        member.faults = [fault] * 10_000
    for ask in (brief.get("a"), brief.get("none"), brief.put("a", b"2"), brief.create("c", b"x")):
        with pytest.raises(StoreUnavailableError, match="what answers is not etcd"):
            await ask


@pytest.mark.parametrize("fault", ["no leader", "drop"])
async def test_a_cluster_without_a_leader_is_waited_for(world: World, fault: str) -> None:
    store = world.open()
    for member in world.members:
        member.faults = [fault] * 2
    assert await store.create("a", b"mine")
    assert world.pauses and all(0 < pause < 1 for pause in world.pauses if pause)


async def test_a_member_that_says_nothing_is_left(world: World) -> None:
    store = world.open(attempt=0.05)
    world.members[0].faults = ["silent"]
    assert await store.create("a", b"mine"), "it was created by the request that was not answered"
    assert world.keys.values[b"test/a"] == b"=mine"


async def test_a_lost_answer_is_settled_by_the_content(world: World) -> None:
    store, other = world.open(), world.open()
    world.members[0].faults = ["lose"]
    assert await store.create("a", b"mine")
    assert not await other.create("a", b"mine"), "a first answer means what it says"
    world.members[1].faults = ["drop"]
    assert not await store.create("a", b"not there"), "another's content is not ours"
    assert await store.get("a") == b"mine"


async def test_a_refusal_after_a_lost_answer_leaves_it_in_doubt(world: World) -> None:
    store = world.open()
    world.members[0].faults = ["full"]
    with pytest.raises(StoreFullError):
        await store.create("a", b"mine")
    world.members[0].faults, world.members[1].faults = ["lose"], ["full"]
    with pytest.raises(StoreUnavailableError, match="space exceeded"):
        await store.create("a", b"mine")
    assert world.keys.values[b"test/a"] == b"=mine"


async def test_an_etcd_that_stays_away_is_unavailable_in_time(world: World) -> None:
    store = world.open(attempt=0.05, in_all=0.3)
    for member in world.members:
        member.faults = ["silent"] * 100
    began = asyncio.get_running_loop().time()
    with pytest.raises(StoreUnavailableError) as refused:
        await store.get("a")
    assert asyncio.get_running_loop().time() - began < 10
    assert "\n" not in str(refused.value) and world.addresses[0] in str(refused.value)


async def test_values_beyond_etcds_limit(world: World) -> None:
    store = world.open()
    large = random.Random(3).randbytes(3 * INLINE_BYTES + 17)
    other = random.Random(4).randbytes(3 * INLINE_BYTES)
    assert await store.create("meta/snapshot/1", large)
    assert not await store.create("meta/snapshot/1", other)
    assert await store.get("meta/snapshot/1") == large
    assert await store.get_range("meta/snapshot/1", INLINE_BYTES - 5, 10) == large[INLINE_BYTES - 5 :][:10]
    assert [info async for info in store.list("")] == [("meta/snapshot/1", len(large))]
    assert len(world.keys.values) == 5, "what lost the race left nothing"
    await store.put("meta/snapshot/1", other)
    assert await store.get("meta/snapshot/1") == other
    await store.put("meta/snapshot/1", b"stub")
    assert list(world.keys.values) == [b"test/meta/snapshot/1"]
    await store.put("meta/snapshot/1", large)
    await store.delete("meta/snapshot/1")
    assert not world.keys.values


async def test_a_large_value_whose_answer_was_lost(world: World) -> None:
    store = world.open()
    large = random.Random(3).randbytes(2 * INLINE_BYTES)
    world.members[0].faults = ["", "", "lose"]  # Two parts, then the pointer.
    assert await store.create("a", large)
    assert await store.get("a") == large
    world.members[1].faults = ["", "", "lose"]
    await store.put("b", large)
    assert await store.get("b") == large


async def test_a_large_value_that_finds_no_room_leaves_nothing(world: World) -> None:
    store = world.open()
    world.members[0].faults = ["", "full"]
    with pytest.raises(StoreFullError):
        await store.create("a", random.Random(3).randbytes(2 * INLINE_BYTES))
    assert world.members[0].paths == ["/v3/kv/put", "/v3/kv/put", "/v3/kv/deleterange"]
    assert not world.keys.values


async def test_answers_in_chunks_and_connections_that_are_kept(world: World) -> None:
    store = world.open()
    world.members[0].faults = ["chunked"] * 4
    assert await store.create("a", b"1" * 1000)
    assert await store.get("a") == b"1" * 1000
    assert await keys_of(store) == ["a"]
    assert world.members[0].connections == 1


async def test_users_and_tokens_that_end(world: World) -> None:
    for member in world.members:
        member.password = "secret"
    store = world.open(password="secret")
    await store.put("a", b"1")
    world.members[0].tokens.clear()
    assert await store.get("a") == b"1"
    with pytest.raises(StoreRefusedError, match="authentication failed"):
        await world.open(password="wrong").get("a")


async def test_history_is_forgotten_after_a_while(world: World) -> None:
    store = world.open()
    for number in range(5):
        await store.put("live/1", b"%d" % number)
    first = world.keys.revision
    world.now += HISTORY_SECONDS / 2
    await store.put("live/1", b"5")
    assert not world.keys.compacted
    world.now += HISTORY_SECONDS / 2
    await store.put("live/1", b"6")
    world.now += HISTORY_SECONDS
    await store.put("live/1", b"7")
    async with asyncio.timeout(60):
        await world.keys.compaction.wait()
    assert 0 < world.keys.compacted <= first


@pytest.mark.parametrize(
    ("url", "members", "prefix"),
    [
        ("etcd://one", [Member("one", 2379)], "penstock"),
        ("etcd://one:1,two:2,one:1/", [Member("one", 1), Member("two", 2)], "penstock"),
        ("etcds://[::1]:1,[::2]/a/b/", [Member("::1", 1), Member("::2", 2379)], "a/b"),
    ],
)
def test_addresses(url: str, members: list[Member], prefix: str) -> None:
    assert parse_url(url)[1:] == (members, prefix)


@pytest.mark.parametrize("url", ["etcd://", "etcd://one:port", "etcd://one,,two", "etcd://me:secret@one"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(StoreError) as refused:
        EtcdStore(url)
    assert "\n" not in str(refused.value) and "secret" not in str(refused.value)
