"""`spark.readStream.format("penstock")` with a real Spark: nothing lost, nothing twice, whatever happens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.spark.options import read_options
from penstock.spark.read.schema import full_schema
from penstock.spark.read.stream import StreamReader
from penstock.testing import Broker
from tests.spark.streams import started
from tests.spark.test_batch import create, produce
from tests.spark.workshop import Workshop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Query:
    """A streaming query whose rows land in this process, batch by batch: topic, partition, offset, value."""

    def __init__(self, spark: SparkSession, checkpoint: Path, **options: object) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._options = {name.replace("_", "."): str(value) for name, value in options.items()}
        self.batches: list[list[tuple[str, int, int, bytes]]] = []
        self._arrived = threading.Lock()

    def _take(self, frame: DataFrame, _batch: int) -> None:
        rows = [(row.topic, row.partition, row.offset, bytes(row.value)) for row in frame.collect()]
        with self._arrived:
            self.batches.append(sorted(rows))

    @property
    def rows(self) -> list[tuple[str, int, int, bytes]]:
        return sorted(row for batch in self.batches for row in batch)

    @property
    def offsets(self) -> list[int]:
        return [offset for _topic, _partition, offset, _value in self.rows]

    def start(self, **trigger: Any) -> StreamingQuery:
        frame = self._spark.readStream.format("penstock").options(**self._options).load()
        writer = frame.writeStream.foreachBatch(self._take).option(
            "checkpointLocation", str(self._checkpoint)
        )
        return started(writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start)

    def run(self) -> list[tuple[str, int, int, bytes]]:
        """Everything that is there now, and stop: the new rows."""
        before = len(self.rows)
        query = self.start(availableNow=True)
        assert query.awaitTermination(500)
        return self.rows[before:] if before else self.rows


@pytest.fixture
def checkpoint(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "checkpoint"


def test_the_tail_is_followed_and_a_restart_goes_on(
    spark: SparkSession, broker: Broker, checkpoint: Path
) -> None:
    create(broker, "tail", 2)
    query = Query(spark, checkpoint, store=broker.store, subscribe="tail", startingOffsets="earliest")
    written = 0
    for _ in range(2):
        running = query.start()
        for _ in range(3):
            produce(broker, "tail", "lz4", [(None, b"%d" % at, []) for at in range(10)], written % 2)
            written += 10
            running.processAllAvailable()
            assert len(query.rows) == written
        assert running.lastProgress is not None
        ends = json.loads(running.lastProgress["sources"][0]["endOffset"])["tail"]
        assert ends["0"] + ends["1"] == written
        running.stop()
        # Written while nobody looks.
        produce(broker, "tail", "none", [(None, b"x", [])] * 5, 1)
        written += 5
    query.run()
    assert len(query.rows) == len(set(query.rows)) == written


def test_the_environment_that_queries_share_does_not_grow(
    spark: SparkSession, broker: Broker, checkpoint: Path
) -> None:
    """Spark sends it with the tasks of one query while another one starts."""
    create(broker, "shared", 1)
    produce(broker, "shared", "none", [(None, b"x", [])], 0)
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    environment = manager.lookupDataSource("penstock").dataSourceCls().envVars()
    before = set(environment)
    query = Query(spark, checkpoint, store=broker.store, subscribe="shared", startingOffsets="earliest")
    assert len(query.run()) == 1
    assert before
    assert set(environment) == before


def test_brokers_die_and_come_back(spark: SparkSession, checkpoint: Path) -> None:
    with Broker(process=True, settings={"auto.create.topics.enable": False}) as mortal:
        create(mortal, "events")
        query = Query(spark, checkpoint, store=mortal.store, subscribe="events", startingOffsets="earliest")
        running = query.start()
        for round_number in range(3):
            produce(mortal, "events", "zstd", [(None, b"%d" % at, []) for at in range(20)])
            if round_number < 2:
                mortal.kill()
            running.processAllAvailable()
            assert query.offsets == list(range(20 * (round_number + 1)))
            if round_number < 2:
                mortal.start()
        running.stop()


def test_available_now_in_bounded_batches(spark: SparkSession, workshop: Workshop, checkpoint: Path) -> None:
    workshop.create("events", 2)
    for index in range(2):
        workshop.write("events", [b"x" * 100] * 50, index)
    options = {"store": workshop.store, "subscribe": "events", "startingOffsets": "earliest"}
    by_records = Query(spark, checkpoint / "records", maxOffsetsPerTrigger=40, **options)
    assert len(by_records.run()) == 100
    assert [len(batch) for batch in by_records.batches] == [40, 40, 20]
    assert by_records.run() == []
    by_bytes = Query(spark, checkpoint / "bytes", maxBytesPerTrigger=4000, **options)
    assert len(by_bytes.run()) == 100
    assert 2 <= len(by_bytes.batches) <= 6
    assert by_bytes.rows == by_records.rows


def test_only_what_follows_the_first_batch_waits_for_a_number_of_records(workshop: Workshop) -> None:
    workshop.create("events")
    workshop.write("events", [b"x"] * 3)
    asked = {"store": workshop.store, "subscribe": "events", "startingOffsets": "earliest"}
    options = read_options({**asked, "minOffsetsPerTrigger": "10"}, streaming=True)
    reader = StreamReader(options, full_schema(headers=False), 2)

    def admitted(start: dict[str, dict[str, int | str]]) -> dict[str, dict[str, int | str]]:
        return reader.latestOffset(start, reader.getDefaultReadLimit())

    first = admitted(reader.initialOffset())
    assert first["events"]["0"] == 3
    workshop.write("events", [b"x"] * 3)
    assert admitted(first) == first
    workshop.write("events", [b"x"] * 7)
    assert admitted(first)["events"]["0"] == 13


def test_what_comes_after_the_start_of_available_now_waits(
    spark: SparkSession, workshop: Workshop, checkpoint: Path
) -> None:
    workshop.create("events")
    workshop.write("events", [b"x"] * 10)

    class Writing(Query):
        def _take(self, frame: DataFrame, batch: int) -> None:
            super()._take(frame, batch)
            workshop.write("events", [b"more"])

    query = Writing(
        spark,
        checkpoint,
        store=workshop.store,
        subscribe="events",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=5,
    )
    query.run()
    assert query.offsets == list(range(10))
    query.run()
    assert query.offsets == list(range(12))


def test_latest_is_where_a_new_query_starts(
    spark: SparkSession, workshop: Workshop, checkpoint: Path
) -> None:
    workshop.create("events")
    workshop.write("events", [b"before"])
    query = Query(spark, checkpoint, store=workshop.store, subscribe="events")
    assert query.run() == []
    workshop.write("events", [b"after"])
    assert [row[3] for row in query.run()] == [b"after"]


def test_new_partitions_and_new_topics_are_read_from_their_beginning(
    spark: SparkSession, workshop: Workshop, checkpoint: Path
) -> None:
    workshop.create("events-a")
    workshop.write("events-a", [b"1"])
    query = Query(
        spark, checkpoint, store=workshop.store, subscribePattern="events-.*", startingOffsets="earliest"
    )
    assert len(query.run()) == 1
    workshop.grow("events-a", 2)
    workshop.write("events-a", [b"2"], 1)
    workshop.create("events-b")
    workshop.write("events-b", [b"3"])
    workshop.create("other")
    workshop.write("other", [b"4"])
    query.run()
    assert [(topic, partition, value) for topic, partition, _offset, value in query.rows] == [
        ("events-a", 0, b"1"),
        ("events-a", 1, b"2"),
        ("events-b", 0, b"3"),
    ]


@pytest.mark.parametrize("lenient", [False, True])
def test_a_topic_that_is_deleted_and_created_again(
    spark: SparkSession, workshop: Workshop, checkpoint: Path, lenient: bool
) -> None:
    workshop.create("events")
    workshop.write("events", [b"old 1", b"old 2"])
    query = Query(
        spark,
        checkpoint,
        store=workshop.store,
        subscribe="events",
        startingOffsets="earliest",
        failOnDataLoss=not lenient,
    )
    assert len(query.run()) == 2
    workshop.delete("events")
    workshop.create("events")
    workshop.write("events", [b"new 1", b"new 2", b"new 3"])
    if not lenient:
        with pytest.raises(Exception, match="The topic 'events' was deleted and created again"):
            query.run()
        return
    query.run()
    assert sorted(row[3] for row in query.rows) == [b"new 1", b"new 2", b"new 3", b"old 1", b"old 2"]


@pytest.mark.parametrize("lenient", [False, True])
def test_records_that_went_before_they_were_read(
    spark: SparkSession, workshop: Workshop, checkpoint: Path, lenient: bool
) -> None:
    workshop.create("events")
    workshop.write("events", [b"x"] * 5)
    query = Query(
        spark,
        checkpoint,
        store=workshop.store,
        subscribe="events",
        startingOffsets="earliest",
        failOnDataLoss=not lenient,
    )
    assert len(query.run()) == 5
    for _ in range(2):
        workshop.write("events", [b"y"] * 10)
        workshop.settle()
    workshop.delete_records("events", 15)
    if not lenient:
        with pytest.raises(Exception, match="Records 5 to 14 of topic 'events' partition 0 are gone"):
            query.run()
        return
    query.run()
    assert query.offsets == [*range(5), *range(15, 25)]


def test_a_checkpoint_of_the_connector_is_taken_over(
    spark: SparkSession, workshop: Workshop, checkpoint: Path
) -> None:
    """Spark's own connector writes the same positions, without topic ids."""
    workshop.create("events")
    workshop.write("events", [b"%d" % at for at in range(10)])
    query = Query(spark, checkpoint, store=workshop.store, subscribe="events", startingOffsets="earliest")
    query.run()
    newest = max(
        (checkpoint / "offsets").iterdir(), key=lambda file: int(file.name) if file.name.isdigit() else -1
    )
    lines = newest.read_text().splitlines()
    lines[-1] = json.dumps({"events": {"0": 7}}, separators=(",", ":"))
    newest.write_text("\n".join(lines))
    crc = newest.with_name(f".{newest.name}.crc")
    crc.unlink(missing_ok=True)
    query.batches.clear()
    query.run()
    assert query.offsets == [7, 8, 9]


