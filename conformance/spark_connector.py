"""Spark's own Kafka connector on Penstock: the same rows as on Apache Kafka, and as format("penstock").

    python -m conformance.spark_connector [--oracle kafka|none]

The same records are written to both brokers by one client. Then each way of reading must give the same rows,
for batches and streams, patterns, bounds by offset and by time, and a restart from a checkpoint; and what the
connector writes to Penstock must come back. One line a check; the exit code says whether all held.
"""

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance.oracle import ApacheKafka
from conformance.parts import PartMissing
from conformance.server import Server, interrupted_cleanly
from conformance.spark_jars import connector_jars
from conformance.target import Penstock

TIME = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
QUERY_TIMEOUT_S = 180

Row = tuple[Any, ...]
Headers = list[tuple[str, str | bytes | None]]


class Sample(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers


NASTY = (
    Sample(b"key", b"value", []),
    Sample(None, b"no key", []),
    Sample(b"no value", None, []),
    Sample(None, None, []),
    Sample(b"", b"", []),
    Sample(b"h", b"headers", [("a", b"1"), ("a", b"2"), ("b", None), ("", b""), ("größe", b"\xff\x00")]),
    Sample(b"\x00\xff", bytes(range(256)), [("x" * 300, b"y" * 3000)]),
    Sample(b"large", b"z" * 900_000, []),
)


def fill(bootstrap: str) -> None:
    """Topics with a partition per codec, by the producer's time and by the broker's; and some for bounds."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [
        NewTopic("create", len(CODECS), 1, config={"message.timestamp.type": "CreateTime"}),
        NewTopic("append", len(CODECS), 1, config={"message.timestamp.type": "LogAppendTime"}),
        NewTopic("events-a", 3, 1, config={}),
        NewTopic("events-b", 1, 1, config={}),
        NewTopic("written", 2, 1, config={}),
    ]
    for done in admin.create_topics(topics).values():
        done.result(30)
    for number, codec in enumerate(CODECS):
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20})
        for topic in ("create", "append"):
            for at, one in enumerate(NASTY):
                producer.produce(
                    topic, one.value, one.key, number, headers=one.headers or None, timestamp=TIME + at
                )
        assert producer.flush(30) == 0
    numbers(bootstrap, 0, 300)


def numbers(bootstrap: str, first: int, last: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "compression.type": "lz4"})
    for at in range(first, last):
        value = b"%d" % at
        producer.produce("events-a", value, value, at % 3, timestamp=TIME + at * 10)
        if at % 10 == 0:
            producer.produce("events-b", value, None, 0, timestamp=TIME + at * 10)
    assert producer.flush(30) == 0


class Way:
    """One way of reading: a format and the options that lead to the broker or its store."""

    def __init__(self, spark: Any, name: str, kind: str, options: dict[str, str]) -> None:
        self.spark = spark
        self.name = name
        self._kind = kind
        self._options = options

    def batch(self, **options: Any) -> list[Row]:
        reader = self.spark.read.format(self._kind).options(**self._options).option("includeHeaders", "true")
        return rows_of(reader.options(**{name: str(value) for name, value in options.items()}).load())

    def stream(self, checkpoint: Path, **options: Any) -> list[Row]:
        """What is available now, as rows with the number of their micro-batch left out."""
        reader = self.spark.readStream.format(self._kind).options(**self._options)
        frame = reader.options(**{name: str(value) for name, value in options.items()}).load()
        found: list[Row] = []
        lock = threading.Lock()

        def take(part: Any, _number: int) -> None:
            rows = rows_of(part)
            with lock:
                found.extend(rows)

        query = (
            frame.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(QUERY_TIMEOUT_S):
            query.stop()
            raise TimeoutError(f"the query did not end within {QUERY_TIMEOUT_S} s")
        return sorted(found, key=repr)


def rows_of(frame: Any) -> list[Row]:
    names = frame.columns
    found = []
    for row in frame.collect():
        one = row.asDict(recursive=True)
        # The broker's clock is not the same on two brokers.
        time = None if one["timestampType"] == 1 else one["timestamp"]
        headers = one.get("headers")
        found.append((
            one["topic"], one["partition"], one["offset"], plain(one["key"]), plain(one["value"]),
            one["timestampType"], time,
            None if headers is None else tuple((h["key"], plain(h["value"])) for h in headers), len(names),
        ))  # fmt: skip
    return sorted(found, key=repr)


def plain(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


class Checks:
    def __init__(self, ways: list[Way], brokers: dict[str, str], scratch: Path) -> None:
        self.ways = ways
        self._brokers = brokers
        self._scratch = scratch
        self.failed = 0
        self._pass = 0

    def same(self, name: str, read: Callable[[Way], list[Row]], least: int = 1) -> None:
        """Every way must read the same rows, and at least so many."""
        answers: dict[str, list[Row] | str] = {}
        for way in self.ways:
            try:
                answers[way.name] = read(way)
            except Exception as error:
                answers[way.name] = " ".join(str(error).split())[-300:] or type(error).__name__
        first = answers[self.ways[0].name]
        held = (
            not isinstance(first, str)
            and len(first) >= least
            and all(one == first for one in answers.values())
        )
        self._say(name, held, f"{len(first)} rows" if not isinstance(first, str) else first)
        if not held:
            for label, answer in answers.items():
                print(f"    {label}: {answer if isinstance(answer, str) else difference(first, answer)}")

    def holds(self, name: str, check: Callable[[], str]) -> None:
        """Something about Penstock alone; the check says what it found, or raises."""
        try:
            self._say(name, True, check())
        except Exception as error:
            traceback.print_exc()
            self._say(name, False, str(error))

    def _say(self, name: str, held: bool, detail: str) -> None:
        self.failed += not held
        print(f"{'same' if held else 'DIFFERENT'}  {name}  ({detail})", flush=True)

    def all(self) -> None:
        self.same("every kind of record, the producer's time", lambda way: way.batch(subscribe="create"), 40)
        self.same("every kind of record, the broker's time", lambda way: way.batch(subscribe="append"), 40)
        self.same("a pattern", lambda way: way.batch(subscribePattern="events-.*"), 330)
        self.same("assigned partitions", lambda way: way.batch(assign='{"events-a": [1]}'), 100)
        bounds = {
            "startingOffsets": json.dumps({"events-a": {"0": 10, "1": -2, "2": 0}}),
            "endingOffsets": json.dumps({"events-a": {"0": 20, "1": -1, "2": 5}}),
        }
        self.same("bounds by offset", lambda way: way.batch(subscribe="events-a", **bounds), 115)
        times = {
            "startingOffsetsByTimestamp": json.dumps({"events-a": {str(p): TIME + 500 for p in range(3)}}),
            "endingOffsetsByTimestamp": json.dumps({"events-a": {str(p): TIME + 1505 for p in range(3)}}),
        }
        self.same("bounds by time", lambda way: way.batch(subscribe="events-a", **times), 90)
        self.same(
            "one time for all", lambda way: way.batch(subscribe="events-b", startingTimestamp=TIME + 1001), 19
        )
        self.same(
            "more partitions than the topic",
            lambda way: way.batch(subscribe="events-a", minPartitions=10),
            300,
        )
        options = {
            "subscribePattern": "events-.*",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": 100,
        }
        self.same("a stream in small batches", lambda way: way.stream(self._checkpoint(way), **options), 330)
        for bootstrap in self._brokers.values():
            numbers(bootstrap, 300, 360)
        self.same(
            "the same stream after a restart", lambda way: way.stream(self._checkpoint(way), **options), 66
        )
        self.holds("rows written by the connector come back", self._written)

    def _checkpoint(self, way: Way) -> Path:
        return self._scratch / way.name.replace(" ", "-")

    def _written(self) -> str:
        penstock = self.ways[0]
        rows = [
            (None if at % 7 == 0 else f"k{at}".encode(), None if at % 5 == 0 else b"v" * at)
            for at in range(500)
        ]
        frame = penstock.spark.createDataFrame(rows, "key binary, value binary")
        for codec in CODECS:
            writer = (
                frame.write.format("kafka").option("topic", "written").option("kafka.compression.type", codec)
            )
            writer.option("kafka.bootstrap.servers", self._brokers["Penstock"]).save()
        found = sorted(((row[3], row[4]) for row in penstock.batch(subscribe="written")), key=repr)
        wanted = sorted(rows * len(CODECS), key=repr)
        if found != wanted:
            raise AssertionError(f"{len(found)} rows came back, {len(wanted)} were written, and they differ")
        return f"{len(found)} rows"


def difference(first: object, other: list[Row]) -> str:
    if not isinstance(first, list):
        return f"{len(other)} rows"
    for one, two in zip(first, other, strict=False):
        if one != two:
            return f"{len(other)} rows, the first difference: {str(two)[:200]} instead of {str(one)[:200]}"
    return f"{len(other)} rows"


@contextlib.contextmanager
def session(scratch: Path) -> Iterator[Any]:
    import os

    from pyspark.sql import SparkSession

    import penstock.spark

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("conformance")
        .config("spark.jars", connector_jars())
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    penstock.spark.register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.spark_connector", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--oracle", default="kafka", choices=("kafka", "none"), help="whether to run Apache Kafka beside"
    )
    chosen = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="conformance-spark-"))
    try:
        with interrupted_cleanly(), contextlib.ExitStack() as stack:
            penstock = stack.enter_context(Penstock({"auto.create.topics.enable": "false"}))
            servers: list[Server] = [penstock]
            if chosen.oracle == "kafka":
                servers.append(
                    stack.enter_context(ApacheKafka(settings={"auto.create.topics.enable": "false"}))
                )
            spark = stack.enter_context(session(scratch))
            ways = [
                Way(
                    spark,
                    "format(penstock) on Penstock",
                    "penstock",
                    {"store": str(penstock.folder / "store")},
                )
            ]
            for server in servers:
                fill(server.bootstrap)
                ways.append(
                    Way(
                        spark,
                        f"format(kafka) on {server.name}",
                        "kafka",
                        {"kafka.bootstrap.servers": server.bootstrap},
                    )
                )
            checks = Checks(ways, {server.name: server.bootstrap for server in servers}, scratch)
            checks.all()
            return 1 if checks.failed else 0
    except PartMissing as why:
        print(f"not run: {why}")
        return 2
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main())
