"""The scrub of a store: what it finds, what it names, and that it finds nothing where nothing is hurt."""

import random
from collections.abc import Iterator
from typing import Any, cast

import pytest

from penstock.cluster.health.scrub import Scrub
from penstock.cluster.leases import Lease, encode_lease, lease_key
from penstock.log.flush import FILE_HEADER_SIZE, decode_file_header, encode_file_header
from penstock.storage.stores.objects import DatedStore, StoreUnavailableError
from penstock.wire.batch import iter_batches

from .ward import COMPACTED, Ward


async def test_nothing_is_found_where_nothing_is_hurt(ward: Ward) -> None:
    await ward.fill()
    running = await ward.scrub()
    assert running.damaged == [] and running.unread == [], running
    assert running.totals.records == 24 + 5 + 5 + 4 and running.totals.batches == 12 + 1 + 5 + 2
    await ward.kill()
    assert (await ward.scrub()).exit_code == 0
    await ward.start()
    sealed = await ward.scrub()
    assert sealed.exit_code == 0, sealed
    assert sealed.totals.records == 38
    one = await ward.scrub("other")
    assert one.totals.records == 9


async def test_a_batch_in_a_segment(ward: Ward) -> None:
    await ward.fill()
    (segment,) = (await ward.manifest("orders", 1)).segments
    extents = await ward.extents(segment)
    stored = await ward.get(segment.key)
    position = extents.positions[0]
    for offset in (0, 2, 4):
        size = int.from_bytes(stored[position + 8 : position + 12], "big") + 12
        for at in (0, 7, 9, 11, 12, 15, 16, 17, 20, 21, 60, size - 1):
            await ward.flip(segment.key, position + at)
            report = await ward.scrub()
            (found,) = report.damaged
            assert (found.topic, found.partition) == ("orders", 1)
            assert (found.start, found.end) == (offset, offset + 2), (at, found)
            assert (found.key, found.position, found.length) == (segment.key, position, size)
            assert report.exit_code == 1
            await ward.flip(segment.key, position + at)
        position += size
    assert (await ward.scrub()).exit_code == 0


async def needed_bytes(ward: Ward) -> Iterator[tuple[str, int, int]]:
    """Every range of bytes that somebody who opens the store would read."""
    image = await ward.image()
    found: list[tuple[str, int, int]] = []
    for key in await ward.keys("meta/"):
        if key.startswith(("meta/log/", "meta/snapshot/")):
            found.append((key, 0, len(await ward.get(key))))
    for topic in image.topics.values():
        for index, info in enumerate(topic.partitions):
            if info.manifest is None:
                continue
            found.append((info.manifest.key, info.manifest.start, info.manifest.length))
            for segment in (await ward.manifest(topic.name, index)).segments:
                found.append((segment.index_key, segment.index_start, segment.index_length))
                extents = await ward.extents(segment)
                found += (
                    (segment.key, *place) for place in zip(extents.positions, extents.lengths, strict=True)
                )
    for wal in image.wal_uses:
        start = image.wal_starts.get(wal, 0) + (0 if ward.on_directory else 1)
        for key in await ward.keys(f"wal/{wal.broker}/{wal.epoch}/"):
            name = key.rpartition("/")[2]
            if name.isdecimal() and int(name) >= start:
                found.append((key, 0, len(await ward.get(key))))
    return iter(found)


@pytest.mark.parametrize("sealed", [False, True])
async def test_every_flipped_bit_is_found(ward: Ward, sealed: bool) -> None:
    await ward.fill()
    await ward.kill()
    if sealed:
        await ward.start()
        await ward.kill()
    ranges = list(await needed_bytes(ward))
    numbers = random.Random(7)
    for _ in range(150):
        key, start, length = ranges[numbers.randrange(len(ranges))]
        if not length:
            continue
        at, bit = start + numbers.randrange(length), numbers.randrange(8)
        await ward.flip(key, at, bit)
        report = await ward.scrub()
        assert report.exit_code, (key, at, bit)
        await ward.flip(key, at, bit)
    assert (await ward.scrub()).exit_code == 0


