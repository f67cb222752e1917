"""`python -m benchmarks.spark`: reading a log with Spark, three ways in one run.

    format("penstock")     from the store of a Penstock cluster
    format("kafka")        Spark's own connector, from Apache Kafka
    parquet                the same rows, written by Spark with snappy

The same record batches, unique and incompressible, go to both brokers: 2 GB in rows of 1 KiB and 1 GB in
rows of 100 B, less with --quick. Every scan checks what it read: the number of rows and the sum of their
lengths. Rounds go through the ways in turn; the table has medians and ratios.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from conformance.parts import PartMissing, not_run
from conformance.server import Server, interrupted_cleanly
from conformance.spark.jars import connector_jars
from conformance.target import Penstock
from rich.console import Console
from rich.table import Table

from benchmarks import build
from benchmarks.brokers import MeasuredKafka, touch_memory
from penstock.pipeline.errors import no_worker

PARTITIONS = 4
ROWS_PER_BATCH = 512
CORES = 2

PENSTOCK, CONNECTOR, PARQUET = "penstock", "connector", "parquet"


class Size(NamedTuple):
    name: str
    value_bytes: int
    total_bytes: int

    @property
    def rows(self) -> int:
        return self.total_bytes // self.value_bytes


FULL = (Size("1 KiB", 1024, 2 << 30), Size("100 B", 100, 1 << 30))
QUICK = (Size("1 KiB", 1024, 256 << 20), Size("100 B", 100, 64 << 20))


class Figure(NamedTuple):
    row: str
    unit: str
    higher_is_better: bool
    values: dict[str, list[float]]


# Data.


def produce(bootstrap: str, topic: str, size: Size) -> None:
    """The same batches for the same size, whoever receives them: the generator has a fixed seed."""
    import numpy as np
    import pyarrow as pa

    from penstock.client import Client
    from penstock.spark.write.encode import encode_partitions
    from penstock.spark.write.sending import Sender, new_producer_id
    from penstock.wire.api.create_topics import (
        CreatableTopic,
        CreatableTopicConfig,
        CreateTopicsRequest,
        CreateTopicsResponse,
    )

    generator = np.random.default_rng(size.value_bytes)
    with Client(bootstrap) as client:
        # The times of the records are fixed, too, and long past.
        keep = CreatableTopicConfig(name="retention.ms", value="-1")
        wanted = CreatableTopic(name=topic, num_partitions=PARTITIONS, replication_factor=1, configs=[keep])
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=30_000)
        (answer,) = client.controller().ask(request, CreateTopicsResponse, newest=5).topics
        if answer.error_code:
            raise RuntimeError(f"{topic} was not created: {answer.error_message}")
        sender = Sender(client, *new_producer_id(client))
        sequences = [0] * PARTITIONS
        made = 0
        while made < size.rows:
            count = min(ROWS_PER_BATCH * (1 if size.value_bytes > 500 else 8), size.rows - made)
            data = generator.bytes(count * size.value_bytes)
            offsets = np.arange(0, (count + 1) * size.value_bytes, size.value_bytes, dtype=np.int32)
            values = pa.Array.from_buffers(
                pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
            )
            partition = made // count % PARTITIONS
            numbers = pa.array(np.full(count, partition, np.int32))
            rows = pa.record_batch({"value": values, "partition": numbers})
            for batch in encode_partitions(
                rows, default_topic=topic, partition_count=lambda _t: PARTITIONS, keyless=lambda _t, _c: 0,
                now_ms=1_700_000_000_000 + made,
            ):  # fmt: skip
                sender.add(topic, partition, batch.data, sequences[partition], 0)
                sequences[partition] += batch.records
            made += count
            sender.send_beyond()
        sender.send()


# Spark.


@contextlib.contextmanager
def session(scratch: Path, settings: Sequence[str] = ()) -> Iterator[Any]:
    """`settings`: further ones for Spark, each as name=value."""
    from pyspark.sql import SparkSession

    import penstock.spark

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.jars", connector_jars())
        .config("spark.driver.memory", "3g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(CORES))
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.log.level", "ERROR")
    )
    for setting in settings:
        name, _equals, value = setting.partition("=")
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    penstock.spark.register(spark)
    try:
        yield spark
    finally:
        spark.stop()


class Bench:
    def __init__(
        self, spark: Any, servers: dict[str, Server], scratch: Path, say: Callable[[str], None]
    ) -> None:
        self._spark = spark
        self._servers = servers
        self._scratch = scratch
        self._say = say
        self.figures: dict[str, Figure] = {}

    def options(self, way: str) -> dict[str, str]:
        if way == PENSTOCK:
            return {"store": str(self._servers[PENSTOCK].folder / "store")}
        return {"kafka.bootstrap.servers": self._servers[CONNECTOR].bootstrap}

    def frame(self, way: str, topic: str, schema: str | None = None) -> Any:
        if way == PARQUET:
            return self._spark.read.parquet(str(self._scratch / topic))
        reader = self._spark.read.format("kafka" if way == CONNECTOR else "penstock")
        reader = reader.options(**self.options(way)).option("subscribe", topic)
        return (reader.schema(schema) if schema else reader).load()

    @property
    def ways(self) -> list[str]:
        return [PENSTOCK, *([CONNECTOR] if CONNECTOR in self._servers else []), PARQUET]

    def fill(self, size: Size) -> str:
        topic = f"rows-{size.value_bytes}"
        for name, server in self._servers.items():
            began = time.monotonic()
            produce(server.bootstrap, topic, size)
            self._say(f"{size.name}: {size.rows:,} rows to {name} in {time.monotonic() - began:.0f} s")
        self.frame(PENSTOCK, topic).write.parquet(str(self._scratch / topic), compression="snappy")
        return topic

    def note(self, row: str, unit: str, way: str, value: float, *, higher_is_better: bool = True) -> None:
        figure = self.figures.setdefault(row, Figure(row, unit, higher_is_better, {}))
        figure.values.setdefault(way, []).append(value)
        self._say(f"{way}: {row}: {value:,.0f} {unit}")

    def scan(self, way: str, topic: str, size: Size) -> None:
        began = time.monotonic()
        (row,) = self.frame(way, topic).selectExpr("count(*)", "sum(length(value))").collect()
        seconds = time.monotonic() - began
        if tuple(row) != (size.rows, size.rows * size.value_bytes):
            raise RuntimeError(f"{way} read {row} of {size.rows} rows")
        self.note(f"{size.name}: sum of lengths", "MB/s", way, size.total_bytes / 1e6 / seconds)

    def whole_rows(self, way: str, topic: str, size: Size) -> None:
        began = time.monotonic()
        self.frame(way, topic).write.format("noop").mode("overwrite").save()
        seconds = time.monotonic() - began
        self.note(f"{size.name}: every column, to nowhere", "MB/s", way, size.total_bytes / 1e6 / seconds)

    def offsets(self, way: str, topic: str, size: Size) -> None:
        began = time.monotonic()
        schema = "offset long" if way == PENSTOCK else None
        (row,) = self.frame(way, topic, schema).selectExpr("count(offset)").collect()
        seconds = time.monotonic() - began
        if row[0] != size.rows:
            raise RuntimeError(f"{way} counted {row[0]} of {size.rows} rows")
        self.note(f"{size.name}: count of offsets", "MB/s", way, size.total_bytes / 1e6 / seconds)

    def micro_batches(self, way: str, topic: str, count: int) -> None:
        """The time of one small micro-batch: all of them, by the query's own account, without the first."""
        kind = "kafka" if way == CONNECTOR else "penstock"
        reader = self._spark.readStream.format(kind).options(**self.options(way))
        frame = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        frame = frame.option("maxOffsetsPerTrigger", "1000").load()
        writer = frame.writeStream.format("noop").trigger(processingTime="0 seconds")
        writer = writer.option("checkpointLocation", tempfile.mkdtemp(dir=self._scratch))
        query = writer.start()
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and (query.lastProgress or {}).get("batchId", 0) < count:
            error = query.exception()
            if error is not None:
                if not no_worker(error):
                    raise RuntimeError(str(error))
                query = writer.start()
            time.sleep(0.05)
        query.stop()
        took = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress[2:]]
        row = "a micro-batch of 1,000 rows"
        self.note(row, "ms", way, statistics.median(took), higher_is_better=False)

    def round(self, topics: list[tuple[Size, str]], micro_batches: int) -> None:
        for size, topic in topics:
            for measure in (self.scan, self.whole_rows, self.offsets):
                for way in self.ways:
                    measure(way, topic, size)
        for way in self.ways:
            if way != PARQUET:
                self.micro_batches(way, topics[0][1], micro_batches)


