"""The scrub of a store: what it finds, what it names, and that it finds nothing where nothing is hurt."""

import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from penstock.log.extents import Extents
from penstock.log.manifest import Manifest, decode_manifest

from .ward import Ward


@pytest.fixture(params=["directory", "memory"])
async def ward(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ward]:
    made = Ward(request.param, tmp_path)
    yield made
    await made.kill()


async def fill(ward: Ward) -> None:
    """Two topics, some of their records settled and some not."""
    await ward.start()
    await ward.create("orders", 2)
    await ward.create("other")
    for index in (0, 1):
        await ward.write("orders", index, *([b"%d-%d" % (index, n) * 20, b"x"] for n in range(6)))
    await ward.write("other", 0, [b"a" * 100] * 5)
    assert await ward.ledger.settle()
    await ward.write("orders", 0, *([b"late-%d" % n * 20] for n in range(5)))
    await ward.write("other", 0, [b"b" * 50] * 3, [b"c"])


async def test_nothing_is_found_where_nothing_is_hurt(ward: Ward) -> None:
    await fill(ward)
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


async def manifest_of(ward: Ward, topic: str, index: int) -> Manifest:
    image = await ward.image()
    ref = image.topics[topic].partitions[index].manifest
    assert ref is not None
    return decode_manifest((await ward.get(ref.key))[ref.start : ref.start + ref.length])


async def test_a_batch_in_a_segment(ward: Ward) -> None:
    await fill(ward)
    (segment,) = (await manifest_of(ward, "orders", 1)).segments
    extents = Extents.decode(
        (await ward.get(segment.index_key))[segment.index_start : segment.index_start + segment.index_length]
    )
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
            for segment in (await manifest_of(ward, topic.name, index)).segments:
                found.append((segment.index_key, segment.index_start, segment.index_length))
                stored = await ward.get(segment.index_key)
                extents = Extents.decode(
                    stored[segment.index_start : segment.index_start + segment.index_length]
                )
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
    await fill(ward)
    await ward.kill()
    if sealed:
        await ward.start()
        await ward.kill()
    ranges = list(await needed_bytes(ward))
    numbers = random.Random(7)
    last = max((key for key in await ward.keys("wal/") if key[-1].isdecimal()), default="")
    for _ in range(150):
        key, start, length = ranges[numbers.randrange(len(ranges))]
        if not length:
            continue
        at, bit = start + numbers.randrange(length), numbers.randrange(8)
        await ward.flip(key, at, bit)
        report = await ward.scrub()
        assert report.exit_code, (key, at, bit, last)
        await ward.flip(key, at, bit)
    assert (await ward.scrub()).exit_code == 0
