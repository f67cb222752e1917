"""Offsets by time, exact to the record, wherever the record lies."""

from penstock.storage.ledger.ledger import Ledger
from penstock.storage.partitions.answers import TimestampOffset
from penstock.storage.partitions.partition import Partition
from penstock.wire.batch import HEADER_SIZE, refresh_crc
from penstock.wire.compression import GZIP
from tests.storage.test_settling import forget_tails
from tests.storage.world import World, append_ok, batch, own_partition


async def at(ledger: Ledger, partition: Partition, timestamp: int) -> tuple[int, int] | None:
    found = await ledger.offset_for_timestamp(partition, timestamp, limit_offset=partition.high_watermark)
    return None if found is None else (found.offset, found.timestamp)


async def test_the_first_record_at_or_after_a_time(world: World) -> None:
    ledger = await world.start()
    partition = own_partition(ledger, await world.create_topic("t"))
    assert await at(ledger, partition, 0) is None
    assert await ledger.max_timestamp(partition) is None
    # Out of order within and between batches: the first by offset counts.
    times = [[100, 105, 103], [90, 91], [300, 200, 250], [220], [400, 400]]
    for number, some in enumerate(times):
        await append_ok(
            ledger,
            partition,
            batch(*(b"%d" % time for time in some), timestamps=some, codec=GZIP if number % 2 else 0),
        )
        if number in (0, 2):
            await ledger.settle()
    forget_tails(ledger)
    flat = [time for some in times for time in some]
    for wanted in (0, 90, 100, 101, 104, 105, 106, 200, 250, 299, 300, 301, 400, 401):
        expected = next(((o, time) for o, time in enumerate(flat) if time >= wanted), None)
        assert await at(ledger, partition, wanted) == expected, wanted
    assert await ledger.max_timestamp(partition) == TimestampOffset(9, 400, 0)
    limited = await ledger.offset_for_timestamp(partition, 301, limit_offset=9)
    assert limited is None


async def test_records_below_the_log_start_are_not_found(world: World) -> None:
    ledger = await world.start()
    partition = own_partition(ledger, await world.create_topic("t"))
    await append_ok(ledger, partition, batch(b"a", b"b", b"c", timestamps=[900, 10, 20]))
    await append_ok(ledger, partition, batch(b"d", timestamp=15))
    assert await ledger.delete_records(partition, 1) == 1
    assert await at(ledger, partition, 5) == (1, 10)
    assert await at(ledger, partition, 16) == (2, 20)
    assert await at(ledger, partition, 500) is None
    assert await ledger.max_timestamp(partition) == TimestampOffset(2, 20, 0)
    await ledger.settle()
    assert await ledger.max_timestamp(partition) == TimestampOffset(2, 20, 0)


async def test_a_batch_that_cannot_be_decoded_counts_as_its_first_record(world: World) -> None:
    ledger = await world.start()
    partition = own_partition(ledger, await world.create_topic("t"))
    broken = batch(b"a", b"b", timestamps=[10, 20])
    broken[HEADER_SIZE:] = b"\xff" * (len(broken) - HEADER_SIZE)
    refresh_crc(broken)
    await append_ok(ledger, partition, batch(b"0", timestamp=1), broken)
    assert await at(ledger, partition, 15) == (1, 20)
