"""`spark.read.format("penstock")` with a real Spark: the rows that were written, brokers up or down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock import Log
from penstock.testing import Broker
from penstock.wire.batch import Record, build_batch
from tests.spark.workshop import TIME, Workshop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

NASTY: tuple[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]], ...] = (
    (b"key", b"value", []),
    (None, b"no key", []),
    (b"no value", None, []),
    (None, None, []),
    (b"", b"", []),
    (b"h", b"headers", [("a", b"1"), ("a", b"2"), ("b", None), ("", b""), ("größe", b"\xff\x00")]),
    (b"\x00\xff", bytes(range(256)), [("x" * 300, b"y" * 3000)]),
    (b"large", b"z" * 700_000, []),
)


def create(broker: Broker, topic: str, partitions: int = 1, config: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for done in admin.create_topics([NewTopic(topic, partitions, 1, config=config or {})]).values():
        done.result(10)


def produce(broker: Broker, topic: str, codec: str, rows: Sequence[Any] = NASTY, partition: int = 0) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec, "linger.ms": 20}
    )
    for at, (key, value, headers) in enumerate(rows):
        producer.produce(topic, value, key, partition, headers=headers or None, timestamp=TIME + at)
    assert producer.flush(20) == 0


def read(spark: SparkSession, store: str, topic: str, schema: str = "", **options: Any) -> DataFrame:
    reader = spark.read.format("penstock").option("store", store).option("subscribe", topic)
    for name, value in options.items():
        reader = reader.option(name.replace("_", "."), str(value))
    if schema:
        reader = reader.schema(schema)
    return reader.load()


def values(rows: Sequence[Row]) -> list[bytes]:
    return [bytes(row.value) for row in rows]


def plain(value: bytearray | bytes | None) -> bytes | None:
    return None if value is None else bytes(value)


def in_order(frame: DataFrame) -> list[Row]:
    return frame.orderBy("topic", "partition", "offset").collect()


@pytest.mark.parametrize("time_type", ["CreateTime", "LogAppendTime"])
def test_rows_are_what_was_written(spark: SparkSession, broker: Broker, time_type: str) -> None:
    topic = f"rows-{time_type}"
    create(broker, topic, config={"message.timestamp.type": time_type})
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    for codec in codecs:
        produce(broker, topic, codec)
    rows = in_order(read(spark, broker.store, topic, includeHeaders=True))
    expected = [(codec, at, *one) for codec in codecs for at, one in enumerate(NASTY)]
    assert len(rows) == len(expected)
    for offset, (row, (_codec, at, key, value, headers)) in enumerate(zip(rows, expected, strict=True)):
        assert (row.topic, row.partition, row.offset) == (topic, 0, offset)
        assert (plain(row.key), plain(row.value)) == (key, value)
        found = None if row.headers is None else [(h.key, plain(h.value)) for h in row.headers]
        assert found == ([(name, value) for name, value in headers] or None)
        assert row.timestampType == int(time_type == "LogAppendTime")
        if not row.timestampType:
            assert row.timestamp.timestamp() == pytest.approx((TIME + at) / 1000)


def test_the_columns_and_types_are_those_of_the_connector(spark: SparkSession, broker: Broker) -> None:
    create(broker, "columns")
    columns = (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int"
    )
    headers = "headers:array<struct<key:string,value:binary>>"
    assert read(spark, broker.store, "columns").schema.simpleString() == f"{columns}>"
    with_headers = read(spark, broker.store, "columns", includeHeaders=True).schema
    assert with_headers.simpleString() == f"{columns},{headers}>"
    assert all(field.nullable for field in with_headers.fields)
    assert read(spark, broker.store, "columns").collect() == []


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_scan_without_spark_gives_the_same(
    spark: SparkSession, broker: Broker, isolation: Literal["read_committed", "read_uncommitted"]
) -> None:
    topic = f"same-{isolation}"
    create(broker, topic, 3)
    for partition, codec in enumerate(("none", "zstd", "snappy")):
        produce(broker, topic, codec, partition=partition)
    for end in ("commit_transaction", "abort_transaction", "flush"):
        name = f"{topic}-{end}"
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic, end.encode(), partition=1)
        assert producer.flush(30) == 0
        getattr(producer, end)()
    frame = read(spark, broker.store, topic, includeHeaders=True, isolation_level=isolation)
    by_spark = frame.orderBy("partition", "offset").toArrow()
    with Log(broker.store) as log:
        scanned = log.topic(topic).scan(isolation=isolation).read_all()
    assert scanned.num_rows == 3 * len(NASTY) + (1 if isolation == "read_committed" else 3)
    assert scanned.schema.types == by_spark.schema.types
    assert scanned.schema.names == by_spark.schema.names
    assert scanned.to_pylist() == by_spark.to_pylist()


def test_brokers_alone_lead_to_the_store(spark: SparkSession, broker: Broker) -> None:
    """A job changes one word: it keeps kafka.bootstrap.servers."""
    create(broker, "one-word", 2)
    produce(broker, "one-word", "none", [(None, b"a", [])], 1)
    frame = (
        spark.read.format("penstock")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("subscribe", "one-word")
        .option("startingOffsets", "earliest")
        .load()
    )
    assert [(row.partition, bytes(row.value)) for row in frame.collect()] == [(1, b"a")]


def test_all_brokers_dead(spark: SparkSession) -> None:
    with Broker(process=True, settings={"auto.create.topics.enable": False}) as mortal:
        create(mortal, "events", 3)
        rows: list[Any] = [(b"%d" % at, b"%d" % at, []) for at in range(100)]
        for partition in range(3):
            produce(mortal, "events", "lz4", rows, partition)
        mortal.kill()
        found = in_order(read(spark, mortal.store, "events"))
        assert values(found) == [value for _ in range(3) for _key, value, _headers in rows]


def test_chosen_columns_only(spark: SparkSession, workshop: Workshop) -> None:
    workshop.create("events")
    workshop.write("events", [b"a", b"b", b"c"])
    frame = read(spark, workshop.store, "events", "offset long")
    assert [tuple(row) for row in frame.orderBy("offset").collect()] == [(0,), (1,), (2,)]
    frame = read(spark, workshop.store, "events", "value binary, partition int")
    assert sorted((bytes(row.value), row.partition) for row in frame.collect()) == [
        (b"a", 0),
        (b"b", 0),
        (b"c", 0),
    ]


def test_sql_reads_a_view(spark: SparkSession, workshop: Workshop) -> None:
    workshop.create("told", 2)
    workshop.write("told", [b"a", b"b"])
    workshop.write("told", [b"c"], index=1)
    options = f"USING penstock OPTIONS (store '{workshop.store}', subscribe 'told')"
    spark.sql(f"CREATE TEMPORARY VIEW told_view {options}")
    try:
        found = spark.sql("SELECT string(value) AS value FROM told_view ORDER BY value").collect()
        assert [row.value for row in found] == ["a", "b", "c"]
        with pytest.raises(Exception, match=r"Create a view, CREATE TEMPORARY VIEW"):
            spark.sql(f"CREATE TABLE told_table {options}")
    finally:
        spark.catalog.dropTempView("told_view")


def test_offsets_with_gaps(spark: SparkSession, workshop: Workshop) -> None:
    """As compaction leaves them: batches that begin before their first record and end after their last."""
    workshop.create("events")
    for codec in range(5):
        records = [Record(2, TIME, b"k", b"a"), Record(5, TIME, b"k", b"b")]
        workshop.append("events", build_batch(records, codec=codec, base_offset=0, last_offset=9))
    workshop.append("events", build_batch([], base_offset=0, last_offset=3))
    workshop.write("events", [b"c"])
    expected = [10 * at + offset for at in range(5) for offset in (2, 5)] + [54]
    for _ in ("in the log", "settled"):
        rows = in_order(read(spark, workshop.store, "events"))
        assert [row.offset for row in rows] == expected
        workshop.settle()
    frame = read(
        spark,
        workshop.store,
        "events",
        startingOffsets='{"events": {"0": 5}}',
        endingOffsets='{"events": {"0": 35}}',
    )
    assert [row.offset for row in in_order(frame)] == [5, 12, 15, 22, 25, 32]


def test_only_committed_transactions(spark: SparkSession, workshop: Workshop) -> None:
    def data(producer: int, sequence: int, value: bytes) -> bytearray:
        return build_batch(
            [Record(0, TIME, None, value)],
            producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True,
        )  # fmt: skip

    def marker(producer: int, kind: int) -> bytearray:
        record = Record(0, TIME, b"\0\0" + kind.to_bytes(2, "big"), bytes(6))
        return build_batch([record], producer_id=producer, producer_epoch=0, transactional=True, control=True)

    workshop.create("events")
    workshop.append("events", data(1, 0, b"aborted"), data(2, 0, b"committed"), marker(1, 0))
    workshop.settle()
    workshop.append(
        "events", marker(2, 1), data(1, 1, b"open"), build_batch([Record(0, TIME, None, b"plain")])
    )
    assert values(in_order(read(spark, workshop.store, "events"))) == [b"committed"]
    everything = read(spark, workshop.store, "events", kafka_isolation_level="read_uncommitted")
    assert values(in_order(everything)) == [b"aborted", b"committed", b"open", b"plain"]


def test_bounds_by_offset(spark: SparkSession, workshop: Workshop) -> None:
    workshop.create("events", 2)
    for index in range(2):
        workshop.write("events", [b"%d" % at for at in range(10)], index)
    frame = read(
        spark,
        workshop.store,
        "events",
        startingOffsets=json.dumps({"events": {"0": 3, "1": -2}}),
        endingOffsets=json.dumps({"events": {"0": -1, "1": 2}}),
    )
    found = [(row.partition, row.offset) for row in in_order(frame)]
    assert found == [(0, at) for at in range(3, 10)] + [(1, 0), (1, 1)]
    assigned = (
        spark.read.format("penstock")
        .option("store", workshop.store)
        .option("assign", '{"events": [1]}')
        .load()
    )
    assert assigned.count() == 10


def test_bounds_by_time(spark: SparkSession, workshop: Workshop) -> None:
    workshop.create("events")
    for start in (0, 100, 200):
        workshop.write("events", [b"x"] * 10, time=TIME + start)
        workshop.settle()
    workshop.write("events", [b"x"] * 10, time=TIME + 300)
    workshop.write("events", [b"late"], time=TIME + 50)

    def offsets(**options: Any) -> list[int]:
        return [row.offset for row in in_order(read(spark, workshop.store, "events", **options))]

    assert offsets(startingTimestamp=TIME + 105, endingTimestamp=TIME + 205) == list(range(15, 25))
    assert offsets(startingTimestamp=TIME + 150) == list(range(20, 41))
    by_partition = json.dumps({"events": {"0": TIME + 305}})
    assert offsets(startingOffsetsByTimestamp=by_partition) == list(range(35, 41))
    assert offsets(endingOffsetsByTimestamp=json.dumps({"events": {"0": TIME + 999}})) == list(range(41))
    with pytest.raises(Exception, match="No record of topic 'events' partition 0 is as late"):
        offsets(startingTimestamp=TIME + 999)
    assert offsets(startingTimestamp=TIME + 999, startingOffsetsByTimestampStrategy="latest") == []


def test_a_start_beyond_its_end(spark: SparkSession, workshop: Workshop) -> None:
    """Spark's connector says so; nothing would look like a topic without news."""
    workshop.create("events")
    workshop.write("events", [b"x"] * 10)
    start, end = (
        {f"{side}Offsets": f'{{"events": {{"0": {at}}}}}'} for side, at in (("starting", 7), ("ending", 5))
    )
    for bounds in ({**start, **end}, {"startingTimestamp": TIME + 7, "endingTimestamp": TIME + 5}):
        with pytest.raises(Exception, match="start at offset 7, which is beyond its end at offset 5"):
            read(spark, workshop.store, "events", **bounds).count()


