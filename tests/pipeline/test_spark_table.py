"""`penstock.spark.table` with a real Spark, a real broker, and Iceberg tables that pipelines write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

import penstock.spark
from penstock.arrow.errors import OptionError
from penstock.arrow.reading import open_blocking
from penstock.pipeline import Pipeline, Text
from penstock.pipeline.frames import changed, good
from penstock.pipeline.runner import Run, RunOptions
from penstock.spark.errors import TableError
from penstock.spark.tables import reading
from penstock.testing import Broker
from tests.spark.test_batch import NASTY, create, produce

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest.importorskip("pyiceberg")

UNCOMMITTED = {"isolation.level": "read_uncommitted"}


def as_they_are(orders: DataFrame) -> DataFrame:
    return orders


def large_ones(orders: DataFrame) -> DataFrame:
    return orders.where("length(value) > 3")


class Lake:
    """A topic, pipelines that keep tables of it, and what was written."""

    def __init__(self, spark: SparkSession, broker: Broker, home: Path, topic: str) -> None:
        self.spark = spark
        self.broker = broker
        self.home = home
        self.topic = topic
        self.written: dict[int, list[bytes]] = {}

    def create(self, partitions: int = 2) -> Lake:
        create(self.broker, self.topic, partitions)
        return self

    def write(self, count: int, *partitions: int) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers})
        for partition in partitions or (0, 1):
            known = self.written.setdefault(partition, [])
            for _ in range(count):
                known.append(b"%d-%d" % (partition, len(known)))
                producer.produce(self.topic, known[-1], b"k", partition)
        assert producer.flush(30) == 0

    def keep(
        self, name: str = "lake", function: Callable[[DataFrame], DataFrame] = as_they_are, **source: Any
    ) -> None:
        """Bring the table up to date."""
        pipeline = Pipeline(f"{self.topic}-{name}")
        pipeline.source(self.topic, **source)
        pipeline.table("rows", format="iceberg")(function)
        options = RunOptions(
            bootstrap=None,
            store=str(self.broker.store),
            file="test.py",
            location=str(self.home),
            once=True,
        )
        run = Run(pipeline, options, open_blocking(str(self.broker.store)))
        assert run.go(lambda _status: None, self.spark).state == "finished"

    def path(self, name: str = "lake") -> Path:
        return self.home / f"{self.topic}-{name}" / "tables" / "rows"

    def table(self, **options: Any) -> DataFrame:
        return penstock.spark.table(self.spark, self.broker.store, self.topic, **options)

    def found(self, frame: DataFrame | None = None) -> dict[int, list[bytes]]:
        """The values of each partition, by offset; offsets have no gaps unless somebody made them."""
        rows = (self.table() if frame is None else frame).orderBy("partition", "offset").collect()
        values: dict[int, list[bytes]] = {}
        for row in rows:
            values.setdefault(row.partition, []).append(bytes(row.value))
        assert len({(row.partition, row.offset) for row in rows}) == len(rows)
        return values

    def in_table(self) -> int:
        held, _tail = reading.look(reading.Wanted(str(self.broker.store), self.topic))
        if held is None or not held.files:
            return 0
        return self.spark.read.parquet(*held.files).count()


@pytest.fixture
def lake(spark: SparkSession, broker: Broker, tmp_path: Path, request: Any) -> Iterator[Lake]:
    # As in the session that a pipeline has of its own: Iceberg does not know Spark's times of 96 bits.
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    name = request.node.name.removeprefix("test_").partition("[")[0]
    yield Lake(spark, broker, tmp_path, name.replace("_", "-")[:80])
    spark.conf.unset("spark.sql.parquet.outputTimestampType")


def test_each_record_is_there_once_before_in_and_beyond_the_table(lake: Lake) -> None:
    lake.create()
    assert lake.found() == {}
    lake.write(10)
    assert (lake.found(), lake.in_table()) == (lake.written, 0)
    lake.keep()
    assert (lake.found(), lake.in_table()) == (lake.written, 20)
    lake.write(5)
    assert (lake.found(), lake.in_table()) == (lake.written, 20)
    fixed = lake.table()
    before = {partition: list(values) for partition, values in lake.written.items()}
    # The frame was made, and others go on: it neither doubles what the table got since, nor has what is new.
    lake.write(3)
    lake.keep()
    assert lake.in_table() == 36
    assert lake.found(fixed) == before
    assert lake.found() == lake.written


def test_rows_of_the_table_are_those_of_the_log_in_every_column(lake: Lake) -> None:
    lake.create(1)
    produce(lake.broker, lake.topic, "none")
    from_log = lake.table().orderBy("offset").collect()
    lake.keep()
    assert lake.in_table() == len(NASTY) == len(from_log)
    assert lake.table().orderBy("offset").collect() == from_log
    produce(lake.broker, lake.topic, "none")
    both = lake.table(columns=["headers", "offset", "value"])
    assert both.columns == ["headers", "offset", "value"]
    rows = both.orderBy("offset").collect()
    assert [row.headers for row in rows] == [row.headers for row in from_log] * 2
    with pytest.raises(OptionError, match="There is no column 'values', only key, value,"):
        lake.table(columns=["values"])


def test_a_pipeline_that_makes_other_rows_says_why(lake: Lake) -> None:
    lake.create()
    lake.write(3)
    lake.keep(function=large_ones)
    assert lake.found() == lake.written  # Nobody takes it for the topic's table,
    with pytest.raises(TableError, match="as they are: its function makes other rows of them"):
        lake.table(table=str(lake.path()))  # unless somebody says so.


@pytest.mark.parametrize(
    ("source", "function", "why"),
    [
        ({}, as_they_are, ""),
        ({}, lambda orders: orders.select("*"), ""),
        ({"options": {"maxOffsetsPerTrigger": "10"}}, as_they_are, ""),
        ({}, large_ones, "its function makes other rows of them"),
        ({"value": Text()}, as_they_are, "the value is decoded"),
        ({"start": "latest"}, as_they_are, "its source starts at 'latest'"),
        ({"options": UNCOMMITTED}, as_they_are, "its source has the option 'isolation.level'"),
    ],
)
def test_which_rows_are_records_as_they_are(
    spark: SparkSession, source: Any, function: Any, why: str
) -> None:
    pipeline = Pipeline("any")
    made = pipeline.source("orders", **source)
    pipeline.table("rows", format="iceberg")(function)
    schema = "key binary, value binary, topic string, partition int, offset long, headers string"
    frame = good(made, spark.createDataFrame([], schema))
    assert changed(pipeline.outputs["rows"], [frame], function(frame)) == why


def test_what_is_open_or_aborted_is_in_neither_part(lake: Lake) -> None:
    lake.create(1)
    settings = {"bootstrap.servers": lake.broker.bootstrap_servers, "transactional.id": lake.topic}
    producer = Producer(settings)
    producer.init_transactions(30)

    def send(*values: bytes) -> None:
        producer.begin_transaction()
        for value in values:
            producer.produce(lake.topic, value, partition=0)
        assert producer.flush(30) == 0

    send(b"a", b"b")
    producer.commit_transaction(30)
    send(b"never")
    producer.abort_transaction(30)
    lake.keep()
    assert lake.in_table() == 2
    send(b"never, either")
    producer.abort_transaction(30)
    send(b"c")
    producer.commit_transaction(30)
    send(b"open")
    assert lake.found() == {0: [b"a", b"b", b"c"]}
    producer.commit_transaction(30)
    assert lake.found() == {0: [b"a", b"b", b"c", b"open"]}
