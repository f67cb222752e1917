"""Work in the background leaves the broker its time, whatever fails, and never holds up settling."""

import asyncio

import msgspec
import pytest

from penstock.storage.ledger import upkeep as module
from penstock.storage.ledger.ledger import Ledger
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import StoreUnavailableError
from tests.storage.test_settling import NO_DELAY, PROMPT, fill
from tests.storage.world import World, own_partition


async def background(ledger: Ledger) -> asyncio.Task[None]:
    """The upkeep of a ledger anew, in a task of the test's own."""
    task = ledger._upkeep_task
    assert ledger._upkeep is not None and task is not None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return asyncio.create_task(ledger._upkeep.run())


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_store_that_fails_between_two_merges_does_not_stop_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is left to merge waits for the next try, and does not keep the loop from everybody else."""
    world = World(MemoryStore())
    ledger = await world.start()
    partition = own_partition(ledger, await world.create_topic("t", 1))
    await fill(ledger, partition, 1)
    assert await ledger.settle()
    tries = 0

    async def merge() -> bool:
        nonlocal tries
        tries += 1
        raise StoreUnavailableError("the store is out")

    monkeypatch.setattr(ledger._settler, "merge", merge)
    running = await background(ledger)
    for _ in range(50):
        await asyncio.sleep(0)
    assert tries == 1
    await stop(running)
    await world.kill(ledger)


async def test_a_partition_that_is_given_away_does_not_keep_the_broker_settling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It still has an earlier log, and nobody settles it here. Neither is a settle wanted for it, nor does
    one that changes nothing lead to the next at once."""
    world = World(MemoryStore())
    first = await world.start()
    topic = await world.create_topic("t", 1)
    await fill(first, own_partition(first, topic), 1)
    await world.kill(first)
    ledger = await world.start()
    partition = own_partition(ledger, topic)
    assert len(partition.wals) > 1
    await ledger.surrender([(topic, 0)])
    upkeep = ledger._upkeep
    assert partition.closed and upkeep is not None
    upkeep._earlier_settle_at = 0.0
    assert not upkeep._should_settle(world.clock.monotonic())

    tries = 0
    settle = upkeep.settle

    async def counted() -> bool:
        nonlocal tries
        tries += 1
        assert tries < 10, "it never rests"
        return await settle()

    monkeypatch.setattr(upkeep, "settle", counted)
    monkeypatch.setattr(upkeep, "_should_settle", lambda now: True)
    running = await background(ledger)
    for _ in range(50):
        await asyncio.sleep(0)
    assert tries == 1
    await stop(running)
    await world.kill(ledger)


class StuckStore(MemoryStore):
    """Deletes nothing, and does not say so."""

    def __init__(self) -> None:
        super().__init__()
        self.never = asyncio.Event()
        self.deletes = 0

    async def delete(self, key: str) -> None:
        self.deletes += 1
        await self.never.wait()


async def test_neither_deleting_nor_merging_holds_up_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TICK_SECONDS", 0.001)
    store = StuckStore()
    world = World(store)
    world.policies["t"] = NO_DELAY
    settings = msgspec.structs.replace(PROMPT, settle_interval_ms=0, merge_count=2)
    ledger = await world.start(settings=settings)
    running = await background(ledger)
    partition = own_partition(ledger, await world.create_topic("t", 1))
    merging = asyncio.Event()
    rewrite = ledger._settler._rewriter.rewrite

    async def stuck(stretches: object) -> int:
        merging.set()
        await store.never.wait()
        return await rewrite(stretches)  # type: ignore[arg-type]

    monkeypatch.setattr(ledger._settler._rewriter, "rewrite", stuck)
    committed = asyncio.Event()
    world.metadata.subscribers.append(lambda _old, _new: committed.set())
    for _ in range(5):
        await fill(ledger, partition, 1)
        async with asyncio.timeout(30):
            while partition.settled_end < partition.high_watermark:
                committed.clear()
                await committed.wait()
    assert merging.is_set() and store.deletes
    await stop(running)
    await world.kill(ledger)