async def test_every_flipped_bit_is_found_where_compaction_has_been(ward: Ward) -> None:
    """But one in a base offset, where that would still lie between its neighbours."""
    await ward.start()
    await ward.create("c", 1, **COMPACTED)
    await ward.write("c", 0, *([b"%d" % n * 9] * 3 for n in range(12)))
    assert await ward.ledger.settle()
    await ward.clean()
    (segment,) = (await ward.manifest("c")).segments
    stored = await ward.get(segment.key)
    assert (await ward.scrub()).exit_code == 0
    numbers = random.Random(2)
    for position, header in iter_batches(stored, 0, segment.index_start):
        for _ in range(20):
            at = numbers.randrange(8, header.size)
            await ward.flip(segment.key, position + at)
            assert (await ward.scrub()).damaged, (header, at)
            await ward.flip(segment.key, position + at)


async def test_objects_that_are_gone_or_cut_short(ward: Ward) -> None:
    await ward.fill()
    (segment,) = (await ward.manifest("orders", 0)).segments
    whole = await ward.get(segment.key)
    await ward.change(segment.key, whole[:300])
    short = await ward.scrub()
    assert {(one.topic, one.partition) for one in short.damaged if one.topic} == {
        ("orders", 0),
        ("orders", 1),
        ("other", 0),
    }
    await ward.open().delete(segment.key)
    gone = await ward.scrub()
    assert [(one.topic, one.partition, one.start, one.end) for one in gone.damaged] == [
        ("orders", 0, 0, 12),
        ("orders", 1, 0, 12),
        ("other", 0, 0, 5),
    ]
    await ward.open().create(segment.key, whole)
    assert (await ward.scrub()).exit_code == 0


async def test_a_flush_in_the_middle_of_a_log_is_lost(ward: Ward) -> None:
    await ward.fill()
    await ward.kill()
    (wal,) = (await ward.image()).wal_starts
    start = (await ward.image()).wal_starts[wal]
    if ward.on_directory:
        key = f"wal/{wal.broker}/{wal.epoch}/{start:020d}"
        stored = await ward.get(key)
        at = [n for n in range(len(stored)) if stored[n : n + 4] == b"PWF1"]
        await ward.overwrite(key, at[2], bytes(at[3] - at[2]))
    else:
        key = f"wal/{wal.broker}/{wal.epoch}/{start + 3:020d}"
        await ward.overwrite(key, 0, bytes(200))
    report = await ward.scrub()
    named = [(one.topic, one.partition, one.start, one.end) for one in report.damaged if one.topic]
    assert named == [("orders", 0, 14, 15)], report
    assert [one.key for one in report.damaged if not one.topic] == [key]


