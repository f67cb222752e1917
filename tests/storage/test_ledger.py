"""The ledger as handlers see it: appends, reads, duplicates, restarts, fencing."""

import asyncio

import msgspec
import pytest

from penstock.log.policy import LogPolicy
from penstock.metadata.commands import AssignLeaders, LeaderMove
from penstock.metadata.image import WalRef
from penstock.storage.partitions.answers import Appended, EpochEnd, OffsetOutOfRangeError, Readable, Slice
from penstock.storage.wal.port import Durable, Fenced
from penstock.wire.batch import check_batch, iter_batches, read_header
from penstock.wire.errors import ErrorCode
from penstock.wire.markers import ABORT, COMMIT, marker_batch
from tests.storage.world import QUIET, World, append, append_ok, batch, own_partition, read, read_all


async def test_appended_records_are_read_back_as_they_were_sent(world: World) -> None:
    ledger = await world.start()
    topic = await world.create_topic("t")
    partition = own_partition(ledger, topic)
    sent = [batch(b"a", b"b"), batch(b"c"), batch(b"d" * 10_000)]
    originals = [bytes(one) for one in sent]
    assert await append_ok(ledger, partition, *sent) == [0, 2, 3]
    assert (partition.high_watermark, partition.last_stable_offset) == (4, 4)
    part = await read(ledger, partition, 0)
    stored = b"".join(part.buffers)
    assert part.next_offset == 4
    for (position, header), original in zip(iter_batches(stored), originals, strict=True):
        # The same bytes, but for base offset and leader epoch; the CRC still holds.
        check_batch(stored, position)
        again = stored[position : position + header.size]
        assert again[8:12] == original[8:12] and again[16:] == original[16:]
        assert header.leader_epoch == partition.leader_epoch


async def test_a_read_begins_with_the_batch_that_holds_the_offset(world: World) -> None:
    ledger = await world.start()
    partition = own_partition(ledger, await world.create_topic("t"))
    await append_ok(ledger, partition, *(batch(b"x", b"y", b"z") for _ in range(10)))
    part = await read(ledger, partition, 7, 1)
    assert [header.base_offset for _, header in iter_batches(b"".join(part.buffers))] == [6]
    assert part.next_offset == 9
    assert await read(ledger, partition, 30) == Slice([], 0, 30)
    limited = await read(ledger, partition, 0, limit=12)
    assert limited.next_offset == 12
    for offset in (-1, 31):
        with pytest.raises(OffsetOutOfRangeError):
            await read(ledger, partition, offset)


async def test_what_the_cache_has_lost_is_read_from_the_log(world: World) -> None:
    ledger = await world.start()
    partition = own_partition(ledger, await world.create_topic("t", 2))
    other = own_partition(ledger, partition.topic_id, 1)
    expected = []
    for number in range(50):
        value = b"%d " % number * 100
        await append_ok(ledger, partition, batch(value), batch(value + b"!"))
        await append_ok(ledger, other, batch(b"between"))
        expected += [value, value + b"!"]
    ledger._cache.bytes_max = 0
    await append_ok(ledger, other, batch(b"evicts the rest"))
    assert partition.tail.start == -1
    for max_bytes in (1, 700, 1 << 20):
        assert await read_all(ledger, partition, max_bytes) == list(enumerate(expected))


async def test_a_restart_keeps_everything_that_was_acknowledged(world: World) -> None:
    ledger = await world.start()
    topic = await world.create_topic("t", 3)
    for number in range(20):
        partition = own_partition(ledger, topic, number % 3)
        await append_ok(ledger, partition, batch(b"%d" % number, b"%d'" % number))
    before = [await read_all(ledger, own_partition(ledger, topic, at)) for at in range(3)]
    await world.kill(ledger)
    ledger = await world.start()
    after = [await read_all(ledger, own_partition(ledger, topic, at)) for at in range(3)]
    assert after == before
    partition = own_partition(ledger, topic)
    assert partition.leader_epoch == 1
    assert await append_ok(ledger, partition, batch(b"next")) == [14]
    assert ledger.end_offset_for_epoch(partition, 0) == EpochEnd(0, 14)
    assert ledger.end_offset_for_epoch(partition, 1) == EpochEnd(1, 15)
    assert ledger.end_offset_for_epoch(partition, 2) == EpochEnd(-1, -1)


async def test_a_retried_batch_is_stored_once_and_answered_with_its_offset(world: World) -> None:
    ledger = await world.start()
    topic = await world.create_topic("t")
    partition = own_partition(ledger, topic)

    def numbered(sequence: int) -> bytearray:
        return batch(b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=sequence)

    assert await append_ok(ledger, partition, *(numbered(2 * n) for n in range(6))) == [0, 2, 4, 6, 8, 10]
    retried = await append(ledger, partition, numbered(4), numbered(0), numbered(12), numbered(12))
    assert retried[0] == (4, 1_700_000_000_000, 0, True)
    assert retried[1] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER  # Older than the last five.
    assert retried[2] == (12, -1, 0, False)
    assert retried[3] == (12, 1_700_000_000_000, 0, True)
    await world.kill(ledger)
    ledger = await world.start()
    partition = own_partition(ledger, topic)
    assert await append(ledger, partition, numbered(12), numbered(16), numbered(14)) == [
        (12, 1_700_000_000_000, 0, True),
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        (14, -1, 0, False),
    ]
    stale = batch(b"x", producer_id=7, producer_epoch=-1, base_sequence=0)
    assert await append(ledger, partition, stale) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert [view.last_sequence for view in partition.producers()] == [15]


