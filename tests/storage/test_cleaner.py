"""Compaction at work: segments are replaced, readers and writers do not notice, nothing is lost."""

import asyncio
import random
from collections.abc import Sequence

import msgspec
import pytest

from penstock.log.policy import LogPolicy
from penstock.metadata.commands import AnyCommand, SettlePartitions
from penstock.metadata.image import BROKER_CONFIG, TOPIC_CONFIG, ClusterImage
from penstock.node.settings import Policies
from penstock.settings import Settings
from penstock.storage.partitions.answers import Slice
from penstock.storage.partitions.settings import CleanerSettings
from penstock.storage.settling import cleaner_pass
from penstock.storage.settling.cleaner import Throttle
from penstock.storage.stores.directory import DirectoryStore
from penstock.wire.batch import DELETE_HORIZON, iter_batches, iter_records
from penstock.wire.errors import ErrorCode
from penstock.wire.markers import ABORT, COMMIT, marker_batch
from tests.clocks import HandClock
from tests.storage.compacting import (
    COMPACT,
    DAY,
    NOW,
    PROMPT,
    Pairs,
    collect,
    compacted,
    pairs_of,
    referred,
    stored,
    updates,
    write,
)
from tests.storage.world import World, append, append_ok, keys_of, own_partition, read


async def test_the_last_value_of_each_key_is_left_at_its_offset(world: World) -> None:
    ledger, topic = await compacted(world)
    partition = own_partition(ledger, topic)
    for number in range(10):
        await write(ledger, partition, *((f"k{key}", f"{number}") for key in range(4)))
        if number % 3 == 2:
            await ledger.settle()
    await write(ledger, partition, ("k0", "settled"), ("k9", "once"))
    await ledger.settle()
    before = {r.offset: r for r in await stored(ledger, partition)}
    size = partition.size_bytes
    assert await ledger.clean() == 1
    after = await stored(ledger, partition)
    assert pairs_of(after) == [
        (37, "k1", "9"), (38, "k2", "9"), (39, "k3", "9"), (40, "k0", "settled"), (41, "k9", "once"),
    ]  # fmt: skip
    assert all(before[record.offset] == record for record in after)
    assert partition.size_bytes < size / 5
    assert (partition.log_start_offset, partition.high_watermark) == (0, 42)
    assert await ledger.clean() == 0, "nothing is dirty now"
    for offset in range(42):
        part = await read(ledger, partition, offset, 1)
        first = next(iter_batches(b"".join(part.buffers)))[1]
        assert first.base_offset == max(37, offset), "a reader inside of a gap gets what comes next"
    # What was replaced is deleted, and only that.
    await collect(ledger)
    assert set(await keys_of(world.store, "segments/")) == referred(ledger)
    assert len(await keys_of(world.store, "manifests/")) == 1


async def test_readers_at_the_end_of_the_log_see_it_compacted_too(local: World) -> None:
    ledger, topic = await compacted(local)
    partition = own_partition(ledger, topic)
    await write(ledger, partition, ("a", "1"), ("b", "1"), ("a", "2"))
    await ledger.settle()
    await write(ledger, partition, ("c", "1"))
    assert await ledger.clean() == 1

    async def offsets(start: int) -> list[int]:
        found: list[int] = []
        while start < partition.high_watermark:
            part = await read(ledger, partition, start)
            joined = b"".join(part.buffers)
            for position, _header in iter_batches(joined):
                found += (record.offset for record in iter_records(joined, position))
            start = part.next_offset
        return found

    assert await offsets(0) == [1, 2, 3], "the newest records lie in memory, but not those that are gone"
    requests = ledger._reader.requests
    assert await offsets(3) == [3] and ledger._reader.requests == requests
    await ledger.settle()
    assert await ledger.clean() == 1
    assert await offsets(0) == [1, 2, 3] and await offsets(3) == [3]
    await write(ledger, partition, ("a", "3"))
    requests = ledger._reader.requests
    assert await offsets(4) == [4] and ledger._reader.requests == requests
    while ledger._cache._order:
        ledger._cache._evict()
        assert partition.tail.start in (-1, 4)
    assert ledger._cache.bytes_used == 0
    assert await offsets(0) == [1, 2, 3, 4]