async def test_a_log_that_was_cut_short_is_not_hurt(ward: Ward) -> None:
    if not ward.on_directory:
        return
    await ward.fill()
    await ward.kill()
    (wal,) = (await ward.image()).wal_starts
    key = f"wal/{wal.broker}/{wal.epoch}/{(await ward.image()).wal_starts[wal]:020d}"
    await ward.open().delete(lease_key(wal.broker))  # It may know of these flushes.
    stored = await ward.get(key)
    for size in (len(stored) - 1, len(stored) - 70, len(stored) // 2, 30, 0):
        await ward.change(key, stored[:size])
        assert (await ward.scrub()).exit_code == 0, size
    await ward.change(key, stored + b"PWF1" + bytes(300))
    assert (await ward.scrub()).exit_code == 0
    await ward.change(key, stored)
    await ward.start()
    await ward.kill()
    await ward.change(key, stored[:-1])
    assert (await ward.scrub()).exit_code == 1, "the sealed log has an agreed end"


async def test_the_end_of_a_log_is_missed_if_its_broker_said_that_it_was_durable(ward: Ward) -> None:
    await ward.fill()
    flushes = ward.ledger.durable_flushes
    await ward.kill()
    image = await ward.image()
    (wal,) = image.wal_starts
    store = ward.open()
    await store.put(lease_key(wal.broker), encode_lease(Lease(wal.epoch, 99, image.version, flushes=flushes)))
    assert (await ward.scrub()).exit_code == 0
    prefix = f"wal/{wal.broker}/{wal.epoch}/"
    newest = max([info.key async for info in store.list(prefix) if info.key.removeprefix(prefix).isdecimal()])
    stored = await ward.get(newest)
    await store.delete(newest)
    report = await ward.scrub()
    (found,) = report.damaged
    assert (found.what, found.key) == ("flush", prefix) and "live/1 says" in found.reason
    assert found.reason.startswith("flushes " if ward.on_directory else f"flush {flushes - 1}:"), found
    await store.put(newest, stored)
    assert (await ward.scrub()).exit_code == 0
    await store.close()


@pytest.mark.parametrize("ward", ["directory"], indirect=True)
@pytest.mark.parametrize("sealed", [False, True])
async def test_what_a_power_cut_took_is_torn_and_not_hurt(ward: Ward, sealed: bool) -> None:
    """A flush and a batch of another are zeros, in a log of another boot that nobody synced."""
    await ward.start()
    await ward.create("t")
    await ward.write("t", 0, [b"0"], [b"1" * 4000], [b"2"], [b"3" * 4000], [b"4"])
    await ward.kill()
    (wal,) = (await ward.image()).topics["t"].partitions[0].wals
    key = f"wal/{wal.broker}/{wal.epoch}/{0:020d}"
    stored = bytearray(await ward.get(key))
    at = [n for n in range(len(stored)) if stored[n : n + 4] == b"PWF1"]
    stored[at[1] : at[2]] = bytes(at[2] - at[1])
    hole = -(-(at[3] + 200) // 512) * 512
    stored[hole : hole + 512] = bytes(512)
    await ward.change(key, bytes(stored))
    same_boot = await ward.scrub()
    assert same_boot.damaged and not same_boot.torn, "a process that was killed leaves no holes"
    header = decode_file_header(stored[:FILE_HEADER_SIZE])
    stored[:FILE_HEADER_SIZE] = encode_file_header(header._replace(boot=b"another boot....", flags=0))
    await ward.change(key, bytes(stored))
    if sealed:
        await ward.start()
        await ward.kill()
    report = await ward.scrub()
    assert report.damaged == [] and report.exit_code == 0
    told = {(one.start, one.end) for one in report.torn if one.topic == "t"}
    assert told == {(1, 2), (3, 4)}
    assert all("torn, as a power cut leaves it with durability=os" in one.sentence for one in report.torn)
    # What is hurt in another way is hurt there, too.
    await ward.flip(key, at[2] + 120)
    hurt = await ward.scrub()
    assert [(one.start, one.end) for one in hurt.damaged] == [(2, 3)] and len(hurt.torn) == len(report.torn)


class Refusing:
    """A store that refuses to give some objects, for a while or for ever."""

    def __init__(self, store: DatedStore, refused: str) -> None:
        self._store = store
        self._refused = refused

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get_range(self, key: str, start: int, length: int) -> bytes | bytearray:
        if key.startswith(self._refused):
            raise StoreUnavailableError("403")
        return await self._store.get_range(key, start, length)


@pytest.mark.parametrize("ward", ["memory"], indirect=True)
@pytest.mark.parametrize("refused", ["segments/", "manifests/", "wal/"])
async def test_what_is_refused_is_not_damaged(ward: Ward, refused: str) -> None:
    await ward.fill()
    await ward.kill()
    report = await Scrub(cast("DatedStore", Refusing(ward.open(), refused))).run()
    assert report.damaged == [] and report.exit_code == 2
    assert all(one.key.startswith(refused) and "403" in one.reason for one in report.unread)
