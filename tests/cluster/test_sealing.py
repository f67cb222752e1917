"""Sealing a log on an object store whose writes may take effect late, by brokers whose image may be old."""

from penstock.cluster.sealing import seal_log
from penstock.metadata.commands import SettlePartitions
from penstock.metadata.image import ClusterImage
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.wal.objects import ObjectWalStore
from penstock.storage.wal.port import Durable, Fenced
from tests.storage.test_wal_behaviour import write

from .rig import FaultyStore, open_log, registering


async def test_a_log_is_sealed_at_its_end_by_a_broker_that_lags() -> None:
    """It believes that the log begins with flush 0, and finds what lies there: a write that came twice."""
    store = MemoryStore()
    writers, sealers = open_log(FaultyStore(store)), open_log(FaultyStore(store, 1))
    await writers.open()
    image = await writers.propose(registering(1))
    assert isinstance(image, ClusterImage)
    await sealers.open()
    wal = image.brokers[1].wal
    wal_store = ObjectWalStore(store)
    writer = await wal_store.create(wal)
    assert not isinstance(writer, Fenced)
    for number in range(9):
        assert isinstance(await write(writer, number), Durable)
    key = f"wal/{wal.broker}/{wal.epoch}/{0:020d}"
    again = store.objects[key]
    await writers.propose(lambda image: [SettlePartitions(wal.broker, wal.epoch, (), 7)])
    await wal_store.delete_below(wal, 7)
    assert await store.create(key, again)

    assert sealers.image.wal_starts == {}
    assert await seal_log(sealers, wal_store, wal) == 9
    assert isinstance(await write(writer, 9), Fenced)
    assert await seal_log(writers, wal_store, wal) == 9
    await writer.close()


async def test_a_log_that_never_began_is_sealed() -> None:
    store = MemoryStore()
    log = open_log(FaultyStore(store))
    await log.open()
    image = await log.propose(registering(1))
    assert isinstance(image, ClusterImage)
    wal = image.brokers[1].wal
    assert await seal_log(log, ObjectWalStore(store), wal) == 0
    assert isinstance(await ObjectWalStore(store).create(wal), Fenced)
