"""Three readers give the same rows: format("penstock"), and Spark's Kafka connector on Penstock and Kafka.

    python -m conformance.spark.connector [--oracle kafka|none] [--only TEXT]

One client writes the same records to both brokers (`records.py`). Then each way of reading must give the same
rows, in the same micro-batches where it is a stream: nulls, empty values, headers, all codecs, both kinds of
timestamps, compacted topics, logs whose beginning was deleted, large values, transactions, patterns, bounds
by offset and by time, restarts from a checkpoint. If one way refuses, all refuse. Rows that the connector
writes to Penstock must come back. One line a check; the exit code says whether all held.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from conformance import parts
from conformance.oracle import ApacheKafka
from conformance.parts import PartMissing, not_run
from conformance.server import Server, interrupted_cleanly
from conformance.spark import records as spark_records
from conformance.spark.jars import connector_jars
from conformance.spark.records import CODECS, TIME, offsets_json
from conformance.target import Penstock
from penstock.pipeline.errors import no_worker

QUERY_TIMEOUT_S = 180
TOOL_TIMEOUT_S = 60

Row = tuple[Any, ...]


class Way:
    """One way of reading: a format and the options that lead to the broker or its store."""

    def __init__(self, spark: Any, name: str, kind: str, options: dict[str, str]) -> None:
        self.spark = spark
        self.name = name
        self.kind = kind
        self._options = options

    def batch(self, **options: Any) -> list[Row]:
        reader = self.spark.read.format(self.kind).options(**self._options).option("includeHeaders", "true")
        return rows_of(reader.options(**{name: str(value) for name, value in options.items()}).load())

    def load_stream(self, **options: Any) -> Any:
        reader = self.spark.readStream.format(self.kind).options(**self._options)
        return reader.options(**{name: str(value) for name, value in options.items()}).load()

    def stream(self, checkpoint: Path, **options: Any) -> list[Row]:
        """What is available now, as rows that begin with the number of their micro-batch."""
        frame = self.load_stream(**options)
        found: list[Row] = []
        lock = threading.Lock()

        def take(part: Any, number: int) -> None:
            rows = [(number, *row) for row in rows_of(part)]
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
    def __init__(self, ways: list[Way], brokers: dict[str, str], scratch: Path, only: str) -> None:
        self.ways = ways
        self._brokers = brokers
        self._scratch = scratch
        self._only = only
        self.failed = 0

    def same(self, name: str, read: Callable[[Way], list[Row]], least: int = 1) -> None:
        """Every way must read the same rows, and at least so many."""
        if self._only not in name:
            return
        answers = {way.name: attempt(read, way) for way in self.ways}
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

    def refused(self, name: str, read: Callable[[Way], list[Row]]) -> None:
        """No way must give rows."""
        if self._only not in name:
            return
        answers = {way.name: attempt(read, way) for way in self.ways}
        held = all(isinstance(answer, str) for answer in answers.values())
        self._say(name, held, "refused")
        if not held:
            for label, answer in answers.items():
                print(f"    {label}: {answer if isinstance(answer, str) else f'{len(answer)} rows'}")

    def holds(self, name: str, check: Callable[[], str]) -> None:
        """Something about Penstock alone; the check says what it found, or raises."""
        if self._only not in name:
            return
        try:
            self._say(name, True, check())
        except Exception as error:
            traceback.print_exc()
            self._say(name, False, str(error))

    def _say(self, name: str, held: bool, detail: str) -> None:
        self.failed += not held
        print(f"{'same' if held else 'DIFFERENT'}  {name}  ({detail})", flush=True)

    def all(self, *, transactions: bool) -> None:
        self.records()
        if transactions:
            self.transactions()
        else:
            print("left out  transactions: the broker does not serve them")
        self.bounds()
        self.losses()
        self.streams()
        self.writes()

    def records(self) -> None:
        self.same("every kind of record, the producer's time", lambda way: way.batch(subscribe="create"), 45)
        self.same("every kind of record, the broker's time", lambda way: way.batch(subscribe="append"), 45)
        self.same("a compacted topic", lambda way: way.batch(subscribe="compacted"), 28)
        self.same(
            "a compacted topic as a stream",
            lambda way: way.stream(
                self._checkpoint(way, "gaps"), subscribe="compacted", startingOffsets="earliest",
                maxOffsetsPerTrigger=150, includeHeaders="true",
            ),
            28,
        )  # fmt: skip
        self.same(
            "a start inside of a gap",
            lambda way: way.batch(
                subscribe="compacted", startingOffsets=offsets_json("compacted", (25, 120))
            ),
            20,
        )
        self.same("large values", lambda way: way.batch(subscribe="large"), 12)
        self.same("a topic without records", lambda way: way.batch(subscribe="empty"), 0)

    def transactions(self) -> None:
        inside = {
            "startingOffsets": offsets_json("transactional", (4, 9)),
            "endingOffsets": offsets_json("transactional", (20, 22)),
            "minPartitions": 7,
        }
        for level, least in (("read_committed", 20), ("read_uncommitted", 40)):
            options = {"subscribe": "transactional", "kafka.isolation.level": level}
            self.same(f"transactions, {level}", lambda way, o=options: way.batch(**o), least)  # type: ignore[misc]
            self.same(
                f"transactions as a stream, {level}",
                lambda way, o=options: way.stream(  # type: ignore[misc]
                    self._checkpoint(way, o["kafka.isolation.level"]), startingOffsets="earliest", **o
                ),
                least,
            )
            self.same(
                f"transactions as a stream in small batches, {level}",
                lambda way, o=options: way.stream(  # type: ignore[misc]
                    self._checkpoint(way, "small-" + o["kafka.isolation.level"]), startingOffsets="earliest",
                    maxOffsetsPerTrigger=7, **o,
                ),
                least,
            )  # fmt: skip
            self.same(
                f"bounds inside of transactions, {level}",
                lambda way, o=options: way.batch(**inside, **o),  # type: ignore[misc]
                10,
            )
        # The connector waits for records that do not come, and gives up.
        self.refused(
            "an end beyond an open transaction, read_committed",
            lambda way: way.batch(**{
                "subscribe": "transactional",
                "endingOffsets": offsets_json("transactional", (10, 26)),
                "kafka.isolation.level": "read_committed",
                "kafkaConsumer.pollTimeoutMs": 5000,
            }),
        )  # fmt: skip
        self.same(
            "an end beyond an open transaction, read_uncommitted",
            lambda way: way.batch(**{
                "subscribe": "transactional",
                "endingOffsets": offsets_json("transactional", (10, 26)),
                "kafka.isolation.level": "read_uncommitted",
            }),
            20,
        )  # fmt: skip

    def bounds(self) -> None:
        self.same("a pattern", lambda way: way.batch(subscribePattern="events-.*"), 330)
        self.same("several topics", lambda way: way.batch(subscribe="events-b, events-a,empty"), 330)
        self.same("assigned partitions", lambda way: way.batch(assign='{"events-a": [1]}'), 100)
        bounds = {
            "startingOffsets": offsets_json("events-a", (10, -2, 0)),
            "endingOffsets": offsets_json("events-a", (20, -1, 5)),
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
        late = {"subscribe": "events-b", "startingTimestamp": TIME + 10**9}
        self.refused("a time after the last record", lambda way: way.batch(**late))
        self.same(
            "a time after the last record, latest allowed",
            lambda way: way.batch(startingOffsetsByTimestampStrategy="latest", **late),
            0,
        )
        self.same(
            "more partitions than the topic",
            lambda way: way.batch(subscribe="events-a", minPartitions=10),
            300,
        )
        self.refused("a topic that is missing", lambda way: way.batch(subscribe="nowhere"))
        self.refused(
            "bounds that leave a partition out",
            lambda way: way.batch(subscribe="events-a", startingOffsets=offsets_json("events-a", (1, 2))),
        )

    def losses(self) -> None:
        begun = offsets_json("shortened", (0, 0))
        self.same("a log whose beginning was deleted", lambda way: way.batch(subscribe="shortened"), 60)
        self.refused(
            "deleted records that are asked for",
            lambda way: way.batch(subscribe="shortened", startingOffsets=begun),
        )
        self.same(
            "deleted records that may be missing",
            lambda way: way.batch(subscribe="shortened", startingOffsets=begun, failOnDataLoss="false"),
            60,
        )

    def streams(self) -> None:
        options = {
            "subscribePattern": "events-.*",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": 100,
        }

        def read(way: Way, **more: Any) -> list[Row]:
            # The connector keeps consumers by group, also where they are of another broker.
            group = {"kafka.group.id": "spark"} if way.kind == "penstock" else {}
            return way.stream(self._checkpoint(way), **options, **group, **more)

        self.same(
            "a stream in small batches",
            read,
            330,
        )
        self.same(
            "a stream from a time",
            lambda way: way.stream(
                self._checkpoint(way, "time"), subscribe="events-a", startingTimestamp=TIME + 1000
            ),
            200,
        )
        self.same(
            "a stream from offsets, from the first and from the last",
            lambda way: way.stream(
                self._checkpoint(way, "offsets"), subscribe="events-a",
                startingOffsets=offsets_json("events-a", (90, -2, -1)),
            ),
            110,
        )  # fmt: skip
        for bootstrap in self._brokers.values():
            spark_records.numbers(bootstrap, 300, 360)
            spark_records.grow(bootstrap)
        self.same(
            "the same stream after a restart, with a partition more",
            read,
            86,
        )
        self.same(
            "the stream from the last, after a restart",
            lambda way: way.stream(self._checkpoint(way, "offsets"), subscribe="events-a"),
            60,
        )
        self.holds("its progress in kafka-consumer-groups", self._group)
        self.holds("format(penstock) goes on where format(kafka) stopped", self._one_word)
        for bootstrap in self._brokers.values():
            spark_records.numbers(bootstrap, 360, 420)
            spark_records.delete_beginning(bootstrap, "events-a", 1, 130)
        self.refused(
            "a stream whose next records were deleted",
            read,
        )
        self.same(
            "a stream that may lose records",
            lambda way: read(way, failOnDataLoss="false"),
            50,
        )

    def writes(self) -> None:
        self.holds("rows written by the connector come back", self._written)
        self.holds("a stream written by the connector comes back", self._written_stream)

    def _checkpoint(self, way: Way, name: str = "main") -> Path:
        return self._scratch / f"{way.name.replace(' ', '-')}-{name}"

    def _group(self) -> str:
        java = parts.java(parts.kafka_classpath(parts.KAFKA_NEWEST), heap_mb=256)
        tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        command = [
            *java,
            tool,
            "--bootstrap-server",
            self._brokers["Penstock"],
            "--describe",
            "--group",
            "spark",
        ]
        said = subprocess.run(
            command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=True
        ).stdout
        found = {}
        for line in said.splitlines():
            cells = line.split()
            if len(cells) > 5 and cells[0] == "spark":
                found[cells[1], int(cells[2])] = (int(cells[3]), int(cells[5]))
        wanted = {
            ("events-a", 0): (120, 0), ("events-a", 1): (120, 0), ("events-a", 2): (120, 0),
            ("events-b", 0): (36, 0), ("events-b", 1): (20, 0),
        }  # fmt: skip
        if found != wanted:
            raise AssertionError(f"offset and lag are {found}, not {wanted}")
        return "offsets and no lag"

    def _one_word(self) -> str:
        """A checkpoint of Spark's connector is one of format("penstock"): nothing is read again."""
        ours, theirs = self.ways[0], self.ways[1]
        left = self._scratch / "one-word"
        shutil.copytree(self._checkpoint(theirs), left)
        again = ours.stream(left, subscribePattern="events-.*", startingOffsets="earliest")
        if again:
            raise AssertionError(f"{len(again)} rows were read again, first {again[0]}")
        return "no row again"

    def _written(self) -> str:
        rows = [
            (
                None if at % 7 == 0 else f"k{at}".encode(),
                None if at % 5 == 0 else b"v" * at,
                None if at % 3 else [("h", b"%d" % at), ("h", None)],
            )
            for at in range(500)
        ]
        schema = "key binary, value binary, headers array<struct<key:string,value:binary>>"
        frame = self.ways[0].spark.createDataFrame(rows, schema)
        for codec in CODECS:
            writer = (
                frame.write.format("kafka").option("topic", "written-batch").option("includeHeaders", "true")
            )
            writer = writer.option("kafka.compression.type", codec)
            writer.option("kafka.bootstrap.servers", self._brokers["Penstock"]).save()
        wanted = [(key, value, tuple(headers) if headers else None) for key, value, headers in rows]
        return self._came_back("written-batch", wanted * len(CODECS))

    def _written_stream(self) -> str:
        """From a topic to two others by column, in two runs of one query."""
        way = self.ways[1]
        frame = way.load_stream(subscribe="events-a", startingOffsets="earliest", failOnDataLoss="false")
        frame = frame.selectExpr(
            "key",
            "value",
            "if(partition = 0, 'written-stream', 'written-topics') as topic",
            "offset % 2 as partition",
        )
        frame = frame.withColumn("partition", frame["partition"].cast("int"))
        for _run in range(2):
            query = (
                frame.writeStream.format("kafka")
                .option("kafka.bootstrap.servers", self._brokers["Penstock"])
                .option("checkpointLocation", str(self._scratch / "written"))
                .trigger(availableNow=True)
                .start()
            )
            if not query.awaitTermination(QUERY_TIMEOUT_S):
                query.stop()
                raise TimeoutError(f"the query did not end within {QUERY_TIMEOUT_S} s")
        source = self.ways[0].batch(subscribe="events-a")
        said = []
        for topic, chosen in (("written-stream", (0,)), ("written-topics", (1, 2))):
            wanted = [(row[3], row[4], None) for row in source if row[1] in chosen]
            said.append(self._came_back(topic, wanted))
        return ", ".join(said)

    def _came_back(self, topic: str, wanted: list[Row]) -> str:
        if not wanted:
            raise AssertionError(f"nothing was written to {topic}")
        for way in self.ways[:2]:
            found = sorted(((row[3], row[4], row[7]) for row in way.batch(subscribe=topic)), key=repr)
            if found != sorted(wanted, key=repr):
                raise AssertionError(
                    f"{way.name}: {len(found)} rows came back to {topic}, {len(wanted)} were written, and they differ"
                )
        return f"{len(wanted)} rows"


