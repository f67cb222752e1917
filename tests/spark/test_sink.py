"""`write` and `writeStream.format("penstock")` with a real Spark."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka.partitioner.default import murmur2

import penstock.spark
from penstock.client import Client
from penstock.testing import Broker
from tests.spark.streams import started
from tests.spark.test_batch import create, in_order, plain, produce, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def consume(
    broker: Broker, topic: str, partitions: int
) -> list[tuple[int, bytes | None, bytes | None, object]]:
    """As a Kafka client reads it."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found: list[tuple[int, bytes | None, bytes | None, object]] = []
    ended = 0
    while ended < partitions:
        message = consumer.poll(120)
        assert message is not None
        if message.error():
            ended += 1
            continue
        found.append((message.partition() or 0, message.key(), message.value(), message.headers()))
    consumer.close()
    return found


def save(frame: DataFrame, broker: Broker, topic: str = "", **options: str) -> None:
    writer = frame.write.format("penstock").mode("append").option("store", broker.store)
    if topic:
        writer = writer.option("topic", topic)
    writer.options(**options).save()


def test_rows_come_back(spark: SparkSession, broker: Broker) -> None:
    create(broker, "out", 3)
    rows = [
        (b"a", b"1", [("h", b"x"), ("h", None)]),
        (None, b"", None),
        (b"", None, []),
        (b"b", b"\x00\xff", [("größe", b"")]),
    ]
    schema = "key binary, value binary, headers array<struct<key:string,value:binary>>"
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        options = {"kafka.compression.type": codec, "includeHeaders": "true"}
        save(spark.createDataFrame(rows, schema), broker, "out", **options)
    found = sorted(((key, value, headers) for _p, key, value, headers in consume(broker, "out", 3)), key=repr)
    wanted = sorted(((key, value, headers or None) for key, value, headers in rows * 5), key=repr)
    assert found == wanted


def test_keys_go_where_kafka_sends_them(spark: SparkSession, broker: Broker) -> None:
    create(broker, "keyed", 7)
    frame = spark.range(2000).selectExpr("concat('key ', id) as key", "cast(id as string) as value")
    save(frame, broker, "keyed")
    found = consume(broker, "keyed", 7)
    assert len(found) == 2000
    for partition, key, _value, _headers in found:
        assert key is not None
        assert partition == (murmur2(key) & 0x7FFFFFFF) % 7


def test_topics_and_partitions_by_column(spark: SparkSession, broker: Broker) -> None:
    create(broker, "left", 2)
    create(broker, "right", 2)
    frame = spark.range(100).selectExpr(
        "if(id % 2 = 0, 'left', 'right') as topic",
        "cast(id % 4 div 2 as int) as partition",
        "cast(id as string) as value",
    )
    save(frame, broker)
    for topic, rest in (("left", 0), ("right", 1)):
        rows = in_order(read(spark, broker.store, topic))
        assert len(rows) == 50
        assert all(int(bytes(row.value)) % 4 == row.partition * 2 + rest for row in rows)


def test_a_thread_of_the_users_own(spark: SparkSession, broker: Broker) -> None:
    create(broker, "threaded")

    def work() -> None:
        penstock.spark.register(spark)
        save(spark.range(3).selectExpr("cast(id as string) as value"), broker, "threaded")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
    assert read(spark, broker.store, "threaded").count() == 3


def test_timestamps(spark: SparkSession, broker: Broker) -> None:
    create(broker, "timed")
    frame = spark.sql("select 'x' as value, timestamp'2024-02-03 04:05:06.789' as timestamp")
    save(frame, broker, "timed")
    (row,) = read(spark, broker.store, "timed").collect()
    assert row.timestamp.isoformat() == "2024-02-03T04:05:06.789000"


@pytest.mark.parametrize(
    ("select", "options", "sentence"),
    [
        ("'a' as key", {"topic": "t"}, "The rows to write have no column 'value'."),
        ("'a' as value", {}, "Set the option 'topic', or give the rows a column 'topic'."),
        ("1 as value", {"topic": "t"}, "The column 'value' is to be binary or string, not int."),
        ("'a' as value", {"topic": "missing"}, "The topic 'missing' does not exist"),
        (
            "'a' as value, 9 as partition",
            {"topic": "t"},
            "A row names partition 9 of topic 't', which has 1.",
        ),
        ("'a' as value", {"topic": "t", "kafka.compression.type": "x"}, "is one of none, gzip"),
        ("'a' as value", {"topics": "t"}, "The option 'topics' is not one of format('penstock')."),
    ],
)
def test_mistakes(
    spark: SparkSession, broker: Broker, select: str, options: dict[str, str], sentence: str
) -> None:
    with Client(broker.bootstrap_servers) as client:
        if not any(topic.name == "t" for topic in client.metadata().topics):
            create(broker, "t")
    with pytest.raises(Exception) as caught:
        save(spark.sql(f"select {select}"), broker, **options)
    assert sentence in str(caught.value)


def pipe(
    spark: SparkSession, broker: Broker, source: str, target: str, checkpoint: Path, batches_of: int
) -> None:
    """Copy what is there from topic to topic, and stop."""
    frame = (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batches_of)
        .load()
    )
    writer = (
        frame.select("key", "value")
        .writeStream.format("penstock")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("topic", target)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
    )
    assert started(writer.start).awaitTermination(500)


def test_topic_to_topic_and_a_commit_that_the_checkpoint_does_not_know(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """Killed between the commit of a micro-batch and its note in the checkpoint, the query runs that batch
    again. Taking the note away is the same thing, at will."""
    create(broker, "source", 2)
    create(broker, "target", 3)
    checkpoint = tmp_path / "checkpoint"
    written: list[bytes] = []
    for round_number in range(3):
        values = [b"%d-%d" % (round_number, at) for at in range(40)]
        for partition in range(2):
            records = [(value, value, []) for value in values[partition::2]]  # type: ignore[var-annotated]
            produce(broker, "source", "lz4", records, partition)
        written += values
        pipe(spark, broker, "source", "target", checkpoint, 15)
        notes = [file for file in (checkpoint / "commits").iterdir() if file.name.isdigit()]
        newest = max(notes, key=lambda file: int(file.name))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink()
    pipe(spark, broker, "source", "target", checkpoint, 15)
    rows = in_order(read(spark, broker.store, "target"))
    assert sorted(plain(row.value) or b"" for row in rows) == sorted(written)