# Reporting.


def ratio(figure: Figure, peer: str) -> float | None:
    ours, theirs = figure.values.get(PENSTOCK), figure.values.get(peer)
    if not ours or not theirs:
        return None
    mine, other = statistics.median(ours), statistics.median(theirs)
    return mine / other if figure.higher_is_better else other / mine


def show(figures: list[Figure], console: Console) -> None:
    table = Table(title=f"Spark on local[{CORES}]", caption="x: how many times better format(penstock) is")
    table.add_column("row")
    for title in ("unit", "format(penstock)", "connector on Kafka", "parquet", "x connector", "x parquet"):
        table.add_column(title, justify="right")
    for figure in figures:
        medians = [figure.values.get(way) for way in (PENSTOCK, CONNECTOR, PARQUET)]
        ratios = [ratio(figure, peer) for peer in (CONNECTOR, PARQUET)]
        table.add_row(
            figure.row,
            figure.unit,
            *("-" if not one else f"{statistics.median(one):,.0f}" for one in medians),
            *("-" if one is None else f"{one:.2f}" for one in ratios),
        )
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="an eighth of the data, one round")
    parser.add_argument(
        "--rounds", type=int, help="rounds (3; with --quick 1), after one that is not counted"
    )
    parser.add_argument("--alone", action="store_true", help="without Apache Kafka")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting for Spark, in all rows"
    )
    chosen = parser.parse_args()
    rounds = chosen.rounds or (1 if chosen.quick else 3)
    console = Console(width=None if Console().is_terminal else 140)
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:6.0f} s[/dim]  {text}", highlight=False)

    scratch = Path(tempfile.mkdtemp(prefix="benchmark-spark-"))
    try:
        with interrupted_cleanly(), contextlib.ExitStack() as stack:
            servers: dict[str, Server] = {PENSTOCK: stack.enter_context(Penstock())}
            if not chosen.alone:
                servers[CONNECTOR] = stack.enter_context(MeasuredKafka())
            spark = stack.enter_context(session(scratch, chosen.set))
            bench = Bench(spark, servers, scratch, say)
            sizes = QUICK if chosen.quick else FULL
            touch_memory(sum(size.total_bytes for size in sizes) * 2)
            topics = [(size, bench.fill(size)) for size in sizes]
            for number in range(rounds + 1):
                if number == 1:
                    bench.figures.clear()  # Compilers and caches are warm from here on.
                bench.round(topics, 20)
                say(f"round {number} of {rounds}, load {os.getloadavg()[0]:.1f}")
            figures = list(bench.figures.values())
    except PartMissing as why:
        return not_run(why)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    show(figures, console)
    build.OUT.mkdir(parents=True, exist_ok=True)
    (build.OUT / "spark.json").write_text(json.dumps([figure._asdict() for figure in figures], indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
