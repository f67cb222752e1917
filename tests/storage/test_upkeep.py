"""Work in the background leaves the broker its time, whatever fails."""

import asyncio

import pytest

from penstock.storage.memory import MemoryStore
from penstock.storage.objects import StoreUnavailableError
from tests.storage.test_settling import fill
from tests.storage.world import World, own_partition

STEPS_MAX = 50


async def test_a_store_that_fails_between_two_merges_does_not_stop_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is left to merge waits for the next try, and does not keep the loop from everybody else."""
    world = World(MemoryStore())
    ledger = await world.start()
    partition = own_partition(ledger, await world.create_topic("t", 1))
    await fill(ledger, partition, 1)
    upkeep, task = ledger._upkeep, ledger._upkeep_task
    assert upkeep is not None and task is not None
    task.cancel()
    assert await upkeep.settle() and upkeep._merging

    async def merge() -> bool:
        raise StoreUnavailableError("the store is out")

    monkeypatch.setattr(upkeep._settler, "merge", merge)
    steps, step = 0, upkeep.step

    async def counted() -> bool:
        nonlocal steps
        steps += 1
        if steps > STEPS_MAX:
            raise asyncio.CancelledError
        return await step()

    monkeypatch.setattr(upkeep, "step", counted)
    running = asyncio.create_task(upkeep.run())
    for _ in range(10):
        await asyncio.sleep(0)
    assert steps == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await world.kill(ledger)
