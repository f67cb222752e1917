"""Settling: records move from the write-ahead log into segments, and nobody notices."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from penstock.log.policy import LogPolicy
from penstock.metadata.commands import AssignLeaders, LeaderMove, SettlePartitions
from penstock.storage.ledger.ledger import Ledger
from penstock.storage.partitions.partition import Partition
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.wal.directory import DirectoryWalStore
from penstock.storage.wal.port import SEAL_BYTES_MAX
from penstock.wire.errors import ErrorCode
from penstock.wire.markers import ABORT, marker_batch
from tests.storage.world import (
    QUIET,
    World,
    append,
    append_ok,
    batch,
    keys_of,
    own_partition,
    read,
    read_all,
)

NO_DELAY = LogPolicy(file_delete_delay_ms=0)
PROMPT = msgspec.structs.replace(QUIET, delete_delay_ms=0)


def forget_tails(ledger: Ledger) -> None:
    """Empty the tail cache, so that reads go to storage."""
    cache = ledger._cache
    while cache._order:
        cache._evict()


async def fill(ledger: Ledger, partition: Partition, count: int, size: int = 100) -> list[bytes]:
    values = []
    for number in range(count):
        value = (b"%06d " % (partition.next_offset + number)) * (size // 7 + 1)
        values.append(value)
        await append_ok(ledger, partition, batch(value))
    return values


async def collect(ledger: Ledger) -> None:
    await ledger._garbage.collect(ledger._holdings.image)


async def test_settled_records_are_read_from_segments(world: World) -> None:
    ledger = await world.start()
    topic = await world.create_topic("t", 3)
    partitions = [own_partition(ledger, topic, at) for at in range(3)]
    for _ in range(3):
        for partition in partitions[:2]:
            await fill(ledger, partition, 4)
        assert await ledger.settle()
        forget_tails(ledger)
    await fill(ledger, partitions[0], 2)
    for partition, count in zip(partitions, (14, 12, 0), strict=True):
        assert partition.size_bytes == sum(len(b) for b in await raw(ledger, partition))
        assert [offset for offset, _ in await read_all(ledger, partition)] == list(range(count))
    assert partitions[0].manifest is not None
    assert [s.end_offset for s in partitions[0].manifest.segments] == [4, 8, 12]
    assert partitions[2].manifest is None
    assert len(await keys_of(world.store, "manifests/")) == 3


async def raw(ledger: Ledger, partition: Partition) -> list[bytes]:
    offset, parts = partition.log_start_offset, []
    while offset < partition.high_watermark:
        part = await read(ledger, partition, offset)
        parts += [bytes(b) for b in part.buffers]
        offset = part.next_offset
    return parts


async def test_a_restart_after_settling_knows_everything(world: World) -> None:
    ledger = await world.start()
    topic = await world.create_topic("t")
    partition = own_partition(ledger, topic)
    numbered = [batch(b"%d" % n, producer_id=5, producer_epoch=1, base_sequence=n) for n in range(6)]
    again = [bytearray(one) for one in numbered]
    await append_ok(ledger, partition, *numbered)
    txn = batch(b"t", producer_id=6, producer_epoch=0, base_sequence=0, transactional=True)
    await append_ok(ledger, partition, txn, marker_batch(ABORT, 6, 0, 1, 5))
    open_txn = batch(b"o", producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    await append_ok(ledger, partition, open_txn)
    await ledger.settle()
    await append_ok(ledger, partition, batch(b"unsettled"))
    before = (partition.high_watermark, partition.last_stable_offset, partition.producers())
    aborted = partition.aborted_transactions(0, 100)
    await world.kill(ledger)
    ledger = await world.start()
    partition = own_partition(ledger, topic)
    assert (partition.high_watermark, partition.last_stable_offset, partition.producers()) == before
    assert partition.aborted_transactions(0, 100) == aborted and len(aborted) == 1
    duplicate, too_old = await append(ledger, partition, again[5], again[0])
    assert getattr(duplicate, "base_offset", None) == 5
    assert too_old is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    values = [value for _, value in await read_all(ledger, partition)]
    assert values[:6] == [b"%d" % n for n in range(6)] and values[-1] == b"unsettled"


async def test_logs_of_earlier_incarnations_are_settled_and_deleted(world: World) -> None:
    topic = b""
    for round_number in range(3):
        ledger = await world.start(settings=PROMPT)
        topic = topic or await world.create_topic("t")
        world.policies["t"] = NO_DELAY
        await fill(ledger, own_partition(ledger, topic), 5)
        if round_number < 2:
            await world.kill(ledger)
    info = world.metadata.image.partition(topic, 0)
    assert info is not None and len(info.wals) == 3
    await ledger.settle()
    info = world.metadata.image.partition(topic, 0)
    assert info is not None and info.wals == (ledger.wal,)
    assert not world.metadata.image.sealed
    await collect(ledger)
    left = [info async for info in world.store.list("wal/") if info.size > SEAL_BYTES_MAX]
    assert {info.key.rsplit("/", 1)[0] for info in left} == {f"wal/1/{ledger.wal.epoch}"}
    assert len(await read_all(ledger, own_partition(ledger, topic))) == 15


async def test_the_own_log_is_cut_where_everything_is_settled(world: World) -> None:
    ledger = await world.start(settings=PROMPT)
    topic = await world.create_topic("t")
    partition = own_partition(ledger, topic)
    for _ in range(5):
        await fill(ledger, partition, 3)
        await ledger.settle()
        await collect(ledger)
    files = [key for key in await keys_of(world.store, f"wal/1/{ledger.wal.epoch}/") if key[-1].isdecimal()]
    assert len(files) <= 2
    await fill(ledger, partition, 3)
    await world.kill(ledger)
    ledger = await world.start()
    assert len(await read_all(ledger, own_partition(ledger, topic))) == 18


async def test_appends_go_on_while_settling(world: World) -> None:
    ledger = await world.start()
    topic = await world.create_topic("t")
    partition = own_partition(ledger, topic)
    settling: asyncio.Task[bool] | None = None
    for number in range(200):
        ledger.append(partition, batch(b"%d" % number), lambda answer: None)
        if settling is None or settling.done():
            settling = asyncio.ensure_future(ledger.settle())
        await asyncio.sleep(0)
    assert settling is not None
    await settling
    await append_ok(ledger, partition, batch(b"200"))
    forget_tails(ledger)
    expected = [(number, b"%d" % number) for number in range(201)]
    assert await read_all(ledger, partition) == expected
    await world.kill(ledger)
    ledger = await world.start()
    assert await read_all(ledger, own_partition(ledger, topic)) == expected


async def test_a_large_file_of_few_partitions_becomes_a_segment_without_a_copy(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    world = World(store, DirectoryWalStore(store, file_bytes=2 * 1024 * 1024))
    world.policies["t"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    topic = await world.create_topic("t", 2)
    partitions = [own_partition(ledger, topic, at) for at in range(2)]
    for number in range(60):
        value = bytes([number]) * 100_000
        await append_ok(ledger, partitions[number % 2], batch(value))
    inodes = {path.stat().st_ino for path in (tmp_path / f"wal/1/{ledger.wal.epoch}").glob("0*")}
    await ledger.settle()
    assert ledger.counters()["files_adopted"] >= 2
    await fill(ledger, partitions[0], 1)
    await collect(ledger)
    segments = {path.stat().st_ino for path in (tmp_path / "segments").rglob("0*")}
    assert len(segments & inodes) == ledger.counters()["files_adopted"]
    assert len(list((tmp_path / f"wal/1/{ledger.wal.epoch}").glob("0*"))) == 1
    forget_tails(ledger)
    for at, partition in enumerate(partitions):
        values = [value[:1] for _, value in await read_all(ledger, partition)][:30]
        assert values == [bytes([number]) for number in range(at, 60, 2)]
    await world.kill(ledger)
    ledger = await world.start()
    assert len(await read_all(ledger, own_partition(ledger, topic, 1))) == 30
    await world.delete_topic(topic)
    await collect(ledger)
    assert await keys_of(store, "segments/") == []
    await world.close()


async def test_small_segments_are_merged(world: World) -> None:
    world.policies["t"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    topic = await world.create_topic("t", 2)
    partitions = [own_partition(ledger, topic, at) for at in range(2)]
    for _ in range(20):
        for partition in partitions:
            await fill(ledger, partition, 2)
        await ledger.settle()
        while await ledger._settler.merge():
            pass
    forget_tails(ledger)
    for partition in partitions:
        assert partition.manifest is not None
        assert len(partition.manifest.segments) < 10
        assert [offset for offset, _ in await read_all(ledger, partition)] == list(range(40))
    assert ledger.counters()["merges"] >= 2
    await collect(ledger)
    referred = {
        key
        for partition in partitions
        for segment in partition.manifest.segments  # type: ignore[union-attr]
        for key in (segment.key, segment.index_key)
    }
    assert set(await keys_of(world.store, "segments/")) == referred
    manifests = {partition.manifest_ref.key for partition in partitions if partition.manifest_ref is not None}
    assert set(await keys_of(world.store, "manifests/")) == manifests
    await world.kill(ledger)
    ledger = await world.start()
    assert len(await read_all(ledger, own_partition(ledger, topic, 1))) == 40


async def test_segments_respect_the_topics_limits(world: World) -> None:
    ledger = await world.start()
    world.policies["t"] = LogPolicy(segment_bytes=1000)
    world.policies["u"] = LogPolicy(segment_ms=10_000)
    t, u = await world.create_topic("t"), await world.create_topic("u")
    await fill(ledger, own_partition(ledger, t), 20, 300)
    for second in range(40):
        await append_ok(ledger, own_partition(ledger, u), batch(b"x", timestamp=second * 1000))
    await ledger.settle()
    by_size, by_time = own_partition(ledger, t).manifest, own_partition(ledger, u).manifest
    assert by_size is not None and by_time is not None
    assert len(by_size.segments) >= 8 and all(s.size_bytes <= 1000 for s in by_size.segments)
    assert len(by_time.segments) == 4
    assert all(s.max_timestamp - s.min_timestamp <= 10_000 for s in by_time.segments)
    assert len(await read_all(ledger, own_partition(ledger, t))) == 20


async def test_a_refused_settling_changes_nothing_and_leaves_nothing(world: World) -> None:
    world.policies["t"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    topic = await world.create_topic("t")
    partition = own_partition(ledger, topic)
    await fill(ledger, partition, 3)
    world.forget(ledger)
    other = await world.start()
    assert not await ledger.settle()
    assert partition.manifest is None
    await collect(ledger)
    assert await keys_of(world.store, "segments/") == await keys_of(world.store, "manifests/") == []
    assert len(await read_all(other, own_partition(other, topic))) == 3


async def test_a_settling_whose_answer_was_lost_is_recognised(world: World) -> None:
    world.policies["t"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    partition = own_partition(ledger, await world.create_topic("t"))
    await fill(ledger, partition, 3)
    metadata = world.metadata
    real = metadata.propose

    async def committed_but_unheard(decide):  # type: ignore[no-untyped-def]
        world.forget(ledger)
        await real(decide)
        raise TimeoutError("no answer")

    ledger._committer._propose = committed_but_unheard
    with pytest.raises(TimeoutError):
        await ledger.settle()
    assert partition.manifest is None
    ledger._committer._propose = real
    metadata.subscribers.append(ledger.follow)
    ledger.follow(ledger._holdings.image, metadata.image)
    assert partition.manifest is not None and partition.settled_end == 3
    await fill(ledger, partition, 1)
    assert await ledger.settle()
    await collect(ledger)
    assert [offset for offset, _ in await read_all(ledger, partition)] == [0, 1, 2, 3]


async def test_the_background_settles_by_itself(world: World) -> None:
    bounds = msgspec.structs.replace(QUIET, settle_bytes=2000)
    ledger = await world.start(settings=bounds)
    partition = own_partition(ledger, await world.create_topic("t"))
    settled = asyncio.Event()
    world.metadata.subscribers.append(
        lambda old, new: settled.set() if isinstance(world.metadata.commands[-1], SettlePartitions) else None
    )
    await fill(ledger, partition, 30)
    await asyncio.wait_for(settled.wait(), 60)
    assert partition.settled_end > 0


async def test_objects_of_a_killed_broker_are_swept(world: World) -> None:
    world.policies["t"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    topic = await world.create_topic("t")
    await fill(ledger, own_partition(ledger, topic), 3)
    world.metadata.fail = TimeoutError("killed before the commit")
    with pytest.raises(TimeoutError):
        await ledger.settle()
    world.metadata.fail = None
    await world.kill(ledger)
    ledger = await world.start(settings=PROMPT)
    await ledger.settle()
    before = await keys_of(world.store, "segments/")
    await ledger._garbage.sweep(ledger._holdings.image, 0)
    await collect(ledger)
    after = await keys_of(world.store, "segments/")
    assert len(before) == 2 and after == [key for key in before if f"/{ledger.wal.epoch}/" in key]
    assert len(await keys_of(world.store, "manifests/")) == 1
    assert len(await read_all(ledger, own_partition(ledger, topic))) == 3


async def test_a_shared_object_outlives_the_partition_of_another_broker(world: World) -> None:
    world.policies["t"] = world.policies["u"] = NO_DELAY
    first = await world.start(1, PROMPT)
    second = await world.start(2, PROMPT)
    t, u = await world.create_topic("t"), await world.create_topic("u")
    for topic in (t, u):
        await fill(first, own_partition(first, topic), 3)
    await first.settle()
    old = own_partition(first, u)
    refs = await first.surrender([(u, 0)])
    move = LeaderMove(u, 0, old.leader_epoch, 2, settled=True, manifest=refs[u, 0].manifest)
    await world.metadata.change(AssignLeaders(1, first.wal.epoch, (move,)))
    await second.update(world.metadata.image)
    await world.delete_topic(t)
    await collect(first)
    # The object still holds records of u, which broker 2 leads now.
    assert len(await read_all(second, own_partition(second, u))) == 3
    await world.delete_topic(u)
    await collect(second)
    assert await keys_of(world.store, "segments/") == []


async def bytes_left(world: World, ledger: Ledger) -> int:
    prefix = f"wal/{ledger.wal.broker}/{ledger.wal.epoch}/"
    return sum([info.size async for info in world.store.list(prefix)])


async def test_the_log_of_a_dead_broker_goes_with_the_last_topic_in_it(world: World) -> None:
    """Nobody settled it: the topic was deleted. The controller sees it go."""
    keeper = await world.start(1, PROMPT)
    dead = await world.start(2, PROMPT)
    topic = await world.create_topic("t", brokers=(2,))
    await fill(dead, own_partition(dead, topic), 3)
    await world.kill(dead)
    await world.fence(2)
    await collect(keeper)
    assert await bytes_left(world, dead) > 300, "it is needed"
    await world.delete_topic(topic)
    await collect(keeper)
    assert await bytes_left(world, dead) <= SEAL_BYTES_MAX


async def test_the_log_of_a_broker_that_led_nothing_goes_with_it(world: World) -> None:
    keeper = await world.start(1, PROMPT)
    idle = await world.start(2, PROMPT)
    await world.kill(idle)
    await world.fence(2)
    await collect(keeper)
    assert await bytes_left(world, idle) <= SEAL_BYTES_MAX


async def test_a_broker_that_is_gone_is_swept_whatever_it_left(world: World) -> None:
    """Its log alone names it: it has no segments, and nobody saw it go."""
    idle = await world.start(2, PROMPT)
    topic = await world.create_topic("t", brokers=(2,))
    await fill(idle, own_partition(idle, topic), 1)
    await world.kill(idle)
    await world.delete_topic(topic)
    await world.fence(2)
    keeper = await world.start(1, PROMPT)
    assert await bytes_left(world, idle) > SEAL_BYTES_MAX
    await keeper._garbage.sweep(keeper._holdings.image, 0)
    await collect(keeper)
    assert await bytes_left(world, idle) <= SEAL_BYTES_MAX