async def test_records_written_meanwhile_are_left_for_the_next_time(world: World) -> None:
    ledger, topic = await compacted(world)
    partition = own_partition(ledger, topic)
    await write(ledger, partition, ("a", "1"), ("b", "1"), ("a", "2"))
    await ledger.settle()
    await write(ledger, partition, ("a", "3"), ("b", "2"))
    assert await ledger.clean() == 1
    assert [p[0] for p in pairs_of(await stored(ledger, partition))] == [1, 2, 3, 4]
    await ledger.settle()
    assert await ledger.clean() == 1
    assert [p[0] for p in pairs_of(await stored(ledger, partition))] == [3, 4]


async def test_a_restart_finds_the_partition_compacted(world: World) -> None:
    ledger, topic = await compacted(world)
    partition = own_partition(ledger, topic)
    sequenced = [
        updates(("a", str(n)), producer_id=5, producer_epoch=1, base_sequence=n) for n in range(8)
    ]  # fmt: skip
    again = [bytearray(one) for one in sequenced]
    await append_ok(ledger, partition, *sequenced)
    await write(ledger, partition, ("a", "last"), ("b", "1"))
    await ledger.settle()
    await ledger.clean()
    await write(ledger, partition, ("c", "1"))
    expected = await stored(ledger, partition)
    assert [r.offset for r in expected] == [8, 9, 10]
    await world.kill(ledger)
    ledger = await world.start(settings=PROMPT)
    partition = own_partition(ledger, topic)
    assert await stored(ledger, partition) == expected
    assert partition.manifest is not None and partition.manifest.compacted_end == 10
    duplicate, refused = await append(ledger, partition, again[7], again[0])
    assert getattr(duplicate, "base_offset", None) == 7, "sequences outlive their records"
    assert refused is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    await write(ledger, partition, ("b", "2"))
    await ledger.settle()
    assert await ledger.clean() == 1
    assert [p[0] for p in pairs_of(await stored(ledger, partition))] == [8, 10, 11]


async def test_times_and_offsets_are_found_in_a_log_with_gaps(local: World) -> None:
    ledger, topic = await compacted(local)
    partition = own_partition(ledger, topic)
    for number in range(20):
        batch = updates((f"k{number % 3}", "x"), ("same", "y"), time=NOW + 1000 * number)
        await append_ok(ledger, partition, batch)
    late = updates(("late", "z"), time=NOW + 10**6, producer_id=9, producer_epoch=0, base_sequence=0)
    await append_ok(ledger, partition, late)
    await write(ledger, partition, ("late", "again"), time=NOW + 30_000)
    await ledger.settle()
    await ledger.clean()
    left = await stored(ledger, partition)
    assert [r.offset for r in left] == [34, 36, 38, 39, 41]
    for wanted in (NOW, NOW + 17_000, NOW + 17_001, NOW + 19_001, NOW + 30_000):
        found = await ledger.offset_for_timestamp(partition, wanted, limit_offset=partition.high_watermark)
        expected = next(r for r in left if r.timestamp >= wanted)
        assert found is not None and (found.offset, found.timestamp) == (expected.offset, expected.timestamp)
    assert await ledger.offset_for_timestamp(partition, NOW + 30_001, limit_offset=42) is None
    newest = await ledger.max_timestamp(partition)
    assert newest is not None and newest.offset == 41, "the empty batch of producer 9 has no time"


async def test_tombstones_go_after_delete_retention_ms(local: World) -> None:
    ledger, topic = await compacted(local, msgspec.structs.replace(COMPACT, delete_retention_ms=1000))
    partition = own_partition(ledger, topic)
    await write(ledger, partition, ("a", "1"), ("b", "1"), ("a", None), ("z", "0"))

    async def settle_and_clean() -> Pairs:
        await ledger.settle()
        assert await ledger.clean() == 1
        return pairs_of(await stored(ledger, partition))

    assert await settle_and_clean() == [(1, "b", "1"), (2, "a", None), (3, "z", "0")]
    local.clock.advance(999)
    await write(ledger, partition, ("z", "1"))
    assert await settle_and_clean() == [(1, "b", "1"), (2, "a", None), (4, "z", "1")]
    local.clock.advance(1)
    await write(ledger, partition, ("z", "2"))
    assert await settle_and_clean() == [(1, "b", "1"), (5, "z", "2")]


