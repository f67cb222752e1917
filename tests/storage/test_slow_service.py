"""A ledger on a service of which parts hang: producers are answered, brokers heard, readers wait alone."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.storage.ledger.ledger import Ledger
from penstock.storage.partitions.partition import Partition
from penstock.storage.stores import patience
from penstock.storage.stores.remote import RemoteStore
from penstock.testing.waiting import eventually
from tests.storage.fake_s3 import FakeS3
from tests.storage.world import QUIET, World, append_ok, batch, own_partition, read, read_all

SOON = 0.05


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeS3]:
    monkeypatch.setattr(patience, "HEDGE_MIN_SECONDS", SOON)
    made = FakeS3()
    for name, value in (await made.start()).items():
        monkeypatch.setenv(name, value)
    yield made
    await made.stop()


@pytest.fixture
async def world(server: FakeS3) -> AsyncIterator[World]:
    made = World(RemoteStore("s3://bucket/prefix"))
    yield made
    server.release.set()
    await made.close()


async def begin(world: World) -> tuple[Ledger, Partition]:
    ledger = await world.start(settings=QUIET)
    return ledger, own_partition(ledger, await world.create_topic("t"))


async def test_a_flush_that_hangs_does_not_hold_up_those_behind_it(server: FakeS3, world: World) -> None:
    """Outcomes come in order, so all wait for the one that hangs: until it is sent a second time."""
    ledger, partition = await begin(world)
    for number in range(20):
        await append_ok(ledger, partition, batch(b"%d" % number))
    for number in range(20, 25):
        server.faults = [("PUT", "hang")]
        async with asyncio.timeout(20 * SOON):
            done = [asyncio.ensure_future(append_ok(ledger, partition, batch(b"%d" % number)))]
            await asyncio.sleep(0)
            done.append(asyncio.ensure_future(append_ok(ledger, partition, batch(b"%d behind" % number))))
            await asyncio.gather(*done)
    assert server.hanging
    server.release.set()
    # What hung arrives late, and changes nothing.
    await eventually(lambda: not server.hanging, "all that hung")
    expected = [b"%d" % number for number in range(20)]
    for number in range(20, 25):
        expected += [b"%d" % number, b"%d behind" % number]
    await world.kill(ledger)
    again = await world.start()
    found = await read_all(again, own_partition(again, partition.topic_id))
    assert found == list(enumerate(expected))


async def test_producers_and_heartbeats_go_on_while_records_cannot_be_read_or_settled(
    server: FakeS3, world: World
) -> None:
    ledger, partition = await begin(world)
    await append_ok(ledger, partition, *(batch(b"x" * 1000) for _ in range(50)))
    assert await ledger.settle()
    await world.kill(ledger)
    ledger = await world.start()
    partition = own_partition(ledger, partition.topic_id)
    server.hangs = lambda method, path: "/segments/" in path or "/manifests/" in path
    readers = [asyncio.ensure_future(read(ledger, partition, 0, 500 + number)) for number in range(100)]
    await append_ok(ledger, partition, batch(b"unsettled"))
    settling = asyncio.ensure_future(ledger.settle())
    await eventually(lambda: server.hanging >= 2 and server.count("PUT"), "readers and settling that hang")
    async with asyncio.timeout(30):
        for number in range(30):
            await append_ok(ledger, partition, batch(b"%d" % number))
            await world.store.put("live/1", b"%d" % number)
            assert await world.store.create(f"meta/log/{number}", b"entry")
    assert not settling.done() and not any(reader.done() for reader in readers)
    server.release.set()
    assert await settling
    assert all(part.size for part in await asyncio.gather(*readers))
