"""Sealing a log: on an object store whose writes may take effect late, by brokers whose image may be old, and
where its end is gone."""

from pathlib import Path

import msgspec
import pytest

from penstock.cluster.leases import Lease, encode_lease, lease_key
from penstock.cluster.sealing import seal_log
from penstock.metadata.commands import SettlePartitions
from penstock.metadata.image import ClusterImage
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import StoreUnavailableError
from penstock.storage.wal.directory import DirectoryWalStore
from penstock.storage.wal.objects import ObjectWalStore
from penstock.storage.wal.port import Durable, Fenced, WalStore
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


@pytest.mark.parametrize("settled", [0, 3])
async def test_a_log_in_an_emptied_store_is_not_sealed(settled: int) -> None:
    """Somebody may bring the objects back. A log that was sealed where it began had lost its records."""
    store = MemoryStore()
    log = open_log(FaultyStore(store))
    await log.open()
    image = await log.propose(registering(1))
    assert isinstance(image, ClusterImage)
    wal, wal_store = image.brokers[1].wal, ObjectWalStore(store)
    writer = await wal_store.create(wal)
    assert not isinstance(writer, Fenced)
    for number in range(5):
        assert isinstance(await write(writer, number), Durable)
    if settled:
        await log.propose(lambda image: [SettlePartitions(wal.broker, wal.epoch, (), settled)])
        await wal_store.delete_below(wal, settled)
    objects = dict(store.objects)
    # With what says whose store it is, or without the records alone.
    for kept in ("", "meta/") if settled else ("",):
        for key in list(store.objects):
            if not kept or not key.startswith(kept):
                del store.objects[key]
        with pytest.raises(StoreUnavailableError, match="is not there"):
            await seal_log(log, wal_store, wal)
        assert not any(key.startswith("wal/") for key in store.objects)
        store.objects.update(objects)
    assert await seal_log(log, wal_store, wal) == 5
    await writer.close()


BOOT, OTHER_BOOT = b"b" * 16, b"o" * 16
SAID = Lease(0, 1, flushes=9)


async def _sealed(wal_store: WalStore, written: int, lease: bytes | None) -> int:
    """Where a log of so many flushes is sealed, if its broker last said this."""
    store = MemoryStore()
    log = open_log(FaultyStore(store))
    await log.open()
    image = await log.propose(registering(1))
    assert isinstance(image, ClusterImage)
    wal = image.brokers[1].wal
    writer = await wal_store.create(wal)
    assert not isinstance(writer, Fenced)
    for number in range(written):
        assert isinstance(await write(writer, number), Durable)
    if lease is not None:
        await store.put(lease_key(1), lease)
    count = await seal_log(log, wal_store, wal)
    # Nobody acknowledges a flush after the seal, not even a writer that knows of more than are there.
    assert isinstance(await write(writer, max(written, count)), Fenced)
    await writer.close()
    await log.close()
    return count


def _of(lease: Lease, image_epoch: int = 1) -> Lease:
    return msgspec.structs.replace(lease, epoch=image_epoch)


@pytest.mark.parametrize("kind", ["objects", "directory"])
@pytest.mark.parametrize(
    "lease, end",
    [
        (None, 6),
        (encode_lease(_of(SAID)), 9),
        (encode_lease(_of(msgspec.structs.replace(SAID, flushes=4))), 6),
        (encode_lease(_of(SAID, 77)), 6),
        (encode_lease(_of(SAID)).replace(b'"flushes":9', b'"flushes":8'), 6),
        (encode_lease(_of(SAID))[:-3], 6),
    ],
    ids=["said nothing", "said more", "said less", "another incarnation", "hurt", "torn"],
)
async def test_a_log_does_not_end_before_what_its_broker_said_to_be_durable(
    kind: str, lease: bytes | None, end: int, tmp_path: Path
) -> None:
    if kind == "objects":
        assert await _sealed(ObjectWalStore(MemoryStore()), 6, lease) == end
        return
    directory = DirectoryStore(str(tmp_path / "store"), sync=True)
    assert await _sealed(DirectoryWalStore(directory.local), 6, lease) == end
    await directory.close()


@pytest.mark.parametrize(
    "said, now, end", [(BOOT, BOOT, 9), (OTHER_BOOT, BOOT, 6), (bytes(16), bytes(16), 6)]
)
async def test_a_loss_of_power_may_take_what_was_durable_only_while_the_machine_ran(
    said: bytes, now: bytes, end: int, tmp_path: Path
) -> None:
    store = DirectoryStore(str(tmp_path / "store"))
    lease = encode_lease(_of(msgspec.structs.replace(SAID, boot=said.hex())))
    assert await _sealed(DirectoryWalStore(store.local, boot=now), 6, lease) == end
    await store.close()
