"""A broker is started on a copy of the bucket of a cluster whose metadata log is in etcd."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.cluster import belonging
from penstock.cluster.home import HomeError
from penstock.cluster.leases import Lease, encode_lease, lease_key
from penstock.cluster.metadata_log import MetadataLog
from penstock.metadata.commands import SettlePartitions
from penstock.metadata.image import WalRef
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.wal.objects import flush_key
from tests.clocks import HandClock

from .rig import registering

EPOCH = 1
LOG = WalRef(1, EPOCH)


class Etcd(MemoryStore):
    url = "etcd://host:2379/penstock"


class Original:
    """The cluster: its etcd, its bucket, and a broker that says how many flushes are durable."""

    def __init__(self) -> None:
        self.etcd = Etcd()
        self.bucket = MemoryStore()
        self._counter = 0
        self._flushes = 0
        self._beating: asyncio.Task[None] | None = None

    def log_on(self, bucket: MemoryStore) -> MetadataLog:
        return MetadataLog(bucket, HandClock(), metadata=Etcd.url, elsewhere=lambda _location: self.etcd)

    async def found(self) -> None:
        log = self.log_on(self.bucket)
        await log.open()
        await log.propose(registering(1))
        await log.close()
        for number in range(3):
            await self.write(number)

    async def write(self, number: int) -> None:
        await self.bucket.create(flush_key(LOG, number), b"a flush")
        self._flushes = number + 1
        await self.beat()

    async def beat(self) -> None:
        self._counter += 1
        lease = Lease(EPOCH, self._counter, version=1, flushes=self._flushes)
        await self.etcd.put(lease_key(1), encode_lease(lease))

    def live(self) -> None:
        async def beat_on() -> None:
            while True:
                await asyncio.sleep(belonging.LOOK_SECONDS / 3)
                await self.beat()

        self._beating = asyncio.create_task(beat_on())

    async def settle(self, flush: int) -> None:
        log = self.log_on(self.bucket)
        await log.open()
        await log.propose(lambda _image: [SettlePartitions(1, EPOCH, (), flush)])
        await log.close()

    def copy(self) -> MemoryStore:
        copy = MemoryStore()
        copy.objects.update(self.bucket.objects)
        return copy

    async def close(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)


@pytest.fixture
async def original(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Original]:
    monkeypatch.setattr(belonging, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(belonging, "ALIVE_SECONDS", 0.2)
    made = Original()
    await made.found()
    yield made
    await made.close()


async def test_a_copy_does_not_join_the_cluster_of_its_original(original: Original) -> None:
    copy = original.copy()
    await original.write(3)
    original.live()
    before = dict(original.etcd.objects)
    with pytest.raises(HomeError, match=r"copy of the store of cluster .*flush 3 of it is not here \(live/1"):
        await original.log_on(copy).open()
    assert {key for key in original.etcd.objects if key.startswith("meta/log/")} == {
        key for key in before if key.startswith("meta/log/")
    }
    assert (await original.log_on(original.bucket).open()).version == 1


async def test_a_flush_that_is_lost_with_its_broker_stops_no_start(original: Original) -> None:
    await original.bucket.delete(flush_key(LOG, 2))
    assert (await original.log_on(original.bucket).open()).version == 1


async def test_what_is_settled_need_not_be_there(original: Original) -> None:
    await original.settle(3)
    await original.bucket.delete(flush_key(LOG, 2))
    original.live()
    assert (await original.log_on(original.bucket).open()).version == 2


async def test_what_is_settled_meanwhile_need_not_be_there_either(
    original: Original, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was deleted between the first look at the image and the look at the flush."""
    original.live()
    size = original.bucket.size

    async def settled_first(key: str) -> int | None:
        monkeypatch.setattr(original.bucket, "size", size)
        await original.settle(3)
        await original.bucket.delete(key)
        return await size(key)

    monkeypatch.setattr(original.bucket, "size", settled_first)
    assert (await original.log_on(original.bucket).open()).version == 2
    assert await original.bucket.get(flush_key(LOG, 2)) is None
