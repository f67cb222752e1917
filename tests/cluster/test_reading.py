"""Reading the metadata log without joining: the same image as a member's, and nothing is ever written."""

import asyncio
from collections.abc import Sequence

import pytest

from penstock.cluster import second_looks
from penstock.cluster.reading import ImageReader, NoClusterError
from penstock.metadata.codec import FormatError
from penstock.metadata.image import ClusterImage
from penstock.storage.stores.memory import MemoryStore

from .rig import FaultyStore, creating, open_log, registering


async def test_an_empty_store_holds_no_cluster() -> None:
    inner = MemoryStore()
    with pytest.raises(NoClusterError):
        await ImageReader(FaultyStore(inner)).refresh()
    assert not inner.objects


@pytest.mark.parametrize("snapshot_entries", [1_000_000, 7])
async def test_a_reader_sees_what_a_member_sees(snapshot_entries: int) -> None:
    """Also one that looks rarely, while snapshots replace the entries that it would have read next."""
    inner = MemoryStore()
    log = open_log(FaultyStore(inner), snapshot_entries=snapshot_entries)
    await log.open()
    await log.propose(registering(1))
    often, rarely = ImageReader(FaultyStore(inner, 1)), ImageReader(FaultyStore(inner, 2))
    for number in range(60):
        image = await log.propose(creating(f"topic-{number}"))
        assert isinstance(image, ClusterImage)
        await log.snapshot_written()
        assert await often.refresh() == image
        if number % 25 == 20:
            assert await rarely.refresh() == image
    store = FaultyStore(inner, 3)
    assert await ImageReader(store).refresh() == log.image
    assert {operation for operation, _key in store.requests} == {"get", "list"}, "it writes nothing"
    await log.close()


async def test_a_look_without_news_costs_two_small_requests() -> None:
    inner = MemoryStore()
    log = open_log(FaultyStore(inner))
    await log.open()
    await log.propose(registering(1))
    store = FaultyStore(inner, 1)
    reader = ImageReader(store)
    first = await reader.refresh()
    store.requests.clear()
    assert await reader.refresh() is first
    assert len(store.requests) == 2
    await log.close()


async def test_readers_beside_writers_see_prefixes_in_order() -> None:
    inner = MemoryStore()
    logs = [open_log(FaultyStore(inner, seed), snapshot_entries=5) for seed in range(3)]
    for number, log in enumerate(logs, 1):
        await log.open()
        await log.propose(registering(number))
    seen: list[int] = []
    done = False

    async def read() -> None:
        reader = ImageReader(FaultyStore(inner, 9))
        while not done:
            seen.append((await reader.refresh()).version)
        seen.append((await reader.refresh()).version)

    async def write(at: int) -> None:
        for number in range(20):
            await logs[at].propose(creating(f"topic-{at}-{number}"))

    reading = asyncio.create_task(read())
    await asyncio.gather(*(write(at) for at in range(3)))
    newest = await logs[0].catch_up()
    done = True
    await reading
    assert seen == sorted(seen)
    assert seen[-1] == newest.version
    for log in logs:
        await log.close()


async def test_an_entry_that_is_hurt_on_its_way_is_read_again() -> None:
    inner = MemoryStore()
    log = open_log(FaultyStore(inner))
    await log.open()
    await log.propose(registering(1))

    class Flipping(MemoryStore):
        """The first answers to each question have a wrong bit."""

        def __init__(self) -> None:
            super().__init__()
            self.objects = inner.objects
            self.asked: set[str] = set()

        async def get(self, key: str) -> bytes | None:
            data = await super().get(key)
            if data is None or key in self.asked or not key.startswith("meta/log/"):
                return data
            self.asked.add(key)
            return data[:-1] + bytes([data[-1] ^ 1])

    assert await ImageReader(Flipping()).refresh() == log.image
    await log.close()


class Hurting(MemoryStore):
    """Each answer about the log has the next of these bits wrong; the last of them counts for all others."""

    def __init__(self, inner: MemoryStore, hurts: Sequence[int], prefix: str = "meta/log/") -> None:
        super().__init__()
        self.objects = inner.objects
        self.hurts = list(hurts)
        self.prefix = prefix
        self.reads = 0

    async def get(self, key: str) -> bytes | None:
        data = await super().get(key)
        if data is None or not key.startswith(self.prefix):
            return data
        self.reads += 1
        bit = self.hurts[0] if len(self.hurts) == 1 else self.hurts.pop(0)
        return data if bit < 0 else data[:-1] + bytes([data[-1] ^ 1 << bit])


async def test_an_entry_that_is_read_differently_each_time_is_not_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(second_looks, "PAUSES_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(second_looks, "DIFFERENT_PAUSE_SECONDS", 0.0)
    inner = MemoryStore()
    log = open_log(FaultyStore(inner))
    await log.open()
    await log.propose(registering(1))
    on_its_way = Hurting(inner, (0, 1, 2, 3, 4, 5, 6, -1))
    assert await ImageReader(on_its_way).refresh() == log.image
    assert on_its_way.hurts == [-1]
    at_rest = Hurting(inner, (3,))
    with pytest.raises(FormatError, match="meta/log/000000000001"):
        await ImageReader(at_rest).refresh()
    assert at_rest.reads == 3, "the same bytes again and again are what the store has"
    await log.close()


@pytest.mark.parametrize("prefix", ["meta/snapshot/", "meta/cluster"])
async def test_so_is_a_snapshot_and_what_names_the_cluster(
    monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """A broker that found two snapshots in a row hurt on their way took all that they held for lost."""
    monkeypatch.setattr(second_looks, "PAUSES_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(second_looks, "DIFFERENT_PAUSE_SECONDS", 0.0)
    inner = MemoryStore()
    log = open_log(FaultyStore(inner), snapshot_entries=2)
    await log.open()
    for number in range(12):
        await log.propose(registering(number))
        await log.snapshot_written()
    assert sum(key.startswith("meta/snapshot/") for key in inner.objects) > 2
    on_its_way = Hurting(inner, (0, 1, 2, 3, 4, -1, 0, 1, 2, 3, 4, 5, -1), prefix)
    assert await ImageReader(on_its_way).refresh() == log.image
    await log.close()
