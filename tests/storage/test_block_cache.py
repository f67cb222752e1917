"""Blocks of a distant store: fewer requests, the same bytes, bounded memory."""

import asyncio
import random

import pytest

from penstock.storage.stores.block_cache import BlockCache
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import ObjectMissingError, StoreUnavailableError
from tests.storage.test_settling import fill, forget_tails
from tests.storage.world import QUIET, World, own_partition, read

BLOCK = 1000
CONTENTS = random.Random(1).randbytes(25 * BLOCK + 17)


class Distant(MemoryStore):
    """Answers when it is told to, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, int, int]] = []
        self.gate: asyncio.Event | None = None
        self.failures = 0

    async def get_up_to(self, key: str, start: int, length: int) -> bytes:
        self.asked.append((key, start, length))
        if self.gate is not None:
            await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise StoreUnavailableError("slow down")
        if key not in self.objects:
            raise ObjectMissingError(f"there is no {key}")
        return self.objects[key][start : start + length]


@pytest.fixture
def store() -> Distant:
    made = Distant()
    made.objects["a"] = CONTENTS
    return made


async def test_small_steps_cost_a_request_per_block(store: Distant) -> None:
    cache = BlockCache(store, 10 * BLOCK, BLOCK)
    for start in range(0, 5 * BLOCK, 100):
        found = cache.get_range_now("a", start, 100)
        if found is None:
            found = await cache.get_range("a", start, 100)
        assert bytes(found) == CONTENTS[start : start + 100]
    assert store.asked == [("a", number * BLOCK, BLOCK) for number in range(5)]
    assert cache.hits == 45


@pytest.mark.parametrize(
    ("start", "length"), [(0, 1), (999, 2), (1500, 1800), (25_000, 17), (24_990, 27), (5, 0)]
)
async def test_any_range(store: Distant, start: int, length: int) -> None:
    cache = BlockCache(store, 10 * BLOCK, BLOCK)
    for _ in range(2):
        assert bytes(await cache.get_range("a", start, length)) == CONTENTS[start : start + length]
    assert len(store.asked) == 1, "neighbours come in one request"
    assert bytes(cache.get_range_now("a", start, length) or b"") == CONTENTS[start : start + length]


async def test_memory_is_bounded_and_what_was_used_last_stays(store: Distant) -> None:
    cache = BlockCache(store, 4 * BLOCK, BLOCK)
    for number in (0, 1, 2, 3):
        await cache.get_range("a", number * BLOCK, 10)
    assert cache.get_range_now("a", 0, 10) is not None
    await cache.get_range("a", 9 * BLOCK, 10)
    assert cache.bytes_used <= 4 * BLOCK
    assert cache.get_range_now("a", 0, 10) is not None
    assert cache.get_range_now("a", BLOCK, 10) is None


async def test_a_large_read_pushes_nothing_out(store: Distant) -> None:
    cache = BlockCache(store, 8 * BLOCK, BLOCK)
    await cache.get_range("a", 0, 10)
    assert await cache.get_range("a", 500, 20 * BLOCK) == CONTENTS[500 : 20 * BLOCK + 500]
    assert cache.bytes_used == BLOCK and len(store.asked) == 2
    assert cache.get_range_now("a", 0, 10) is not None


async def test_many_who_want_the_same_share_one_request(store: Distant) -> None:
    cache = BlockCache(store, 10 * BLOCK, BLOCK)
    store.gate = asyncio.Event()
    readers = [asyncio.create_task(cache.get_range("a", at * 10, 10)) for at in range(20)]
    await asyncio.sleep(0)
    readers.pop(0).cancel()  # The one that asked first has had enough.
    store.gate.set()
    for at, found in enumerate(await asyncio.gather(*readers), 1):
        assert bytes(found) == CONTENTS[at * 10 : at * 10 + 10]
    assert len(store.asked) == 1


async def test_failures_are_told_and_not_kept(store: Distant) -> None:
    cache = BlockCache(store, 10 * BLOCK, BLOCK)
    store.failures = 1
    with pytest.raises(StoreUnavailableError):
        await cache.get_range("a", 0, 10)
    assert bytes(await cache.get_range("a", 0, 10)) == CONTENTS[:10]
    for key, start, length in (("none", 0, 1), ("a", 25_000, 18), ("a", 26_000, 1)):
        with pytest.raises(ObjectMissingError):
            await cache.get_range(key, start, length)
    await cache.close()


async def test_an_object_that_came_short_once_is_not_short(store: Distant) -> None:
    """A partition of a coordinator could not be loaded until its broker was started anew."""
    cache = BlockCache(store, 10 * BLOCK, BLOCK)
    for now in (False, True):
        store.objects["a"] = CONTENTS[: 2 * BLOCK + 10]
        assert len(await cache.get_range("a", 2 * BLOCK, 10)) == 10
        with pytest.raises(ObjectMissingError, match="ends before byte 3000"):
            if now:
                cache.get_range_now("a", 2 * BLOCK, BLOCK)
            else:
                await cache.get_range("a", 2 * BLOCK, BLOCK)
        store.objects["a"] = CONTENTS
        assert bytes(await cache.get_range("a", 2 * BLOCK, BLOCK)) == CONTENTS[2 * BLOCK : 3 * BLOCK]
        cache.forget("a", 0, len(CONTENTS))
    assert cache.bytes_used == 0


async def test_a_consumer_that_lags_asks_the_store_rarely() -> None:
    """Through the ledger: records that are settled and no longer in the tail cache, read in small fetches."""
    store = Distant()
    world = World(store)
    ledger = await world.start(settings=QUIET)
    partition = own_partition(ledger, await world.create_topic("t"))
    values = await fill(ledger, partition, 200, size=500)
    assert await ledger.settle()
    for _group in range(3):
        forget_tails(ledger)
        offset, found = 0, 0
        while offset < partition.high_watermark:
            part = await read(ledger, partition, offset, max_bytes=1500)
            found += part.size
            offset = part.next_offset
        assert found > sum(map(len, values))
    assert len(store.asked) == 1, "everything lies in one block"
    assert ledger.counters()["block_requests"] == 1 and ledger.counters()["block_hits"] > 100
    await world.close()


async def test_a_reader_is_not_told_of_damage_that_came_on_the_way() -> None:
    """It would stay in the cache as well, for every reader."""
    store = Flipping()
    world = World(store)
    ledger = await world.start(settings=QUIET)
    topic = await world.create_topic("t")
    partition = own_partition(ledger, topic)
    await fill(ledger, partition, 5)
    await ledger.settle()
    forget_tails(ledger)
    store.flips = 2
    for _ in range(2):
        assert (await read(ledger, partition, 0)).next_offset == 5
    assert not store.flips
    await world.close()


class Flipping(Distant):
    """Some answers have a wrong bit."""

    flips = 0

    async def get_up_to(self, key: str, start: int, length: int) -> bytes:
        found = bytearray(await super().get_up_to(key, start, length))
        if self.flips:
            self.flips -= 1
            found[70] ^= 1
        return bytes(found)