def test_one_frame_filtered_in_two_ways(spark: SparkSession, workshop: Workshop) -> None:
    """Spark keeps one plan for a frame of a Python source, so pushing filters into it loses rows."""
    workshop.create("events")
    workshop.write("events", [b"x"] * 100)
    frame = read(spark, workshop.store, "events")
    low, high = frame.where("offset < 30"), frame.where("offset >= 30")
    assert (low.count(), high.count(), frame.count()) == (30, 70, 100)
    assert low.union(high).count() == 100


def test_tasks(spark: SparkSession, workshop: Workshop) -> None:
    workshop.create("events", 2)
    for index in range(2):
        for _ in range(4):
            workshop.write("events", [b"x" * 1000] * 100, index)

    def tasks(**options: Any) -> tuple[int, int]:
        frame = read(spark, workshop.store, "events", "offset long", **options)
        return frame.rdd.getNumPartitions(), frame.count()

    assert tasks() == (1, 800)
    assert tasks(splitBytes=250_000) == (4, 800)
    at_least, count = tasks(minPartitions=10)
    assert at_least >= 10
    assert count == 800
    assert tasks(maxRecordsPerPartition=100) == (8, 800)


# When places change, and when records go.


def test_a_plan_outlives_the_objects_that_it_names(spark: SparkSession, workshop: Workshop) -> None:
    """Spark plans a frame once; until it runs (again), logs are settled, segments merged, both deleted."""
    workshop.create("events", 2)
    for index in range(2):
        workshop.write("events", [b"%d" % at for at in range(100)], index)
    frame = read(spark, workshop.store, "events")
    assert frame.count() == 200
    for index in range(2):
        workshop.write("events", [b"later"], index)
    workshop.settle()
    workshop.settle()
    workshop.collect()
    rows = in_order(frame)
    assert values(rows) == [b"%d" % at for at in range(100)] * 2


