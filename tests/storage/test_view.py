"""What a reader sees of a partition in the store, beside what the broker that leads it sees."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.arrow.asked import Selection
from penstock.arrow.planning import choose
from penstock.log.extents import Extents
from penstock.log.manifest import SegmentRef
from penstock.metadata.commands import FenceBroker
from penstock.metadata.image import ClusterImage
from penstock.storage.ledger.ledger import Ledger
from penstock.storage.partitions.partition import Partition
from penstock.storage.reader import view as view_module
from penstock.storage.reader.view import EndUnknownError, LogView, PartitionView
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import ObjectMissingError, ObjectStore
from penstock.testing.waiting import eventually
from penstock.wire.batch import Record, build_batch, iter_batches
from tests.storage.world import World, append_ok, batch, keys_of, own_partition

TIME = 1_700_000_000_000


class Images:
    """The images of a world whose metadata log is in memory."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.image = ClusterImage()
        self.looks = 0
        self.frozen: ClusterImage | None = None
        """An old image, to be seen once: something else reads the log meanwhile."""

    async def refresh(self) -> ClusterImage:
        self.looks += 1
        frozen, self.frozen = self.frozen, None
        self.image = frozen or self._world.metadata.image
        return self.image


@pytest.fixture(params=["os", "fsync", "memory"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    store: ObjectStore = MemoryStore()
    if request.param != "memory":
        store = DirectoryStore(str(tmp_path / "store"), sync=request.param == "fsync")
    made = World(store)
    yield made
    await made.close()


def look(world: World, *names: str) -> tuple[LogView, Images]:
    images = Images(world)
    selection = Selection(names=names)
    return LogView(world.store, images, lambda image: choose(selection, image)), images


async def contents(store: ObjectStore, view: PartitionView) -> list[tuple[int, int]]:
    """Base and last offset of each batch, found by following segments and tail as a task does."""
    found = []
    places: list[tuple[str, int, int]] = []
    for segment in view.segments:
        assert isinstance(segment, SegmentRef)
        index = await store.get_range(segment.index_key, segment.index_start, segment.index_length)
        extents = Extents.decode(index)
        places += (
            (segment.key, extent.position, extent.length)
            for extent in map(extents.__getitem__, range(len(extents)))
        )
    places += ((piece.key, piece.position, piece.length) for piece in view.tail(0, view.end))
    for key, position, length in places:
        stored = await store.get_range(key, position, length)
        found += [(header.base_offset, header.last_offset) for _at, header in iter_batches(stored)]
    return found


async def check(world: World, log_view: LogView, partition: Partition) -> PartitionView:
    """The view agrees with the leader: ends, and every batch from the log's start without a gap."""
    views = await log_view.refresh()
    view = views[partition.topic_id, partition.index]
    assert view.end == partition.high_watermark
    assert view.stable_end == partition.last_stable_offset
    assert view.log_start == partition.log_start_offset
    next_offset = None
    for base, last in await contents(world.store, view):
        assert next_offset in (None, base)
        next_offset = last + 1
    assert next_offset in (None, view.end)
    return view


async def start(world: World, partitions: int = 1) -> tuple[Ledger, Partition]:
    ledger = await world.start()
    topic_id = await world.create_topic("events", partitions)
    return ledger, own_partition(ledger, topic_id)


async def test_a_live_log_is_followed_flush_by_flush(world: World) -> None:
    ledger, partition = await start(world)
    log_view, _images = look(world, "events")
    await check(world, log_view, partition)
    for count in range(1, 20):
        await append_ok(ledger, partition, *(batch(b"%d" % at) for at in range(count)))
        view = await check(world, log_view, partition)
        assert view.end == count * (count + 1) // 2


async def test_settling_merging_and_deleting_change_nothing_for_a_reader(world: World) -> None:
    ledger, partition = await start(world, 3)
    others = [own_partition(ledger, partition.topic_id, index) for index in (1, 2)]
    log_view, _images = look(world, "events")
    for round_number in range(12):
        for one in (partition, *others):
            await append_ok(ledger, one, batch(b"a" * 100, b"b"), batch(b"c"))
        if round_number % 3 == 1:
            await ledger.settle()
        if round_number % 4 == 3:
            await ledger._settler.merge()
            world.clock.advance(120_000)
            await ledger._garbage.collect(world.metadata.image)
        for one in (partition, *others):
            await check(world, log_view, one)
    fresh, _images = look(world, "events")
    for one in (partition, *others):
        await check(world, fresh, one)


async def test_the_logs_of_earlier_incarnations_are_read_up_to_their_seals(world: World) -> None:
    ledger, partition = await start(world)
    log_view, _images = look(world, "events")
    for _ in range(3):
        await append_ok(ledger, partition, batch(b"x"), batch(b"y"))
        await check(world, log_view, partition)
        await world.kill(ledger)
        ledger = await world.start()
        partition = own_partition(ledger, partition.topic_id)
        await check(world, log_view, partition)
    fresh, _images = look(world, "events")
    assert (await check(world, fresh, partition)).end == 6


async def test_all_brokers_dead(world: World) -> None:
    ledger, partition = await start(world)
    await append_ok(ledger, partition, batch(b"x"), batch(b"y", b"z"))
    await ledger.settle()
    await append_ok(ledger, partition, batch(b"1"))
    await world.kill(ledger)
    log_view, _images = look(world, "events")
    views = await log_view.refresh()
    assert views[partition.topic_id, 0].end == 4


async def test_an_old_image_is_read_again(world: World) -> None:
    """The log was settled and deleted between the look at the image and the look at the log."""
    ledger, partition = await start(world)
    await append_ok(ledger, partition, batch(b"x"), batch(b"y"))
    log_view, images = look(world, "events")
    old = world.metadata.image
    await ledger.settle()
    for key in await keys_of(world.store, "wal/"):
        if not key.endswith("open"):
            await world.store.delete(key)
    await append_ok(ledger, partition, batch(b"z"))
    images.frozen = old
    view = (await log_view.refresh())[partition.topic_id, 0]
    assert view.end == 3


async def test_what_a_fenced_broker_appends_is_not_read(tmp_path: Path) -> None:
    """On a directory a zombie can append after the seal; its flushes are whole, and yet do not count."""
    world = World(DirectoryStore(str(tmp_path / "store")))
    ledger, partition = await start(world)
    await append_ok(ledger, partition, batch(b"x"))
    log_view, images = look(world, "events")
    await check(world, log_view, partition)
    # Sealed and counted, but the count is not in the metadata log yet.
    info = world.metadata.image.brokers[1]
    count = await world.wal_store.seal(info.wal)
    zombie = ledger
    world.forget(zombie)
    world.ledgers.remove(zombie)
    zombie.append(partition, batch(b"never acknowledged"), lambda _answer: None)
    await asyncio.sleep(0)
    assert count == 1
    refreshing = asyncio.create_task(log_view.refresh())
    looks = images.looks
    await eventually(lambda: images.looks > looks + 2, "more looks")
    assert not refreshing.done()  # It cannot know yet.
    await world.metadata.change(FenceBroker(1, info.epoch, count))
    view = (await refreshing)[partition.topic_id, 0]
    assert view.end == 1
    ledger = await world.start()
    assert images.image.sealed[info.wal] == 1
    await append_ok(ledger, own_partition(ledger, partition.topic_id), batch(b"y"))
    assert (await check(world, log_view, own_partition(ledger, partition.topic_id))).end == 2
    await world.close()


async def test_a_sealed_log_that_nobody_takes_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "ATTEMPTS_MAX", 3)
    world = World(DirectoryStore(str(tmp_path / "store")))
    ledger, partition = await start(world)
    await append_ok(ledger, partition, batch(b"x"))
    await world.wal_store.seal(world.metadata.image.brokers[1].wal)
    log_view, _images = look(world, "events")
    with pytest.raises(EndUnknownError, match="does not say yet where it ends"):
        await log_view.refresh()
    await world.kill(ledger)
    await world.close()


async def test_records_that_are_really_missing(world: World) -> None:
    ledger, partition = await start(world)
    await append_ok(ledger, partition, batch(b"x"))
    await append_ok(ledger, partition, batch(b"y"))
    await world.kill(ledger)
    ledger = await world.start()
    await append_ok(ledger, own_partition(ledger, partition.topic_id), batch(b"z"))
    for key in await keys_of(world.store, "wal/1/1/"):
        if key.rpartition("/")[2].isdecimal():
            await world.store.delete(key)
    log_view, _images = look(world, "events")
    with pytest.raises(ObjectMissingError, match="is not there"):
        await log_view.refresh()


async def test_transactions(world: World) -> None:
    """The last stable offset and the aborted ranges, from batch headers and markers alone."""
    ledger, partition = await start(world)
    log_view, _images = look(world, "events")

    def data(producer: int, sequence: int) -> bytearray:
        return build_batch(
            [Record(0, TIME, b"k", b"v")],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )

    def marker(producer: int, kind: int) -> bytearray:
        key = b"\0\0" + kind.to_bytes(2, "big")
        return build_batch(
            [Record(0, TIME, key, b"\0\0\0\0\0\0")],
            producer_id=producer,
            producer_epoch=0,
            transactional=True,
            control=True,
        )

    async def both(*batches: bytearray) -> PartitionView:
        await append_ok(ledger, partition, *batches)
        view = await check(world, log_view, partition)
        fresh, _images = look(world, "events")
        again = await check(world, fresh, partition)
        assert again.aborted(0, again.end) == view.aborted(0, view.end) == list(partition.aborted)
        return view

    view = await both(data(5, 0), data(6, 0))
    assert (view.end, view.stable_end) == (2, 0)
    view = await both(marker(5, 0))
    assert view.stable_end == 1
    await ledger.settle()
    view = await both(data(5, 1))
    view = await both(marker(6, 1))
    assert view.stable_end == 3
    view = await both(marker(5, 0))
    assert view.stable_end == view.end == 6
    assert [(t.producer_id, t.first_offset, t.last_offset) for t in view.aborted(0, 6)] == [
        (5, 0, 2),
        (5, 3, 5),
    ]


async def test_partitions_and_topics_that_come_later(world: World) -> None:
    ledger, partition = await start(world)
    images = Images(world)
    selection = Selection(pattern="eve.*|other")
    log_view = LogView(world.store, images, lambda image: choose(selection, image))
    await append_ok(ledger, partition, batch(b"x"))
    assert len(await log_view.refresh()) == 1
    other_id = await world.create_topic("other", 2)
    other = own_partition(ledger, other_id, 1)
    await append_ok(ledger, other, batch(b"y"))
    assert len(await log_view.refresh()) == 3
    await check(world, log_view, other)
    await check(world, log_view, partition)
    await world.delete_topic(other_id)
    assert len(await log_view.refresh()) == 1


async def test_a_reader_that_follows_for_long_keeps_little(world: World) -> None:
    ledger, partition = await start(world)
    log_view, _images = look(world, "events")
    for _ in range(30):
        await append_ok(ledger, partition, batch(b"x"), batch(b"y"))
        await ledger.settle()
        await check(world, log_view, partition)
    (log,) = log_view._logs.values()
    assert len(log.flushes) <= 2
    assert len(log.contents) <= 2


async def test_a_gap_below_the_log_start_is_no_reason_to_look_again(world: World) -> None:
    ledger, partition = await start(world)
    await append_ok(ledger, partition, batch(b"x"))
    partition.pass_over(10)
    await append_ok(ledger, partition, batch(b"y"))
    await ledger.delete_records(partition, 10)
    log_view, images = look(world, "events")
    view = (await log_view.refresh())[partition.topic_id, 0]
    assert (view.log_start, view.end, view.hurt) == (10, 11, ())
    assert images.looks == 2, "one before and one after the logs were read"


async def test_a_view_ends_where_the_new_leader_begins_after_damage(world: World) -> None:
    """Of the last flush of a sealed log nothing is known: the leader goes on far beyond it, and says so."""
    ledger, partition = await start(world)
    await append_ok(ledger, partition, batch(b"x"))
    await append_ok(ledger, partition, batch(b"y" * 100))
    await world.kill(ledger)
    keys = [key for key in await keys_of(world.store, "wal/1/") if key.rpartition("/")[2].isdecimal()]
    stored = await world.store.get(keys[-1]) or b""
    at = stored.rindex(b"PWF1")
    await world.store.put(keys[-1], stored[:at], b"x" * (len(stored) - at))
    ledger = await world.start()
    partition = own_partition(ledger, partition.topic_id)
    assert partition.high_watermark > 1 << 32
    log_view, _images = look(world, "events")
    for _ in range(3):
        for one in (log_view, look(world, "events")[0]):
            view = (await one.refresh())[partition.topic_id, 0]
            assert (view.end, view.hurt) == (partition.high_watermark, partition.hurt)
            assert view.stable_end == partition.last_stable_offset
        await append_ok(ledger, partition, batch(b"z"))
