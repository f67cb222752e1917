"""Entries and snapshots that are gone: the log is not taken for one that ends there, nor for a new one."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.cluster.leases import Lease, encode_lease, flushes_said, lease_key
from penstock.cluster.metadata_log import MetadataLog
from penstock.cluster.reading import ImageReader, view_of
from penstock.cluster.snapshots import HINT_KEY, LOG_PREFIX, SNAPSHOT_PREFIX, entry_key, snapshot_key
from penstock.metadata.codec import FormatError
from penstock.metadata.image import ClusterImage, PartitionKey
from penstock.node.node import StartError
from penstock.storage.reader.view import Chosen
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import ObjectInfo, ObjectMissingError, ObjectStore
from penstock.storage.wal.objects import flush_key

from .rig import FaultyStore, creating, open_log, registering
from .ward import Ward

NEWEST = 6


def another(inner: MemoryStore) -> MetadataLog:
    """Another broker's end of the log: what it writes is not what the first one wrote."""
    return open_log(FaultyStore(inner, 99), snapshot_entries=10)


async def written(inner: MemoryStore, topics: int = NEWEST - 1) -> ClusterImage:
    """A log with one entry for its broker and one for each topic."""
    log = open_log(FaultyStore(inner), snapshot_entries=10)
    await log.open()
    await log.propose(registering(1))
    for number in range(topics):
        await log.propose(creating(f"t{number}"))
        await log.snapshot_written()
    await log.close()
    return log.image


@pytest.mark.parametrize("number", range(1, NEWEST))
async def test_an_entry_below_others_is_gone(number: int) -> None:
    inner = MemoryStore()
    image = await written(inner)
    whole = dict(inner.objects)
    del inner.objects[entry_key(number)]
    left = dict(inner.objects)
    for look in (another(inner).open, ImageReader(FaultyStore(inner)).refresh):
        with pytest.raises(
            FormatError, match=f"{entry_key(number)} is not there, and {entry_key(number + 1)} is"
        ):
            await look()
    assert inner.objects == left, "nobody writes in its place"
    inner.objects = whole
    assert await another(inner).open() == image


async def test_a_hole_at_the_border_of_a_listing() -> None:
    """What follows the end is listed by the first digits of its number."""
    inner = MemoryStore()
    log = open_log(FaultyStore(inner))
    await log.open()
    await log.propose(registering(1))
    for number in range(201):
        await log.propose(creating(f"t{number}"))
    await log.close()
    for number in (98, 99, 100, 198, 199, 200):
        kept = inner.objects.pop(entry_key(number))
        with pytest.raises(FormatError, match=f"{entry_key(number)} is not there"):
            await another(inner).open()
        inner.objects[entry_key(number)] = kept


async def test_the_newest_entry_is_gone_and_a_broker_had_read_it() -> None:
    inner = MemoryStore()
    await written(inner)
    inner.objects[lease_key(1)] = encode_lease(Lease(1, 30, NEWEST))
    newest = inner.objects.pop(entry_key(NEWEST))
    left = dict(inner.objects)
    with pytest.raises(FormatError, match=r"ends at entry 5, and a broker had read entry 6 \(live/1\)"):
        await another(inner).open()
    assert inner.objects == left
    inner.objects[entry_key(NEWEST)] = newest
    assert (await another(inner).open()).version == NEWEST


@pytest.mark.parametrize(
    "lease",
    [encode_lease(Lease(1, 30, 7)).replace(b"7", b"8"), b'{"epoch":1,"counter":1,"version":9}', b"", b"{"],
)
async def test_a_lease_that_is_hurt_or_old_proves_nothing(lease: bytes) -> None:
    inner = MemoryStore()
    image = await written(inner)
    inner.objects[lease_key(1)] = lease
    assert await another(inner).open() == image


class BusyStore(FaultyStore):
    """Others write between the end of reading and each listing."""

    def __init__(self, inner: MemoryStore, busy: MetadataLog) -> None:
        super().__init__(inner)
        self._busy = busy

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        if prefix.startswith(LOG_PREFIX):
            for number in range(2):
                await self._busy.propose(creating(f"meanwhile{number}"))
        async for info in super().list(prefix):
            yield info


async def test_what_others_write_meanwhile_is_not_a_hole() -> None:
    inner = MemoryStore()
    await written(inner)
    writer = another(inner)
    await writer.open()
    assert await open_log(BusyStore(inner, writer)).open() == writer.image
    assert writer.image.version == NEWEST + 2


# Snapshots.


@pytest.mark.parametrize("snapshots", [1, 2, 4])
@pytest.mark.parametrize("hint", [True, False])
async def test_the_newest_snapshot_is_gone(
    snapshots: int, hint: bool, caplog: pytest.LogCaptureFixture
) -> None:
    inner = MemoryStore()
    image = await written(inner, 10 * snapshots + 3)
    del inner.objects[snapshot_key(snapshots)]
    if not hint:
        del inner.objects[HINT_KEY]
    assert await ImageReader(FaultyStore(inner)).refresh() == image
    with caplog.at_level(logging.WARNING):
        log = another(inner)
        assert await log.open() == image
    assert (f"was not there key={snapshot_key(snapshots)}" in caplog.text) is hint
    # The next one closes the gap.
    for number in range(25):
        await log.propose(creating(f"later{number}"))
        await log.snapshot_written()
    await log.close()
    assert await another(inner).open() == log.image


