"""Readers of the store and transactions: what each isolation level sees, in batch and stream."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from penstock.arrow.errors import OptionError
from penstock.arrow.planning import Deal, OffsetRange, splits
from penstock.arrow.reading import ReadSettings, read_stretches
from penstock.log.isolation import Isolation
from penstock.spark.options import read_options
from penstock.spark.read.schema import full_schema
from penstock.spark.read.stream import StreamReader
from penstock.storage.reader.view import PartitionView
from penstock.storage.stores.directory import DirectoryStore
from penstock.testing import Broker
from tests.spark.test_batch import create, in_order, read, values
from tests.spark.test_stream import Query
from tests.spark.transactional import History, Row, abort, commit, data
from tests.spark.workshop import Workshop
from tests.storage.compacting import compacted, updates
from tests.storage.test_view import look
from tests.storage.world import World, append_ok, batch, own_partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMITTED, UNCOMMITTED = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED
LEVELS = pytest.mark.parametrize("isolation", list(Isolation))


def rows_of(
    store: str, view: PartitionView, low: int, high: int, isolation: Isolation, **deal: int
) -> list[Row]:
    settings = ReadSettings(store, ("offset", "value"), isolation, True, True)
    found = []
    for stretches in splits([OffsetRange(view, low, high)], Deal(1 << 20, **deal), isolation):
        for arrow in read_stretches(stretches, settings):
            found += [Row(row["offset"], row["value"]) for row in arrow.to_pylist()]
    return found


@pytest.mark.parametrize("seed", range(12))
async def test_any_history_reads_as_it_happened(tmp_path: Path, seed: int) -> None:
    """Transactions of several producers, over settled and unsettled logs, deaths of the leader, and a log
    start that moves into transactions: every range of each level has exactly its records."""
    random = Random(seed)
    store = DirectoryStore(str(tmp_path / "store"))
    world = World(store)
    ledger = await world.start()
    partition = own_partition(ledger, await world.create_topic("events"))
    history = History(random)
    following, _images = look(world, "events")
    for _ in range(40):
        match random.random():
            case chance if chance < 0.1:
                await ledger.settle()
            case chance if chance < 0.15:
                await world.kill(ledger)
                ledger = await world.start()
                partition = own_partition(ledger, partition.topic_id)
            case chance if chance < 0.2:
                history.log_start = random.randint(history.log_start, history.end)
                await ledger.delete_records(partition, history.log_start)
            case _:
                await append_ok(ledger, partition, *(history.batch() for _ in range(random.randint(1, 3))))
        assert partition.last_stable_offset == history.stable_end, "the leader says the same"
        fresh, _images = look(world, "events")
        for log_view in (following, fresh):
            (view,) = (await log_view.refresh()).values()
            assert (view.log_start, view.end) == (history.log_start, history.end)
            assert view.stable_end == history.stable_end
            for isolation in Isolation:
                end = view.end_for(isolation)
                low = random.randint(view.log_start, end)
                high = random.randint(low, end)
                seen = rows_of(store.root, view, low, high, isolation)
                assert seen == history.rows(isolation, low, high), (low, high, isolation)
    for isolation in Isolation:
        end = view.end_for(isolation)
        whole = history.rows(isolation)
        assert rows_of(store.root, view, view.log_start, end, isolation) == whole
        for deal in ({"max_records": 1}, {"min_partitions": 5}):
            assert rows_of(store.root, view, view.log_start, end, isolation, **deal) == whole
    await world.close()


async def test_a_compacted_log(tmp_path: Path) -> None:
    """Compaction takes the records of aborted transactions, and leaves what others committed of their keys. A
    plan that was made before reads what it would have read."""
    store = DirectoryStore(str(tmp_path / "store"))
    world = World(store)
    ledger, topic = await compacted(world)
    partition = own_partition(ledger, topic)

    def within(producer: int, sequence: int, *pairs: tuple[str, str]) -> bytearray:
        ids = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
        return updates(*pairs, transactional=True, **ids)

    await append_ok(ledger, partition, updates(("a", "a0"), ("b", "b0"), ("c", "c0")))
    await append_ok(ledger, partition, within(1, 0, ("a", "aborted")), within(2, 0, ("b", "b1")))
    await append_ok(ledger, partition, abort(1), commit(2), within(1, 1, ("c", "c1")), commit(1))
    await append_ok(ledger, partition, within(3, 0, ("a", "open"), ("b", "open")), updates(("c", "late")))
    await ledger.settle()
    log_view, _images = look(world, "t")
    (before,) = (await log_view.refresh()).values()
    planned = splits([OffsetRange(before, 0, before.stable_end)], Deal(1 << 20))
    assert await ledger.clean() == 0, "the segment has records of an open transaction"
    await append_ok(ledger, partition, abort(3))
    await ledger.settle()
    assert await ledger.clean() == 1
    (view,) = (await log_view.refresh()).values()
    assert view.end == view.stable_end == 13
    kept = [(0, b"a0"), (4, b"b1"), (11, b"late")]
    for isolation in Isolation:
        assert rows_of(store.root, view, 0, view.end, isolation) == kept
    settings = ReadSettings(store.root, ("offset", "value"), COMMITTED, True, True)
    rows = [row for task in planned for arrow in read_stretches(task, settings) for row in arrow.to_pylist()]
    assert [row["value"] for row in rows] == [b"a0", b"b0", b"c0", b"b1", b"c1"]
    await world.close()


async def test_aborted_ranges_are_found_without_a_look_at_those_before(tmp_path: Path) -> None:
    """A plan carries the ranges that touch it, and no others; an open transaction holds none of them back."""
    world = World(DirectoryStore(str(tmp_path / "store")))
    ledger = await world.start()
    partition = own_partition(ledger, await world.create_topic("events"))
    for number in range(50):
        await append_ok(ledger, partition, data(1, number, b"x"), abort(1), batch(b"plain"))
    (view,) = (await look(world, "events")[0].refresh()).values()
    ((stretch,),) = splits([OffsetRange(view, 60, 66)], Deal(1 << 20))
    assert stretch.aborted == ((1, 60, 61), (1, 63, 64))
    ((stretch,),) = splits([OffsetRange(view, 61, 62)], Deal(1 << 20))
    assert stretch.aborted == ((1, 60, 61),), "also for a range of nothing but the marker"
    ((stretch,),) = splits([OffsetRange(view, 60, 66)], Deal(1 << 20), UNCOMMITTED)
    assert stretch.aborted == ()
    await world.close()


# Batches.


def test_the_store_alone(spark: SparkSession, workshop: Workshop) -> None:
    """No broker runs. The first records are settled, the others lie in the log."""
    workshop.create("events")
    workshop.append("events", data(1, 0, b"aborted"), data(2, 0, b"committed"), abort(1))
    workshop.settle()
    workshop.append("events", commit(2), data(1, 1, b"open"))
    workshop.write("events", [b"plain"])
    for option in ("isolation_level", "kafka_isolation_level"):
        seen = read(spark, workshop.store, "events", **{option: "read_committed"})
        assert values(in_order(seen)) == [b"committed"]
        everything = read(spark, workshop.store, "events", **{option: "read_uncommitted"})
        assert values(in_order(everything)) == [b"aborted", b"committed", b"open", b"plain"]
    assert values(in_order(read(spark, workshop.store, "events"))) == [b"committed"]
    workshop.append("events", commit(1))
    rows = in_order(read(spark, workshop.store, "events"))
    assert [(row.offset, bytes(row.value)) for row in rows] == [
        (1, b"committed"),
        (4, b"open"),
        (5, b"plain"),
    ]


def test_what_a_transactional_client_wrote_before_the_broker_died(spark: SparkSession) -> None:
    with Broker(settings={"auto.create.topics.enable": False}) as broker:
        create(broker, "events", 2)
        producer, other = (
            Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": one, "log_level": 0})
            for one in ("one", "other")
        )
        for one in (producer, other):
            one.init_transactions(60)
        for number, end in enumerate(
            (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction)
        ):
            producer.begin_transaction()
            for partition in (0, 1):
                producer.produce("events", b"%d %d" % (number, partition), partition=partition)
            assert producer.flush(30) == 0
            end(60)
        other.begin_transaction()
        other.produce("events", b"open", partition=1)
        assert other.flush(30) == 0
        broker.kill()
        seen = values(in_order(read(spark, broker.store, "events")))
        assert seen == [b"0 0", b"2 0", b"0 1", b"2 1"]
        everything = values(in_order(read(spark, broker.store, "events", isolation_level="read_uncommitted")))
        assert everything == [b"0 0", b"1 0", b"2 0", b"0 1", b"1 1", b"2 1", b"open"]


def test_bounds_beside_an_open_transaction(workshop: Workshop) -> None:
    workshop.create("events")
    workshop.write("events", [b"0", b"1"])
    workshop.append("events", data(1, 0, b"open"))
    workshop.write("events", [b"3", b"4"])

    def bounds(**given: object) -> tuple[int, int]:
        return batch_bounds(workshop.store, **given)

    assert bounds() == (0, 2)
    assert bounds(isolation_level="read_uncommitted") == (0, 5)
    end = json.dumps({"events": {"0": 4}})
    with pytest.raises(
        OptionError, match=r"endingOffsets asks for offset 4 .* that is open there begins at 2"
    ):
        bounds(endingOffsets=end)
    assert bounds(endingOffsets=end, isolation_level="read_uncommitted") == (0, 4)
    assert bounds(endingOffsets=end, failOnDataLoss=False) == (0, 2)
    with pytest.raises(OptionError, match=r"endingOffsets asks for offset 9 .* which ends at 2"):
        bounds(endingOffsets=json.dumps({"events": {"0": 9}}))
    # As with a consumer, one may start where nothing can be read yet.
    assert bounds(startingOffsets=end) == (4, 2)
    workshop.append("events", abort(1))
    assert bounds(endingOffsets=end) == (0, 4)
    assert bounds(startingOffsets=end) == (4, 6)


def test_a_log_that_begins_inside_an_open_transaction(workshop: Workshop) -> None:
    workshop.create("events")
    workshop.append("events", data(1, 0, b"0", b"1", b"2"))
    workshop.write("events", [b"3"])
    workshop.settle()
    workshop.delete_records("events", 2)
    assert batch_bounds(workshop.store) == (2, 2)
    workshop.delete_records("events", 4)
    assert batch_bounds(workshop.store) == (4, 4)
    workshop.append("events", abort(1))
    assert batch_bounds(workshop.store) == (4, 5)


def batch_bounds(store: str, **given: object) -> tuple[int, int]:
    """Where a batch read of the only partition starts and ends."""
    from penstock.arrow.reading import open_blocking
    from penstock.arrow.session import ReadSession

    options = {name.replace("_", "."): str(value) for name, value in given.items()}
    session = ReadSession(
        open_blocking(store),
        read_options({"store": store, "subscribe": "events", **options}, streaming=False),
    )
    views = session.refresh()
    (start,), (end,) = session.starts(views).values(), session.ends(views).values()
    return start, end


# Streams.


class Driver:
    """Calls a reader as Spark's driver does."""

    def __init__(self, store: str, **given: object) -> None:
        options = {name.replace("_", "."): str(value) for name, value in given.items()}
        options = {"store": store, "subscribe": "events", "startingOffsets": "earliest", **options}
        self.reader = StreamReader(read_options(options, streaming=True), full_schema(headers=False), 2)
        self.at: Any = self.reader.initialOffset()
        self.start = self.at

    @property
    def position(self) -> int:
        return int(self.at["events"]["0"])

    def next(self) -> list[int] | None:
        """The offsets of one micro-batch; None if there is nothing to plan."""
        self.start = self.at
        self.at = self.reader.latestOffset(self.start, self.reader.getDefaultReadLimit())
        return None if self.at is self.start else self.again()

    def again(self) -> list[int]:
        """Run the batch that was planned last."""
        found = []
        for task in self.reader.partitions(self.start, self.at):
            for arrow in self.reader.read(task):
                found += arrow.column("offset").to_pylist()
        return found

    def all(self) -> list[list[int]]:
        batches = []
        while (found := self.next()) is not None:
            batches.append(found)
        return batches