def test_records_that_went_after_the_plan(spark: SparkSession, workshop: Workshop) -> None:
    workshop.create("events")
    for _ in range(3):
        workshop.write("events", [b"x"] * 10)
        workshop.settle()
    strict = read(spark, workshop.store, "events")
    lenient = read(spark, workshop.store, "events", failOnDataLoss=False)
    assert strict.count() == lenient.count() == 30
    workshop.delete_records("events", 20)
    workshop.collect()
    with pytest.raises(
        Exception, match="Records 0 to 19 of topic 'events' partition 0 are gone: the log begins at 20"
    ):
        strict.count()
    assert [row.offset for row in in_order(lenient)] == list(range(20, 30))


def test_offsets_that_are_gone_or_not_there_yet(spark: SparkSession, workshop: Workshop) -> None:
    workshop.create("events")
    for _ in range(3):
        workshop.write("events", [b"x"] * 10)
        workshop.settle()
    workshop.delete_records("events", 20)
    from_five = '{"events": {"0": 5}}'
    with pytest.raises(Exception, match="Records 5 to 19 of topic 'events' partition 0 are gone"):
        read(spark, workshop.store, "events", startingOffsets=from_five).count()
    assert (
        read(spark, workshop.store, "events", startingOffsets=from_five, failOnDataLoss=False).count() == 10
    )
    beyond = '{"events": {"0": 99}}'
    with pytest.raises(Exception, match=r"endingOffsets asks for offset 99 .* which ends at 30"):
        read(spark, workshop.store, "events", endingOffsets=beyond).count()
    assert read(spark, workshop.store, "events", endingOffsets=beyond, failOnDataLoss=False).count() == 10


