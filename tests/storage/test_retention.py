"""Retention, DeleteRecords and deleted topics."""

import msgspec

from penstock.log.policy import LogPolicy
from penstock.metadata.commands import AdvanceLogStart, SettlePartitions
from penstock.metadata.refusal import Refusal
from penstock.storage.ledger.ledger import Ledger
from penstock.wire.errors import ErrorCode
from tests.storage.test_settling import NO_DELAY, PROMPT, collect, fill, forget_tails
from tests.storage.world import World, append, append_ok, batch, keys_of, own_partition, read_all

HOUR_MS = 3_600_000


async def retain(ledger: Ledger) -> int:
    return await ledger._settler.retain()


async def test_segments_older_than_retention_ms_go(world: World) -> None:
    world.policies["t"] = LogPolicy(retention_ms=HOUR_MS, file_delete_delay_ms=0)
    ledger = await world.start(settings=PROMPT)
    topic = await world.create_topic("t")
    partition = own_partition(ledger, topic)
    for _ in range(3):
        now = world.clock.time_ms()
        await append_ok(ledger, partition, *(batch(b"x", timestamp=now) for _ in range(4)))
        await ledger.settle()
        world.clock.advance(HOUR_MS // 2)
    await append_ok(ledger, partition, batch(b"new", timestamp=world.clock.time_ms()))
    assert await retain(ledger) == 1
    assert partition.log_start_offset == 4
    info = world.metadata.image.partition(topic, 0)
    assert info is not None and info.log_start == 4
    await collect(ledger)
    assert len(await keys_of(world.store, "segments/")) == 2
    assert [offset for offset, _ in await read_all(ledger, partition)] == list(range(4, 13))
    # Everything may go, settled or not; offsets go on.
    world.clock.advance(2 * HOUR_MS)
    assert await retain(ledger) == 1
    assert partition.log_start_offset == partition.high_watermark == 13
    assert await retain(ledger) == 0
    await ledger.settle()
    await world.kill(ledger)
    ledger = await world.start(settings=PROMPT)
    partition = own_partition(ledger, topic)
    assert (partition.log_start_offset, partition.high_watermark) == (13, 13)
    assert await append_ok(ledger, partition, batch(b"next")) == [13]
    await collect(ledger)


async def test_the_oldest_go_while_retention_bytes_remain(world: World) -> None:
    world.policies["t"] = LogPolicy(retention_bytes=1000, segment_bytes=500, file_delete_delay_ms=0)
    ledger = await world.start(settings=PROMPT)
    topic = await world.create_topic("t")
    partition = own_partition(ledger, topic)
    await fill(ledger, partition, 20, 100)
    await ledger.settle()
    await fill(ledger, partition, 10, 100)
    await retain(ledger)
    assert 1000 <= partition.size_bytes < 1600
    first = partition.log_start_offset
    assert 0 < first < 30
    assert [offset for offset, _ in await read_all(ledger, partition)] == list(range(first, 30))
    await world.kill(ledger)
    ledger = await world.start(settings=PROMPT)
    assert own_partition(ledger, topic).log_start_offset == first


async def test_compacted_topics_and_unlimited_ones_keep_everything(world: World) -> None:
    world.policies["compacted"] = LogPolicy(retention_ms=1, retention_bytes=1, delete=False, compact=True)
    world.policies["unlimited"] = LogPolicy(retention_ms=-1)
    ledger = await world.start()
    for name in ("compacted", "unlimited"):
        partition = own_partition(ledger, await world.create_topic(name))
        await append_ok(ledger, partition, batch(b"old", timestamp=1))
        await ledger.settle()
        await append_ok(ledger, partition, batch(b"old", timestamp=1))
        assert await retain(ledger) == 0
        assert partition.log_start_offset == 0


async def test_a_check_each_second_takes_no_more_than_one(world: World) -> None:
    """What is below the log start already, and still unsettled, does not count again."""
    world.policies["t"] = LogPolicy(
        retention_bytes=1_500_000, segment_bytes=1_048_576, file_delete_delay_ms=0
    )
    ledger = await world.start(settings=PROMPT)
    partition = own_partition(ledger, await world.create_topic("t"))
    for number in range(20):
        await append_ok(ledger, partition, batch(bytes([number]) * 200_000))
        for _ in range(3):
            await retain(ledger)
        assert partition.size_bytes >= min(1_500_000, 200_000 * (number + 1))
        assert partition.size_bytes <= 1_500_000 + 1_048_576 + 200_100
    start = partition.log_start_offset
    assert start > 0
    await ledger.settle()
    assert await retain(ledger) in (0, 1)  # The segment below the log start goes.
    assert partition.size_bytes >= 1_500_000
    assert [offset for offset, _ in await read_all(ledger, partition, 1 << 20)] == list(range(start, 20))


async def test_who_is_fenced_does_not_lead_what_records_are_to_be_deleted_from(world: World) -> None:
    ledger = await world.start(settings=PROMPT)
    topic = await world.create_topic("t")
    partition = own_partition(ledger, topic)
    await fill(ledger, partition, 2)
    refusal = Refusal(ErrorCode.STALE_BROKER_EPOCH, "Broker 1 is in epoch 2, not 1.")

    async def refuse(decide: object) -> Refusal:
        return refusal

    ledger._holdings.propose = refuse
    assert await ledger.delete_records(partition, 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_delete_records_goes_through_the_metadata_log(world: World) -> None:
    world.policies["t"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    topic = await world.create_topic("t")
    partition = own_partition(ledger, topic)
    await fill(ledger, partition, 6)
    await ledger.settle()
    await fill(ledger, partition, 6)
    assert await ledger.delete_records(partition, 13) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert await ledger.delete_records(partition, -2) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert await ledger.delete_records(partition, 8) == 8
    assert await ledger.delete_records(partition, 3) == 8
    command = world.metadata.commands[-1]
    assert isinstance(command, AdvanceLogStart) and command.partitions[0].log_start == 8
    assert [offset for offset, _ in await read_all(ledger, partition)] == [8, 9, 10, 11]
    # The segment below goes with the next look of retention.
    await retain(ledger)
    assert isinstance(world.metadata.commands[-1], SettlePartitions)
    await collect(ledger)
    assert await keys_of(world.store, "segments/") == []
    assert await ledger.delete_records(partition, -1) == 12
    await world.kill(ledger)
    ledger = await world.start(settings=PROMPT)
    partition = own_partition(ledger, topic)
    assert (partition.log_start_offset, partition.high_watermark) == (12, 12)
    await ledger.settle()
    await collect(ledger)
    await world.kill(ledger)
    ledger = await world.start(settings=PROMPT)
    partition = own_partition(ledger, topic)
    assert (partition.log_start_offset, partition.high_watermark) == (12, 12)
    assert await read_all(ledger, partition) == []


async def test_a_deleted_topic_takes_its_objects_with_it(world: World) -> None:
    world.policies["t"] = world.policies["u"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    t, u = await world.create_topic("t", 2), await world.create_topic("u")
    for topic, index in ((t, 0), (t, 1), (u, 0)):
        await fill(ledger, own_partition(ledger, topic, index), 5)
    await ledger.settle()
    await world.delete_topic(t)
    await collect(ledger)
    # One object holds all three partitions, and one of them is still there.
    assert len(await keys_of(world.store, "segments/")) == 1
    forget_tails(ledger)
    assert len(await read_all(ledger, own_partition(ledger, u))) == 5
    again = await world.create_topic("t")
    assert again == t
    await append_ok(ledger, own_partition(ledger, again), batch(b"fresh"))
    await world.delete_topic(again)
    await world.delete_topic(u)
    await ledger.settle()
    await collect(ledger)
    assert await keys_of(world.store, "segments/") == await keys_of(world.store, "manifests/") == []


async def test_garbage_waits_for_its_delay_and_for_readers(world: World) -> None:
    world.policies["t"] = LogPolicy(file_delete_delay_ms=60_000)
    ledger = await world.start(settings=msgspec.structs.replace(PROMPT, delete_delay_ms=60_000))
    topic = await world.create_topic("t")
    await fill(ledger, own_partition(ledger, topic), 3)
    await ledger.settle()
    (segment,) = await keys_of(world.store, "segments/")
    await world.delete_topic(topic)
    world.clock.advance(59_000)
    await collect(ledger)
    assert await keys_of(world.store, "segments/") == [segment]
    world.clock.advance(2_000)
    ledger._reader.held[segment] = 1
    await collect(ledger)
    assert await keys_of(world.store, "segments/") == [segment]
    del ledger._reader.held[segment]
    await collect(ledger)
    assert await keys_of(world.store, "segments/") == []


async def test_settled_flushes_go_also_while_settling_goes_on(world: World) -> None:
    """More often than the delay lasts: what was settled before the delay goes, whatever was settled since."""
    ledger = await world.start(settings=msgspec.structs.replace(PROMPT, delete_delay_ms=60_000))
    partition = own_partition(ledger, await world.create_topic("t"))
    prefix = f"wal/1/{ledger.wal.epoch}/"
    counts = []
    for _ in range(20):
        await fill(ledger, partition, 3)
        await ledger.settle()
        world.clock.advance(10_000)
        await collect(ledger)
        counts.append(sum(key[-1].isdecimal() for key in await keys_of(world.store, prefix)))
    # One flush for each append on an object store, one file for each settling on a directory.
    flushes_per_turn = max(counts[0], 1)
    assert max(counts) <= 8 * flushes_per_turn, counts


async def test_producers_expire(world: World) -> None:
    world.policies["t"] = LogPolicy(producer_expiration_ms=1000)
    ledger = await world.start(settings=PROMPT)
    partition = own_partition(ledger, await world.create_topic("t"))

    def numbered(producer: int, sequence: int, *, transactional: bool = False) -> bytearray:
        return batch(
            b"x",
            timestamp=5,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=transactional,
        )

    await append_ok(ledger, partition, numbered(1, 0), numbered(2, 0, transactional=True))
    world.clock.advance(1500)
    await append_ok(ledger, partition, numbered(3, 0))
    await retain(ledger)
    # An open transaction keeps its producer.
    assert [view.producer_id for view in partition.producers()] == [2, 3]
    # A producer that is not known may go on at any sequence.
    (answer,) = await append(ledger, partition, numbered(1, 17))
    assert getattr(answer, "base_offset", None) == 3