async def test_log_append_time_is_the_brokers(world: World) -> None:
    ledger = await world.start()
    world.policies["t"] = LogPolicy(log_append_time=True)
    partition = own_partition(ledger, await world.create_topic("t"))
    world.clock.now_ms = 1_800_000_000_000
    (answer,) = await append(ledger, partition, batch(b"a", timestamp=5))
    assert answer == (0, 1_800_000_000_000, 0, False)
    stored = b"".join((await read(ledger, partition, 0)).buffers)
    header = check_batch(stored)
    assert header.is_log_append_time and header.max_timestamp == 1_800_000_000_000


async def test_nothing_is_readable_before_it_is_durable(local: World) -> None:
    ledger = await local.start()
    partition = own_partition(ledger, await local.create_topic("t"))
    seen: list[int] = []
    partition.watch(lambda: seen.append(partition.high_watermark))
    ledger.append(partition, batch(b"a"), lambda answer: seen.append(-1))
    assert partition.high_watermark == 0 and seen == []
    await asyncio.sleep(0)
    assert seen == [-1, 1]


async def test_an_incarnation_that_ended_does_not_call_its_log_settled(world: World) -> None:
    """A broker whose log was sealed may be told to stop before anybody fenced it, and then settles."""
    ledger = await world.start()
    topic = await world.create_topic("t")
    await append_ok(ledger, own_partition(ledger, topic), batch(b"kept"))
    assert await world.wal_store.seal(ledger.wal) == 1
    zombie = await append(ledger, own_partition(ledger, topic), batch(b"lost"))
    assert zombie == [ErrorCode.NOT_LEADER_OR_FOLLOWER] and world.ended
    # Whatever happens in the cluster, what is closed stays closed: it would be opened as if it were empty.
    await world.create_topic("other")
    assert ledger.partition(topic, 0) is None and not ledger.led()
    assert await ledger.surrender([(topic, 0)]) == {}
    assert not await ledger.settle()
    assert world.metadata.image.wal_starts.get(ledger.wal, 0) == 0
    await world.kill(ledger)
    again = await world.start()
    assert (await read_all(again, own_partition(again, topic)))[:1] == [(0, b"kept")]


async def test_a_sealed_log_acknowledges_nothing(world: World) -> None:
    ledger = await world.start()
    topic = await world.create_topic("t")
    partition = own_partition(ledger, topic)
    await append_ok(ledger, partition, batch(b"kept"))
    count = await world.wal_store.seal(ledger.wal)
    assert count == 1
    zombie = await append(ledger, partition, batch(b"lost"), batch(b"lost too"))
    assert zombie == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    assert partition.closed and world.ended
    assert await append(ledger, partition, batch(b"later")) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert partition.high_watermark == 1


async def test_a_zombie_changes_nothing_for_its_successor(world: World) -> None:
    zombie = await world.start()
    topic = await world.create_topic("t")
    old = own_partition(zombie, topic)
    await append_ok(zombie, old, batch(b"one"))
    world.forget(zombie)
    ledger = await world.start()
    assert await append(zombie, old, batch(b"never")) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    partition = own_partition(ledger, topic)
    await append_ok(ledger, partition, batch(b"two"))
    await world.kill(ledger)
    ledger = await world.start()
    found = await read_all(ledger, own_partition(ledger, topic))
    assert found == [(0, b"one"), (1, b"two")]


async def test_an_incarnation_that_was_sealed_before_it_began_cannot_begin(world: World) -> None:
    assert await world.wal_store.seal(WalRef(9, 3)) == 0
    assert await world.wal_store.seal(WalRef(9, 3)) == 0
    assert isinstance(await world.wal_store.create(WalRef(9, 3)), Fenced)


async def test_another_broker_takes_over(world: World) -> None:
    first = await world.start(1)
    topic = await world.create_topic("t", brokers=(1,))
    await append_ok(first, own_partition(first, topic), batch(b"a"), batch(b"b"))
    second = await world.start(2)
    await world.fence(1)
    assert first.partition(topic, 0) is None
    info = world.metadata.image.partition(topic, 0)
    assert info is not None
    epoch = world.metadata.image.brokers[2].epoch
    await world.metadata.change(AssignLeaders(2, epoch, (LeaderMove(topic, 0, info.leader_epoch, 2),)))
    await second.update(world.metadata.image)
    partition = own_partition(second, topic)
    assert await read_all(second, partition) == [(0, b"a"), (1, b"b")]
    assert await append_ok(second, partition, batch(b"c")) == [2]


