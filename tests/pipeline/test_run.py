"""Whole pipelines with a real Spark and a real broker: back-fill, following, restarts, errors."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.dataset as ds
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.arrow.reading import open_blocking
from penstock.pipeline import Json, Pipeline, PipelineError
from penstock.pipeline.frames import OFFSET, REASON
from penstock.pipeline.overview import names, overview
from penstock.pipeline.runner import Run, RunOptions
from penstock.pipeline.status import Status, key_of
from penstock.testing import Broker
from tests.spark.test_batch import create

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def write(broker: Broker, topic: str, values: list[bytes], partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5})
    for value in values:
        producer.produce(topic, value, b"k", partition)
    assert producer.flush(30) == 0


def read(broker: Broker, topic: str) -> list[Any]:
    """All messages of a topic."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "r", "enable.auto.commit": False}
    )
    found = []
    for number in consumer.list_topics(topic).topics[topic].partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), 30)
        consumer.assign([TopicPartition(topic, number, low)])
        while low < high:
            message = consumer.poll(30)
            assert message is not None and message.error() is None
            found.append(message)
            low = (message.offset() or 0) + 1
    consumer.close()
    return found


def events(first: int, last: int) -> list[bytes]:
    return [json.dumps({"id": number, "amount": number / 2}).encode() for number in range(first, last)]


def defined(topic: str, name: str) -> Pipeline:
    """A table, a topic of large ones, and sums by parity."""
    pipeline = Pipeline(name)
    pipeline.source(topic, value=Json("id long not null, amount double"))

    @pipeline.table("rows", partition_by=["odd"])
    def rows(events: DataFrame) -> DataFrame:
        return events.selectExpr("value.*", "value.id % 2 = 1 as odd", "partition", "offset")

    @pipeline.topic(f"{topic}-large", key="id")
    def large(events: DataFrame) -> DataFrame:
        return events.where("value.amount >= 5").select("value.id", "value.amount")

    return pipeline


class Place:
    """Where the pipelines of a test run."""

    def __init__(self, spark: SparkSession, broker: Broker, home: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.store = open_blocking(str(broker.store))
        self.home = home

    def run(self, pipeline: Pipeline, *, once: bool = True) -> Run:
        options = RunOptions(
            bootstrap=self.broker.bootstrap_servers,
            store=str(self.broker.store),
            file="test.py",
            location=str(self.home),
            once=once,
            interval="100 milliseconds",
        )
        return Run(pipeline, options, self.store)

    def go(self, pipeline: Pipeline) -> Status:
        return self.run(pipeline).go(lambda _status: None, self.spark)

    def table(self, pipeline: Pipeline) -> list[int]:
        data = ds.dataset(self.home / pipeline.name / "tables" / "rows", partitioning="hive")
        return sorted(data.to_table().column("id").to_pylist())


@pytest.fixture
def place(spark: SparkSession, broker: Broker, tmp_path: Path) -> Iterator[Place]:
    yield Place(spark, broker, tmp_path)


def test_a_pipeline_back_fills_goes_on_and_tells_of_bad_records(place: Place, request: Any) -> None:
    create(place.broker, "sales", 2)
    write(place.broker, "sales", [*events(0, 20), b"junk"])
    pipeline = defined("sales", "sales-pipeline")
    first = place.go(pipeline)
    assert first.state == "finished"
    assert place.table(pipeline) == list(range(20))
    large = sorted(json.loads(one.value())["id"] for one in read(place.broker, "sales-large"))
    assert large == list(range(10, 20))
    assert {one.key() for one in read(place.broker, "sales-large")} == {b"%d" % n for n in range(10, 20)}
    (letter,) = read(place.broker, "sales.dead")
    headers = dict(letter.headers())
    assert (letter.key(), letter.value(), headers[OFFSET]) == (b"k", b"junk", b"20")
    assert headers[REASON] == b"The value is not one JSON object."
    figures = {one.name: (one.rows_in, one.rows_out, one.lag) for one in first.outputs}
    assert figures == {"rows": (21, 20, 0), "sales-large": (21, 10, 0), "sales.dead": (21, 1, 0)}
    # The same definition goes on from there.
    write(place.broker, "sales", events(20, 30), 1)
    second = place.go(pipeline)
    assert place.table(pipeline) == list(range(30))
    assert len(read(place.broker, "sales-large")) == 20
    assert len(read(place.broker, "sales.dead")) == 1
    assert [one.rows_in for one in second.outputs] == [10, 10, 10]
    # And what is told without Spark agrees, also of what came since.
    write(place.broker, "sales", events(30, 33))
    found = overview(place.store, "sales-pipeline", second.reported_ms)
    assert found is not None and found.state == "finished"
    assert {one.name: one.lag for one in found.status.outputs} == {
        "rows": 3,
        "sales-large": 3,
        "sales.dead": 3,
    }
    assert "sales-pipeline" in names(place.store)


def test_a_batch_that_is_run_again_is_written_once(place: Place) -> None:
    """As after a driver that died when everything was written, and its checkpoint did not say so."""
    create(place.broker, "again", 2)
    write(place.broker, "again", events(0, 20))
    pipeline = defined("again", "again-pipeline")
    place.go(pipeline)
    checkpoints = place.home / "again-pipeline" / "checkpoints"
    for output in ("rows", "again-large"):
        (checkpoints / output / "commits" / "0").unlink()
        (checkpoints / output / "commits" / ".0.crc").unlink()
    orphan = place.home / "again-pipeline" / "tables" / "rows" / "_staging" / "0-dead" / "part-0.parquet"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"half a file")
    status = place.go(pipeline)
    assert [one.rows_in for one in status.outputs] == [20, 20, 0]
    assert place.table(pipeline) == list(range(20))
    assert len(read(place.broker, "again-large")) == 10
    assert not orphan.exists()