async def test_a_read_that_compaction_overtakes_knows_what_was_aborted_of_its_records(local: World) -> None:
    policy = msgspec.structs.replace(COMPACT, delete_retention_ms=0, file_delete_delay_ms=DAY)
    ledger, topic = await compacted(local, policy)
    partition = own_partition(ledger, topic)

    def within(sequence: int, *pairs: tuple[str, str | None]) -> bytearray:
        return updates(*pairs, producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True)

    await append_ok(ledger, partition, within(0, ("a", "aborted")), marker_batch(ABORT, 7, 0, 1, NOW))
    await append_ok(ledger, partition, within(1, ("b", "1")), marker_batch(COMMIT, 7, 0, 1, NOW))
    await ledger.settle()
    while ledger._cache._order:
        ledger._cache._evict()
    assert isinstance(local.store, DirectoryStore)
    local.store._read_cached = lambda fd, start, buffer: None  # type: ignore[method-assign]
    planned = ledger.read(partition, 0, 1 << 20, limit_offset=4)
    assert not isinstance(planned, Slice)
    for number in range(3):
        await write(ledger, partition, ("z", str(number)))
        await ledger.settle()
        local.clock.advance(1)
        await ledger.clean()
    assert partition.aborted == []
    found = await planned
    assert pairs_of(list(iter_records(b"".join(found.buffers), 0))) == [(0, "a", "aborted")]
    assert found.aborted is not None
    assert [(one.producer_id, one.first_offset, one.last_offset) for one in found.aborted] == [(7, 0, 1)]
    assert (await read(ledger, partition, 0)).aborted == []


async def test_open_transactions_are_waited_for_and_aborted_ones_go(local: World) -> None:
    ledger, topic = await compacted(local, msgspec.structs.replace(COMPACT, delete_retention_ms=0))
    partition = own_partition(ledger, topic)

    def within(producer: int, sequence: int, *pairs: tuple[str, str | None]) -> bytearray:
        return updates(
            *pairs, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True
        )

    await write(ledger, partition, ("a", "1"), ("b", "1"), ("c", "1"))
    await append_ok(ledger, partition, within(7, 0, ("a", "aborted")), within(8, 0, ("b", "committed")))
    await ledger.settle()
    assert await ledger.clean() == 0, "the whole segment waits for the open transactions"
    await append_ok(ledger, partition, marker_batch(ABORT, 7, 0, 1, NOW), marker_batch(COMMIT, 8, 0, 1, NOW))
    # The markers are not settled yet, and still it is known what they say.
    assert await ledger.clean() == 1
    left = pairs_of(await stored(ledger, partition))
    assert left == [(0, "a", "1"), (2, "c", "1"), (4, "b", "committed")]
    assert len(partition.aborted_transactions(0, 100)) == 1
    await ledger.settle()
    await ledger.clean()
    assert len(partition.aborted_transactions(0, 100)) == 1, "the last batch of producer 7 is there, empty"
    local.clock.advance(2 * DAY)
    await ledger._settler.retain()
    assert not partition.producers(), "the producers have expired"
    for number in range(3):
        await write(ledger, partition, ("z", str(number)))
        await ledger.settle()
        local.clock.advance(1)
        await ledger.clean()
    assert partition.aborted_transactions(0, 100) == []
    assert partition.manifest is not None and partition.manifest.aborted == ()
    await write(ledger, partition, ("z", "last"))
    await ledger.settle()
    assert partition.manifest.aborted == ()
    parts = b"".join((await read(ledger, partition, 0, 1 << 20)).buffers)
    headers = [header for _at, header in iter_batches(parts)]
    assert [h.producer_id for h in headers if h.is_control] == [8], "its committed record is still there"
    assert not any(h.attributes & DELETE_HORIZON for h in headers if h.is_control)