async def test_a_leader_surrenders_a_partition_with_everything_settled(world: World) -> None:
    first = await world.start(1)
    second = await world.start(2)
    topic = await world.create_topic("t", brokers=(1,))
    old = own_partition(first, topic)
    await append_ok(first, old, batch(b"a"), batch(b"b"))
    refs = await first.surrender([(topic, 0)])
    assert await append(first, old, batch(b"no")) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    first.resume([(topic, 0)])
    await append_ok(first, old, batch(b"c"))
    refs = await first.surrender([(topic, 0)])
    move = LeaderMove(topic, 0, old.leader_epoch, 2, settled=True, manifest=refs[topic, 0].manifest)
    await world.metadata.change(AssignLeaders(1, first.wal.epoch, (move,)))
    await second.update(world.metadata.image)
    partition = own_partition(second, topic)
    assert await read_all(second, partition) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert first.partition(topic, 0) is None
    await append_ok(second, partition, batch(b"d"))
    # And back again, to the same incarnation.
    refs = await second.surrender([(topic, 0)])
    move = LeaderMove(topic, 0, partition.leader_epoch, 1, settled=True, manifest=refs[topic, 0].manifest)
    await world.metadata.change(AssignLeaders(2, second.wal.epoch, (move,)))
    await first.update(world.metadata.image)
    again = own_partition(first, topic)
    assert await append_ok(first, again, batch(b"e")) == [4]
    assert [value for _, value in await read_all(first, again)] == [b"a", b"b", b"c", b"d", b"e"]


async def test_transactions_move_the_last_stable_offset(world: World) -> None:
    ledger = await world.start()
    topic = await world.create_topic("t")
    partition = own_partition(ledger, topic)

    def part(producer: int, sequence: int) -> bytearray:
        return batch(b"x", producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True)

    await append_ok(ledger, partition, batch(b"plain"), part(1, 0), part(2, 0), part(1, 1))
    assert (partition.high_watermark, partition.last_stable_offset) == (4, 1)
    plain = batch(b"x", producer_id=1, producer_epoch=0, base_sequence=2)
    assert await append(ledger, partition, plain) == [ErrorCode.INVALID_TXN_STATE]
    await append_ok(ledger, partition, marker_batch(ABORT, 1, 0, 3, 5))
    assert (partition.high_watermark, partition.last_stable_offset) == (5, 2)
    await world.kill(ledger)
    ledger = await world.start()
    partition = own_partition(ledger, topic)
    assert (partition.high_watermark, partition.last_stable_offset) == (5, 2)
    fenced = marker_batch(COMMIT, 1, 0, 2, 5)
    assert await append(ledger, partition, fenced) == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    await append_ok(ledger, partition, marker_batch(COMMIT, 2, 0, 3, 5))
    assert (partition.high_watermark, partition.last_stable_offset) == (6, 6)
    (aborted,) = partition.aborted_transactions(0, 6)
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (1, 1, 4)
    assert partition.aborted_transactions(5, 6) == []


async def test_a_flush_takes_so_much_and_leaves_the_rest_to_the_next(local: World) -> None:
    limits = msgspec.structs.replace(QUIET, flush_batches_max=3, flush_bytes_max=1000)
    ledger = await local.start(settings=limits)
    topic = await local.create_topic("t", 2)
    partition, other = own_partition(ledger, topic, 0), own_partition(ledger, topic, 1)
    small, large = [batch(b"s") for _ in range(8)], [batch(b"l" * 600) for _ in range(4)]
    answers = await asyncio.gather(append(ledger, partition, *small), append(ledger, other, *large))
    assert [[a.base_offset for a in some if isinstance(a, Appended)] for some in answers] == [
        list(range(8)),
        list(range(4)),
    ]
    assert ledger.counters()["flushes"] == 5
    assert read_header((await read(ledger, other, 3)).buffers[0]).base_offset == 3


async def test_a_deleted_topic_refuses_appends(local: World) -> None:
    ledger = await local.start()
    topic = await local.create_topic("t")
    partition = own_partition(ledger, topic)
    woken: list[bool] = []
    partition.watch(lambda: woken.append(partition.closed))
    await local.delete_topic(topic)
    assert woken == [True] and ledger.partition(topic, 0) is None
    assert await append(ledger, partition, batch(b"a")) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_a_batch_is_said_to_be_durable_only_with_the_proof() -> None:
    told: list[Appended | ErrorCode] = []
    staged = [(bytearray(), (4, 5, -1, -1), told.append)]
    with pytest.raises(TypeError, match="proof"):
        Appended(4, -1, 0, False)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        Appended.tell(Readable(4), staged, 0)
    assert told == []
    Appended.tell(Readable(6), staged, 2, duplicate=True)
    Appended.tell(Durable("wal/1/1/0", 64), staged, 2)
    assert told == [(4, -1, 2, True), (4, -1, 2, False)]
