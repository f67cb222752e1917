"""What Spark says of records that the store lost, and what it reads around them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.arrow.errors import LostRecordsError
from penstock.arrow.planning import Deal, OffsetRange, splits
from penstock.arrow.reading import ReadSettings, read_stretches
from penstock.log.isolation import Isolation
from penstock.spark.read.admission import admit_records
from penstock.storage.reader.stretches import Stretch
from penstock.storage.reader.view import PartitionView
from penstock.storage.stores.directory import DirectoryStore
from tests.storage.test_view import look, start
from tests.storage.world import World, append_ok, batch

COUNT = 6
HURT = 2
"""The record whose batch is hurt; each is a batch and a flush of its own."""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(DirectoryStore(str(tmp_path / "store")))
    yield made
    await made.close()


async def write(world: World, *, settled: bool = False) -> None:
    ledger, partition = await start(world)
    for number in range(COUNT):
        await append_ok(ledger, partition, batch(b"record %d " % number * 20))
    if settled:
        await ledger.settle()


async def planned(world: World) -> tuple[PartitionView, list[Stretch]]:
    log_view, _images = look(world, "events")
    (view,) = (await log_view.refresh()).values()
    tasks = splits([OffsetRange(view, view.log_start, view.end)], Deal(1 << 20))
    return view, [stretch for task in tasks for stretch in task]


def read(world: World, stretches: list[Stretch], *, fail: bool) -> list[int]:
    assert isinstance(world.store, DirectoryStore)
    settings = ReadSettings(world.store.root, ("offset", "value"), Isolation.READ_UNCOMMITTED, True, fail)
    return [
        offset
        for arrow in read_stretches(stretches, settings)
        for offset in arrow.column("offset").to_pylist()
    ]


async def require_lost(world: World, first: int = HURT, last: int = HURT) -> PartitionView:
    view, stretches = await planned(world)
    with pytest.raises(LostRecordsError) as lost:
        read(world, stretches, fail=True)
    assert (lost.value.first, lost.value.last) == (first, last)
    assert "'events' partition 0" in str(lost.value)
    around = [*range(first), *range(last + 1, COUNT)]
    assert sorted(read(world, stretches, fail=False)) == around
    return view


def file_of(world: World, pattern: str) -> Path:
    assert isinstance(world.store, DirectoryStore)
    return next(path for path in sorted(Path(world.store.root).glob(pattern)) if path.name.isdecimal())


async def test_a_flush_that_is_beyond_help(world: World) -> None:
    await write(world)
    path = file_of(world, "wal/*/*/*")
    stored = bytearray(path.read_bytes())
    start, end = stored.rindex(b"PWF1", 0, at := stored.index(b"record %d" % HURT)), stored.index(b"PWF1", at)
    stored[start:end] = b"x" * (end - start)
    path.write_bytes(stored)
    view = await require_lost(world)
    assert [(one.start, one.end) for one in view.hurt] == [(HURT, HURT + 1)]
    assert view.end == COUNT


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("back", [20, 70])
async def test_a_batch_with_a_flipped_bit(world: World, settled: bool, back: int) -> None:
    """In its records' bytes, or in the base offset, which no CRC covers."""
    await write(world, settled=settled)
    assert isinstance(world.store, DirectoryStore)
    pattern = "segments/*/*/*" if settled else "wal/*/*/*"
    path = next(one for one in Path(world.store.root).glob(pattern) if b"record" in one.read_bytes())
    stored = bytearray(path.read_bytes())
    first = stored.index(b"record %d " % HURT)
    stored[first + 20 if back == 20 else stored.rindex(HURT.to_bytes(8, "big"), 0, first) + 7] ^= 0x40
    path.write_bytes(stored)
    await require_lost(world)


async def test_a_segment_whose_index_is_hurt(world: World) -> None:
    await write(world, settled=True)
    view, _stretches = await planned(world)
    (segment,) = view.segments
    assert isinstance(world.store, DirectoryStore)
    path = Path(world.store.root) / segment.index_key
    stored = bytearray(path.read_bytes())
    stored[segment.index_start + 20] ^= 1
    path.write_bytes(stored)
    view, stretches = await planned(world)
    assert read(world, stretches, fail=True) == list(range(COUNT)), "one byte is mended"
    stored[segment.index_start : segment.index_start + 40] = b"x" * 40
    path.write_bytes(stored)
    await require_lost(world, 0, COUNT - 1)


async def test_a_lost_range_of_any_size_is_passed_over_at_once(world: World) -> None:
    """A stream with a limit on offsets is not held up by offsets that nobody can read."""
    ledger, partition = await start(world)
    await append_ok(ledger, partition, batch(b"before"))
    partition.pass_over(1 << 32)
    await append_ok(ledger, partition, batch(b"after"), batch(b"and"))
    log_view, _images = look(world, "events")
    (view,) = (await log_view.refresh()).values()
    assert [(one.start, one.end) for one in view.hurt] == [(1, 1 << 32)]
    (admitted,) = admit_records([OffsetRange(view, 0, view.end)], 2)
    assert admitted.high == (1 << 32) + 1
    tasks = splits([OffsetRange(view, 0, view.end)], Deal(1 << 20, max_records=1))
    assert sum(map(len, tasks)) == 4