async def test_all_snapshots_are_gone() -> None:
    inner = MemoryStore()
    await written(inner, 43)
    for key in [key for key in inner.objects if key.startswith(SNAPSHOT_PREFIX)]:
        del inner.objects[key]
    left = dict(inner.objects)
    for look in (another(inner).open, ImageReader(FaultyStore(inner)).refresh):
        with pytest.raises(FormatError, match=f"{entry_key(1)} is not there, and "):
            await look()
    assert inner.objects == left


async def test_a_snapshot_in_the_middle_is_gone_and_the_hint_is_old() -> None:
    inner = MemoryStore()
    image = await written(inner, 43)
    inner.objects[HINT_KEY] = b'{"snapshot":1}'
    del inner.objects[snapshot_key(2)]
    assert await another(inner).open() == image


async def test_a_broker_that_lags_passes_over_a_hole_below_a_snapshot() -> None:
    inner = MemoryStore()
    sleeper = open_log(FaultyStore(inner, 2))
    await sleeper.open()
    image = await written(inner, 12)
    del inner.objects[entry_key(3)]
    assert await sleeper.catch_up() == image


async def test_the_whole_log_is_gone(ward: Ward) -> None:
    await ward.fill()
    await ward.kill()
    store = ward.open()
    for prefix in (LOG_PREFIX, SNAPSHOT_PREFIX, HINT_KEY):
        for key in [info.key async for info in store.list(prefix)]:
            await store.delete(key)
    with pytest.raises(StartError, match="is gone: the store holds records"):
        await ward.start()
    assert not [info async for info in store.list(LOG_PREFIX)]


async def test_a_log_and_leases_from_an_older_copy(ward: Ward) -> None:
    """As when etcd is restored from a backup: a broker had registered since, and what it wrote is there."""
    await ward.fill()
    await ward.kill()
    older = await contents(ward.open(), "meta/", "live/")
    await ward.start()
    await ward.write("orders", 0, [b"later"])
    await ward.kill()
    store = ward.open()
    newer = await contents(store, "meta/", "live/")
    for key in newer.keys() - older.keys():
        await store.delete(key)
    for key, stored in older.items():
        await store.put(key, stored)
    with pytest.raises(StartError, match=r"broker 1 registered with entry \d+ \(wal/1/\d+/\)"):
        await ward.start()
    assert await contents(store, "meta/", "live/") == older, "nothing was written"
    for key, stored in newer.items():
        await store.put(key, stored)
    await ward.start()
    assert (await ward.read("orders", 0))[-1] == (17, b"later")


@pytest.fixture
async def beating(tmp_path: Path) -> AsyncIterator[Ward]:
    """A broker that says often how much of its log is durable."""
    made = Ward("memory", tmp_path, "broker.heartbeat.interval.ms=20")
    yield made
    await made.kill()


@pytest.mark.parametrize("lost", range(4))
async def test_a_reader_does_not_take_a_flush_that_is_gone_for_the_end(beating: Ward, lost: int) -> None:
    """Of a log that its broker still writes to. What was acknowledged would be missing without a word."""
    ward = beating
    await ward.start()
    await ward.create("t")
    await ward.write("t", 0, *([b"%d" % number] for number in range(4)))
    partition = ward.partition("t")
    key, wal = (partition.topic_id, partition.index), partition.wals[-1]
    following, late = (view_of(ward.open(), lambda image: chosen(image, "t")) for _ in range(2))
    assert (await following.refresh())[key].end == 4
    async with asyncio.timeout(60):
        while await flushes_said(ward.open(), wal, b"") < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    kept = ward.objects.pop(flush_key(wal, lost))
    with pytest.raises(ObjectMissingError, match=f"flush {lost} .* the broker said that there are 4"):
        await late.refresh()
    ward.objects[flush_key(wal, lost)] = kept
    assert (await late.refresh())[key].end == 4
    # Who follows the log learns of it, too.
    await ward.write("t", 0, [b"4"], [b"5"])
    kept = ward.objects.pop(flush_key(wal, 4))
    async with asyncio.timeout(60):
        with pytest.raises(ObjectMissingError, match=r"flush 4 .* the broker said that there are 6"):
            while True:
                assert (await following.refresh())[key].end == 4
    ward.objects[flush_key(wal, 4)] = kept
    assert (await following.refresh())[key].end == 6


def chosen(image: ClusterImage, name: str) -> dict[PartitionKey, Chosen]:
    topic = image.topic(name)
    assert topic is not None
    return {(topic.id, number): Chosen(topic, number, info) for number, info in enumerate(topic.partitions)}


async def contents(store: ObjectStore, *prefixes: str) -> dict[str, bytes]:
    keys = [info.key for prefix in prefixes async for info in store.list(prefix)]
    return {key: await store.get(key) or b"" for key in keys}