async def test_more_keys_than_memory_take_more_passes(local: World) -> None:
    local.cleaner = CleanerSettings(enable=False, dedupe_buffer_bytes=1)  # One batch at a time.
    ledger, topic = await compacted(local)
    partition = own_partition(ledger, topic)
    chance = random.Random(5)
    last: dict[str, tuple[int, str]] = {}
    for number in range(6):
        batch = [(f"k{chance.randrange(12)}", f"{number}.{at}") for at in range(7)]
        base = (await append_ok(ledger, partition, updates(*batch)))[0]
        last.update({key: (base + at, value) for at, (key, value) in enumerate(batch)})
        if number % 2:
            await ledger.settle()
    ends = []
    while await ledger.clean():
        assert partition.manifest is not None
        ends.append(partition.manifest.compacted_end)
        left = {key: (offset, value) for offset, key, value in pairs_of(await stored(ledger, partition))}
        assert left == last, "at any time a reader finds the last value of each key"
    assert ends == [7, 14, 21, 28, 35, 42]
    assert len(await stored(ledger, partition)) == len(last)


async def test_segments_larger_than_memory_are_written_in_parts(
    local: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaner_pass, "SEGMENT_BYTES", 50_000)
    monkeypatch.setattr(cleaner_pass, "WINDOW_BYTES", 1)  # An extent at a time.
    ledger, topic = await compacted(local)
    partition = own_partition(ledger, topic)
    for number in range(3):
        await write(ledger, partition, *((f"k{key}", f"{number}" * 5000) for key in range(60)))
        await ledger.settle()
    assert await ledger.clean() == 1
    left = pairs_of(await stored(ledger, partition))
    assert [offset for offset, _key, _value in left] == list(range(120, 180))
    assert partition.manifest is not None
    assert max(s.size_bytes for s in partition.manifest.segments) <= 50_000 < partition.size_bytes
    count = len(partition.manifest.segments)
    # Without updates of old keys, clean segments that are large enough stay where they are.
    kept = set(partition.manifest.segments)
    await write(ledger, partition, ("new", "1"))
    await ledger.settle()
    assert await ledger.clean() == 1
    assert len(kept & set(partition.manifest.segments)) >= count - 1
    await collect(ledger)
    assert set(await keys_of(local.store, "segments/")) == referred(ledger)


async def test_small_clean_segments_do_not_pile_up(local: World) -> None:
    ledger, topic = await compacted(local)
    partition = own_partition(ledger, topic)
    for number in range(12):
        await write(ledger, partition, (f"k{number}", "1"), ("same", f"{number}"))
        await ledger.settle()
        assert await ledger.clean() == 1
        assert partition.manifest is not None
        assert len(partition.manifest.segments) == 1
    assert len(await stored(ledger, partition)) == 13


async def test_segment_bytes_bounds_cleaned_segments(local: World) -> None:
    ledger, topic = await compacted(local, msgspec.structs.replace(COMPACT, segment_bytes=1000))
    partition = own_partition(ledger, topic)
    await write(ledger, partition, *((f"k{key}", "x" * 50) for key in range(60)))
    await write(ledger, partition, *((f"k{key}", "y" * 50) for key in range(0, 60, 2)))
    await ledger.settle()
    await ledger.clean()
    assert partition.manifest is not None
    cleaned = [segment.size_bytes for segment in partition.manifest.segments if segment.base_offset < 60]
    assert len(cleaned) > 3 and max(cleaned) <= 1000
    assert len(await stored(ledger, partition)) == 60


async def test_partitions_share_objects_and_commits(local: World) -> None:
    ledger, topic = await compacted(local, partitions=20)
    partitions = [own_partition(ledger, topic, index) for index in range(20)]
    for partition in partitions:
        await write(ledger, partition, ("a", "1"), ("a", "2"))
    await ledger.settle()
    objects, commands = len(await keys_of(local.store)), len(local.metadata.commands)
    assert await ledger.clean() == 20
    assert len(local.metadata.commands) == commands + 1
    assert len(await keys_of(local.store)) == objects + 2, "one segment object, one manifest object"
    for partition in partitions:
        assert pairs_of(await stored(ledger, partition)) == [(1, "a", "2")]
    await local.kill(ledger)
    ledger = await local.start(settings=PROMPT)
    for index in range(20):
        assert pairs_of(await stored(ledger, own_partition(ledger, topic, index))) == [(1, "a", "2")]