def test_a_stream_waits_for_open_transactions(workshop: Workshop) -> None:
    workshop.create("events")
    driver, other = Driver(workshop.store), Driver(workshop.store, isolation_level="read_uncommitted")
    workshop.append("events", data(1, 0, b"0"), data(2, 0, b"1"))
    assert driver.next() is None
    assert other.next() == [0, 1]
    workshop.append("events", commit(2))
    assert driver.next() is None, "what came before it in the log may still be aborted"
    assert other.next() == [], "a marker is an offset without a record"
    workshop.settle()
    workshop.append("events", abort(1))
    assert driver.next() == [1]
    assert (driver.position, other.next(), other.position) == (4, [], 4)
    assert driver.next() is None, "it does not ask for the marker for ever"
    assert driver.reader.reportLatestOffset() == driver.at


@LEVELS
@pytest.mark.parametrize("limit", [1, 2, 3, 7])
@pytest.mark.parametrize("available_now", [False, True])
def test_limited_micro_batches_over_gaps(
    workshop: Workshop, isolation: Isolation, limit: int, available_now: bool
) -> None:
    """Each batch moves on, though it may hold markers and aborted records only, and none is read twice."""
    workshop.create("events")
    history = History(Random(limit))
    for _ in range(25):
        workshop.append("events", history.batch())
    workshop.settle()
    for _ in range(10):
        workshop.append("events", history.batch())
    driver = Driver(workshop.store, isolation_level=isolation, maxOffsetsPerTrigger=limit)
    if available_now:
        driver.reader.prepareForTriggerAvailableNow()
        target = history.end_for(isolation)
        workshop.write("events", [b"later"])
    else:
        target = history.end_for(isolation)
    batches = driver.all()[: None if available_now else -(-target // limit)]
    assert [offset for found in batches for offset in found] == [
        row.offset for row in history.rows(isolation, high=target)
    ]
    assert driver.position == target
    assert len(batches) == -(-target // limit)


def test_a_batch_that_was_planned_beyond_an_open_transaction(workshop: Workshop) -> None:
    """A query at read_uncommitted ends between planning and running a batch, and goes on at read_committed:
    its next batch begins where this one was to end, so it must not be passed over."""
    workshop.create("events")
    workshop.append("events", data(1, 0, b"0"), data(2, 0, b"1"), commit(2))
    before = Driver(workshop.store, isolation_level="read_uncommitted")
    assert before.next() == [0, 1]
    after = Driver(workshop.store)
    after.start, after.at = before.start, before.at
    with pytest.raises(
        Exception, match=r"ends at offset 3 of .* that is open there begins at 0\. Start the query"
    ):
        after.again()
    workshop.append("events", abort(1))
    assert after.again() == [1]
    assert after.next() == []


def test_a_batch_that_was_planned_beyond_the_end(workshop: Workshop) -> None:
    workshop.create("events")
    workshop.write("events", [b"0", b"1"])
    for lenient in (False, True):
        driver = Driver(workshop.store, failOnDataLoss=not lenient)
        driver.at = {"events": {**driver.start["events"], "0": 9}}
        if lenient:
            assert driver.again() == [0, 1]
        else:
            with pytest.raises(Exception, match="Records 2 to 8 of topic 'events' partition 0 are gone"):
                driver.again()


@LEVELS
def test_a_query(spark: SparkSession, workshop: Workshop, tmp_path: Path, isolation: Isolation) -> None:
    """Spark itself, over two runs: what is open at the end of the first is read by the second."""
    workshop.create("events")
    workshop.append("events", data(1, 0, b"a", b"b"), data(2, 0, b"c"), abort(2), data(3, 0, b"d"))
    query = Query(
        spark, tmp_path / "checkpoint", store=workshop.store, subscribe="events", startingOffsets="earliest",
        isolation_level=isolation, maxOffsetsPerTrigger=2,
    )  # fmt: skip
    query.run()
    committed = isolation is COMMITTED
    assert query.offsets == ([] if committed else [0, 1, 2, 4])
    workshop.settle()
    workshop.append("events", commit(1), abort(3))
    workshop.write("events", [b"e"])
    query.run()
    assert query.offsets == ([0, 1, 7] if committed else [0, 1, 2, 4, 7])