def attempt(read: Callable[[Way], list[Row]], way: Way) -> list[Row] | str:
    """The rows, or what was said instead."""
    for again in (True, False):
        try:
            return read(way)
        except Exception as error:
            said = " ".join(str(error).split()) or type(error).__name__
            if not (no_worker(error) and again):
                break
    return said if len(said) < 400 else f"{said[:200]} ... {said[-200:]}"


def difference(first: object, other: list[Row]) -> str:
    if not isinstance(first, list):
        return f"{len(other)} rows"
    for one, two in zip(first, other, strict=False):
        if one != two:
            return f"{len(other)} rows, the first difference: {str(two)[:200]} instead of {str(one)[:200]}"
    return f"{len(other)} rows"


@contextlib.contextmanager
def session(scratch: Path) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    import penstock.spark

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("conformance")
        .config("spark.jars", connector_jars())
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    penstock.spark.register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.spark.connector", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--oracle", default="kafka", choices=("kafka", "none"), help="whether to run Apache Kafka beside"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="the checks whose name holds this")
    chosen = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="conformance-spark-"))
    try:
        with interrupted_cleanly(), contextlib.ExitStack() as stack:
            penstock = stack.enter_context(Penstock(spark_records.BROKER_SETTINGS))
            servers: list[Server] = [penstock]
            if chosen.oracle == "kafka":
                servers.append(stack.enter_context(ApacheKafka(settings=spark_records.BROKER_SETTINGS)))
            spark = stack.enter_context(session(scratch))
            ways = [
                Way(
                    spark,
                    "format(penstock) on Penstock",
                    "penstock",
                    {"store": str(penstock.folder / "store")},
                )
            ]
            transactions = True
            for server in servers:
                transactions &= spark_records.fill(server.bootstrap)
                ways.append(
                    Way(
                        spark,
                        f"format(kafka) on {server.name}",
                        "kafka",
                        {"kafka.bootstrap.servers": server.bootstrap},
                    )
                )
            checks = Checks(ways, {server.name: server.bootstrap for server in servers}, scratch, chosen.only)
            checks.all(transactions=transactions)
            return 1 if checks.failed else 0
    except PartMissing as why:
        return not_run(why)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main())