async def test_only_what_the_policy_names_is_compacted(local: World) -> None:
    ledger, topic = await compacted(local, LogPolicy(segment_ms=0, min_cleanable_ratio=0.0))
    partition = own_partition(ledger, topic)
    await write(ledger, partition, ("a", "1"), ("a", "2"))
    await ledger.settle()
    assert await ledger.clean() == 0
    partition.policy = msgspec.structs.replace(COMPACT, segment_ms=DAY)
    local.clock.advance(DAY - 1)
    assert await ledger.clean() == 0, "active"
    partition.policy = msgspec.structs.replace(COMPACT, min_compaction_lag_ms=DAY)
    assert await ledger.clean() == 0, "too young"
    local.clock.advance(1)
    assert await ledger.clean() == 1
    await write(ledger, partition, ("b", "1"))
    await ledger.settle()
    partition.policy = msgspec.structs.replace(COMPACT, min_cleanable_ratio=0.9)
    assert await ledger.clean() == 0, "not dirty enough"
    partition.policy = msgspec.structs.replace(partition.policy, max_compaction_lag_ms=1)
    assert await ledger.clean() == 1, "dirty for too long"


async def test_compact_and_delete(local: World) -> None:
    policy = msgspec.structs.replace(COMPACT, delete=True, retention_ms=10_000, segment_ms=5000)
    ledger, topic = await compacted(local, policy)
    partition = own_partition(ledger, topic)
    for number in range(4):
        time = local.clock.time_ms()
        await write(ledger, partition, (f"k{number}", "1"), ("same", str(number)), time=time)
        await ledger.settle()
        local.clock.advance(6000)
        assert await ledger.clean() == 1
    assert partition.manifest is not None
    assert len(partition.manifest.segments) >= 3, "segments do not grow beyond segment.ms"
    await ledger._settler.retain()
    left = pairs_of(await stored(ledger, partition))
    assert partition.log_start_offset > 0
    assert left == [(6, "k3", "1"), (7, "same", "3")]
    await collect(ledger)
    assert set(await keys_of(local.store, "segments/")) == referred(ledger)


# Settings.


def test_the_throttle_spreads_bytes_over_time() -> None:
    clock = HandClock()
    throttle = Throttle(clock)
    throttle.add(1000)
    assert throttle.wait_seconds(500.0) == 2.0
    clock.advance(500)
    assert throttle.wait_seconds(500.0) == 1.5
    assert throttle.wait_seconds(5000.0) == pytest.approx(0.15), "the rate may be changed meanwhile"
    clock.advance(150)
    assert throttle.wait_seconds(5000.0) == 0.0
    clock.advance(10_000)
    throttle.add(1000)
    assert throttle.wait_seconds(500.0) == 2.0, "what was not used is not saved up"
    throttle.add(1 << 40)
    for unlimited in (float("inf"), 1.7976931348623157e308):
        assert throttle.wait_seconds(unlimited) == 0.0
    throttle.add(1)
    assert throttle.wait_seconds(0.0) > 0.0


async def test_reads_and_writes_are_throttled(local: World, monkeypatch: pytest.MonkeyPatch) -> None:
    local.cleaner = CleanerSettings(enable=False, io_bytes_per_second=100.0)
    ledger, topic = await compacted(local)
    partition = own_partition(ledger, topic)
    await write(ledger, partition, *(("a", "x" * 100) for _ in range(10)))
    await ledger.settle()
    size = partition.size_bytes
    slept = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal slept
        slept += seconds
        local.clock.seconds += seconds

    monkeypatch.setattr("penstock.storage.settling.cleaner.asyncio.sleep", sleep)
    assert await ledger.clean() == 1
    monkeypatch.undo()
    assert slept == pytest.approx((2 * size + partition.size_bytes) / 100.0, rel=0.2)
    counters = ledger.counters()
    assert counters["cleanings"] == 1 and counters["cleaner_bytes_written"] == partition.size_bytes
    assert counters["cleaner_bytes_read"] == 2 * size


async def test_compaction_runs_by_itself_if_it_is_enabled(local: World) -> None:
    local.cleaner = CleanerSettings(enable=True, backoff_ms=0)
    ledger, topic = await compacted(local)
    partition = own_partition(ledger, topic)
    await write(ledger, partition, ("a", "1"), ("a", "2"))
    await ledger.settle()
    committed = asyncio.Event()

    def watch(_old: ClusterImage, _new: ClusterImage) -> None:
        if _compactions(local.metadata.commands):
            committed.set()

    local.metadata.subscribers.append(watch)
    await asyncio.wait_for(committed.wait(), 60)
    assert pairs_of(await stored(ledger, partition)) == [(1, "a", "2")]