def test_a_pipeline_follows_until_it_is_stopped(place: Place) -> None:
    create(place.broker, "live", 1)
    write(place.broker, "live", events(0, 12))
    pipeline = defined("live", "live-pipeline")
    run = place.run(pipeline, once=False)
    seen: list[int] = []
    changed = threading.Condition()

    def show(status: Status) -> None:
        with changed:
            seen.append(sum(one.rows_out for one in status.outputs if one.name == "rows"))
            changed.notify_all()

    ended: list[Status] = []

    def go() -> None:
        try:
            ended.append(run.go(show, place.spark))
        finally:
            with changed:
                seen.append(-1)  # Over: nobody is to wait for more.
                changed.notify_all()

    thread = threading.Thread(target=go)
    thread.start()
    try:
        with changed:
            assert changed.wait_for(lambda: bool(seen) and seen[-1] in (12, -1), 300)
            assert seen[-1] == 12
        with pytest.raises(
            PipelineError, match=r"^The pipeline 'live-pipeline' is being run by process \d+ on"
        ):
            place.go(pipeline)
        write(place.broker, "live", events(12, 15))
        with changed:
            assert changed.wait_for(lambda: seen[-1] in (15, -1), 300)
            assert seen[-1] == 15
    finally:
        run.stop()
        thread.join(60)
    assert ended[0].state == "stopped"
    assert place.table(pipeline) == list(range(15))


def test_a_run_that_was_killed_is_told_and_replaced(place: Place) -> None:
    create(place.broker, "killed", 1)
    write(place.broker, "killed", events(0, 3))
    pipeline = defined("killed", "killed-pipeline")
    status = place.go(pipeline)
    status.state, status.pid, status.process_started = "running", 2**22 + 1, 5
    place.store.run(place.store.store.put(key_of("killed-pipeline"), msgspec.json.encode(status)))
    found = overview(place.store, "killed-pipeline", status.reported_ms + 4000)
    assert found is not None and found.state == "crashed"
    assert "is gone, last heard of 4 s ago" in found.sentence
    assert place.go(pipeline).state == "finished"


def test_dead_letters_find_room_and_share_their_topic_with_an_output(place: Place) -> None:
    """Records that fit their topic just so, one by its compression, and rows of the pipeline's own."""
    create(place.broker, "letters", 1)
    write(place.broker, "letters", [b'{"id": 1, "amount": -5}', b'{"id": 2}'])
    large, huge = random.Random(1).randbytes(1_048_450), b"y" * 3_000_000
    for value, codec in ((large, "none"), (huge, "lz4")):
        settings = {"bootstrap.servers": place.broker.bootstrap_servers, "compression.type": codec}
        producer = Producer({**settings, "message.max.bytes": 10_000_000})
        producer.produce("letters", value, b"k")
        assert producer.flush(30) == 0
    pipeline = Pipeline("letters")
    pipeline.source("letters", value=Json("id long not null, amount double"))

    @pipeline.topic("letters.dead")
    def negative(letters: DataFrame) -> DataFrame:
        return letters.where("value.amount < 0").select("value.id")

    assert place.go(pipeline).state == "finished"
    assert place.go(pipeline).state == "finished"
    found = sorted((message.value() for message in read(place.broker, "letters.dead")), key=len)
    assert found == [b'{"id":1}', large, huge]


def test_what_is_wrong_is_one_sentence(place: Place) -> None:
    create(place.broker, "wrong", 1)
    missing = Pipeline("missing")
    missing.source("nowhere", value=Json("id long"))
    missing.table("rows")(lambda events: events.select("value.id"))
    with pytest.raises(PipelineError, match=r"^The topic 'nowhere' does not exist\.$"):
        place.go(missing)
    column = Pipeline("column")
    column.source("wrong", value=Json("id long"))
    column.table("rows")(lambda events: events.select("value.idd"))
    with pytest.raises(PipelineError, match=r"^The output 'rows' cannot be made: .*`idd`.*") as told:
        place.go(column)
    assert "\n" not in str(told.value) and "SQLSTATE" not in str(told.value)
    found = overview(place.store, "column", 0)
    assert found is not None and found.state == "failed" and "idd" in found.sentence
    write(place.broker, "wrong", [b'{"id": 0}'])
    broken = Pipeline("broken")
    broken.source("wrong", value=Json("id long"))
    broken.table("rows")(lambda events: events.selectExpr("10 / value.id as share"))
    with pytest.raises(PipelineError, match=r"^The output 'rows' failed: .*[Dd]ivision by zero") as told:
        place.go(broken)
    assert "\n" not in str(told.value)