def test_progress_is_that_of_a_consumer_group(spark: SparkSession, broker: Broker, checkpoint: Path) -> None:
    create(broker, "grouped", 2)
    for partition in range(2):
        produce(broker, "grouped", "none", [(None, b"x", [])] * 10, partition)
    query = Query(
        spark,
        checkpoint,
        store=broker.store,
        subscribe="grouped",
        startingOffsets="earliest",
        group_id="spark-job",
    )
    assert len(query.run()) == 20
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "spark-job"})
    asked = [TopicPartition("grouped", partition) for partition in range(2)]
    assert [one.offset for one in consumer.committed(asked, 10)] == [10, 10]
    consumer.close()


def test_no_broker_to_commit_to_is_no_reason_to_stop(
    spark: SparkSession, workshop: Workshop, checkpoint: Path
) -> None:
    workshop.create("events")
    workshop.write("events", [b"x"])
    query = Query(
        spark, checkpoint, store=workshop.store, subscribe="events", startingOffsets="earliest", group_id="g"
    )
    assert len(query.run()) == 1


def test_a_missing_topic(spark: SparkSession, workshop: Workshop, checkpoint: Path) -> None:
    with pytest.raises(Exception, match="The topic 'nothing' does not exist"):
        Query(spark, checkpoint, store=workshop.store, subscribe="nothing").run()