def _compactions(commands: Sequence[AnyCommand]) -> int:
    return sum(isinstance(command, SettlePartitions) for command in commands) - 1


def test_the_cleaner_obeys_the_settings_in_force() -> None:
    given = Settings().with_values(
        {"log.cleaner.enable": "false", "log.cleaner.backoff.ms": "7", "log.cleaner.delete.retention.ms": "9"}
    )
    policies = Policies(given)
    image = ClusterImage()
    found = policies.cleaner(image)
    assert (found.enable, found.backoff_ms) == (False, 7)
    assert found.dedupe_buffer_bytes == 134217728 and found.io_bytes_per_second > 1e300
    dynamic = {"log.cleaner.dedupe.buffer.size": "1048576", "log.cleaner.io.max.bytes.per.second": "5e6"}
    dynamic["producer.id.expiration.ms"] = "12"
    own = {"log.cleaner.backoff.ms": "11", "log.cleaner.min.cleanable.ratio": "0.25"}
    topic = {"cleanup.policy": "compact,delete", "min.compaction.lag.ms": "3", "max.compaction.lag.ms": "4"}
    image = msgspec.structs.replace(
        image,
        configs={(BROKER_CONFIG, ""): dynamic, (BROKER_CONFIG, "1"): own, (TOPIC_CONFIG, "t"): topic},
    )
    found = policies.cleaner(image)
    assert (found.backoff_ms, found.dedupe_buffer_bytes, found.io_bytes_per_second) == (11, 1048576, 5e6)
    policy = policies.of(image, "t")
    assert policy.compact and policy.delete and policy.min_cleanable_ratio == 0.25
    assert policy.producer_expiration_ms == 12
    assert (policy.min_compaction_lag_ms, policy.max_compaction_lag_ms, policy.delete_retention_ms) == (
        3,
        4,
        9,
    )


async def test_records_are_settled_to_be_compacted(world: World) -> None:
    """Waiting for the next settling, too, would add to log.cleaner.backoff.ms."""
    ledger, topic = await compacted(world)
    partition = own_partition(ledger, topic)
    await write(ledger, partition, ("a", "1"), ("b", "1"), ("a", "2"))
    assert partition.settled_end == 0
    assert await ledger.clean() == 1
    assert pairs_of(await stored(ledger, partition)) == [(1, "b", "1"), (2, "a", "2")]
    settles = ledger.counters()["settles"]
    # Not more often than each second, however often rounds come.
    await write(ledger, partition, ("a", "3"))
    assert await ledger.clean() == 0
    world.clock.advance(1000)
    assert await ledger.clean() == 1
    assert pairs_of(await stored(ledger, partition)) == [(1, "b", "1"), (3, "a", "3")]
    assert ledger.counters()["settles"] == settles + 1


async def test_nothing_is_settled_that_would_not_be_compacted_then(world: World) -> None:
    """The newest part of the log is left alone, settled or not, and so is what is not dirty enough."""
    ledger, topic = await compacted(world, msgspec.structs.replace(COMPACT, segment_ms=DAY))
    active = own_partition(ledger, topic)
    world.policies["u"] = msgspec.structs.replace(COMPACT, min_cleanable_ratio=0.9)
    clean_enough = own_partition(ledger, await world.create_topic("u"))
    await write(ledger, clean_enough, *((f"k{n}", "1") for n in range(10)))
    assert await ledger.clean() == 1
    settles = ledger.counters()["settles"]
    world.clock.advance(10_000)
    await write(ledger, active, ("a", "1"), ("a", "2"), time=world.clock.time_ms())
    await write(ledger, clean_enough, ("k0", "2"))
    assert await ledger.clean() == 0
    assert ledger.counters()["settles"] == settles
    # Time closes the active part.
    world.clock.advance(DAY + 1)
    assert await ledger.clean() == 1
    assert pairs_of(await stored(ledger, active)) == [(1, "a", "2")]