def test_a_topic_that_was_deleted_after_the_plan(spark: SparkSession, workshop: Workshop) -> None:
    workshop.create("events")
    workshop.write("events", [b"x"])
    workshop.settle()
    frame = read(spark, workshop.store, "events")
    assert frame.count() == 1
    workshop.delete("events")
    workshop.settle()
    workshop.collect()
    with pytest.raises(Exception, match="The topic 'events' was deleted while it was read"):
        frame.count()


def test_damaged_records(spark: SparkSession, workshop: Workshop) -> None:
    workshop.create("events")
    workshop.write("events", [b"x" * 100])
    lying = build_batch([Record(0, TIME, None, b"y" * 100)])
    lying[-50] ^= 1
    workshop.append("events", lying)
    sentence = "Records 1 to 1 of topic 'events' partition 0 are gone: a record batch does not match its CRC"
    with pytest.raises(Exception, match=sentence) as caught:
        read(spark, workshop.store, "events").count()
    assert "Traceback" not in str(caught.value)
    assert read(spark, workshop.store, "events", failOnDataLoss=False).count() == 1
    assert read(spark, workshop.store, "events", checkCrc=False).count() == 2


# Mistakes.


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "nothing"}, "The topic 'nothing' does not exist."),
        ({"assign": '{"events": [7]}'}, "The topic 'events' has no partition 7: it has 1 of them."),
        ({"subscribe": "events", "startOffsets": "earliest"}, "Did you mean 'startingOffsets'?"),
        (
            {"subscribe": "events", "startingOffsets": '{"events": {"1": 0}}'},
            "The option 'startingOffsets' has no entry for topic 'events' partition 0.",
        ),
        (
            {"subscribe": "events", "startingOffsets": '{"events": {"0": 0, "9": 0}}'},
            "The option 'startingOffsets' names topic 'events' partition 9, which is not read.",
        ),
        (
            {"subscribe": "events", "store": "/nowhere/at/all"},
            "No Penstock cluster lives in /nowhere/at/all.",
        ),
        ({"subscribe": "events", "store": "ftp://x"}, "'ftp://x' is not a store"),
        (
            {"subscribe": "events", "store": "", "kafka.bootstrap.servers": "127.0.0.1:1"},
            "The store could not be learned from the brokers: No broker answers at 127.0.0.1:1",
        ),
    ],
)
def test_mistakes(spark: SparkSession, workshop: Workshop, options: dict[str, str], sentence: str) -> None:
    workshop.create("events")
    with pytest.raises(Exception) as caught:
        spark.read.format("penstock").options(**{"store": workshop.store, **options}).load().collect()
    assert sentence in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_columns_that_are_not_there(spark: SparkSession, workshop: Workshop) -> None:
    workshop.create("events")
    with pytest.raises(Exception, match="The schema names the column 'size'; format"):
        read(spark, workshop.store, "events", "size long").collect()
    with pytest.raises(Exception, match="The column 'offset' is bigint, not int"):
        read(spark, workshop.store, "events", "offset int").collect()
