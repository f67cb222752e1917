"""`penstock.spark.table` at any moment: each acknowledged record once, in the table or in the tail.

    python -m conformance.pipelines.table [--rounds 8] [--seed N] [--scan 200000] [--without-engine]

Records are written all the time. A pipeline keeps an Iceberg table of them, and is killed with SIGKILL at random
moments. Between and beside its commits another engine (Spark 4.1 with Iceberg's own jar, from Maven Central) compacts the
table and expires its snapshots, partitions are added, and records that the table has are deleted from the log. Each
look through `table` is compared with what was acknowledged before it: nothing is missing, nothing is there twice, and
nothing is there that was not sent. At the end the broker is killed, and the look is made without it.

Then a figure: a scan through `table` beside plain `spark.read.parquet` of the same files, with and without a tail.
One line a look; the exit code says whether all held.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from conformance.parts import NOT_RUN, ROOT, PartMissing
from conformance.pipelines.__main__ import Driver
from conformance.pipelines.engine import Engine
from conformance.pipelines.place import BRIEF_JAVA, RUN_SECONDS
from conformance.server import interrupted_cleanly
from conformance.target import Penstock
from penstock.pipeline.errors import no_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "numbers"
TRIES = 5
"""Spark gives a Python process ten seconds to start, which a busy machine may not keep: nothing was read then."""
DEFINITION = """
from penstock.pipeline import Pipeline

pipeline = Pipeline("lake")
pipeline.source("numbers")

@pipeline.table("rows", format="iceberg")
def rows(numbers):
    return numbers
"""
Records = dict[tuple[int, int], bytes]


class Writer:
    """Writes without end, and knows what was acknowledged, and where."""

    def __init__(self, broker: Penstock) -> None:
        self.partitions = 3
        self.acknowledged: Records = {}
        self.sent = 0
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def write(self, count: int, size: int = 0) -> None:
        for _ in range(count):
            value = b"%d " % self.sent + os.urandom(size)
            self._producer.produce(TOPIC, value, b"k", self.sent % self.partitions, self._delivered)
            self._producer.poll(0)
            self.sent += 1
        if self._producer.flush(120):
            raise RuntimeError("records could not be written")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged[message.partition(), message.offset()] = message.value()

    def use(self, partitions: int) -> None:
        self._producer.list_topics(TOPIC, 30)  # Else the client takes minutes to hear of the new one.
        self.partitions = partitions

    def start(self) -> None:
        self._thread.start()

    def _work(self) -> None:
        while not self._stop.wait(0.2):
            self.write(20)

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()


class Lake:
    """A broker, its topic, the pipeline that keeps its table, and the looks at it."""

    def __init__(self, broker: Penstock, spark: "SparkSession") -> None:
        self.broker = broker
        self.spark = spark
        self.store = str(broker.folder / "store")
        self.path = broker.folder / "store" / "pipelines" / "lake" / "tables" / "rows"
        self.file = broker.folder / "lake.py"
        self.file.write_text(DEFINITION)
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for made in self.admin.create_topics([NewTopic(TOPIC, 3, 1)]).values():
            made.result(30)
        self.writer = Writer(broker)
        self.looks = 0

    def command(self, *arguments: str | Path) -> list[str]:
        where = ("--bootstrap", self.broker.bootstrap)
        return [sys.executable, "-m", "penstock", "pipeline", *map(str, arguments), *where]

    def keep(self) -> None:
        """Bring the table up to date."""

        def run() -> None:
            done = subprocess.run(
                self.command("run", self.file, "--once", *BRIEF_JAVA),
                capture_output=True, text=True, timeout=RUN_SECONDS, check=False,
            )  # fmt: skip
            if done.returncode:
                raise RuntimeError(f"a run failed: {done.stderr.strip() or done.stdout.strip()}")

        patiently(run)

    def table(self, **options: Any) -> "DataFrame":
        import penstock.spark

        return penstock.spark.table(self.spark, self.store, TOPIC, **options)

    def look(self, when: str, *, whole: bool = False) -> None:
        """Raises AssertionError. `whole`: nobody writes now, so the rows are exactly what was acknowledged."""
        before = dict(self.writer.acknowledged)
        rows = patiently(self.table(columns=["partition", "offset", "value"]).collect)
        found: Records = {(row.partition, row.offset): bytes(row.value) for row in rows}
        sent = self.writer.sent
        held = self.in_table()
        twice = len(rows) - len(found)
        lost = [one for one, value in before.items() if found.get(one) != value]
        foreign = [one for one, value in found.items() if int(value.split(b" ")[0]) >= sent]
        values = len(rows) - len({bytes(row.value).split(b" ")[0] for row in rows})
        late = len(found) - len(before) if whole else 0
        self.looks += 1
        said = f"{when}: {len(rows)} rows, {len(before)} acknowledged before; the table has {held} now"
        if twice or lost or foreign or values or late:
            raise AssertionError(
                f"{said}; {twice} twice, {values} values twice, {len(lost)} lost (first {lost[:3]}),"
                f" {len(foreign)} foreign, {late} too many"
            )
        print(f"    {said}", flush=True)

    def in_table(self) -> int:
        from penstock.spark.tables.reading import Wanted, look

        held, _tail = look(Wanted(self.store, TOPIC))
        return _rows_in(held.files) if held is not None else 0

    def grow(self) -> None:
        count = self.writer.partitions + 1
        for done in self.admin.create_partitions([NewPartitions(TOPIC, count)]).values():
            done.result(30)
        self.writer.use(count)

    def delete(self) -> None:
        """From the log, what the table has."""
        from penstock.spark.tables.reading import Wanted, look

        held, tail = look(Wanted(self.store, TOPIC))
        if held is not None and held.position is not None:
            wanted = [TopicPartition(TOPIC, number, one.low) for number, one in tail.items()]
            # A client that asked before knows nothing of partitions that are new.
            fresh = AdminClient({"bootstrap.servers": self.broker.bootstrap})
            for done in fresh.delete_records(wanted).values():
                done.result(30)


def _rows_in(files: tuple[str, ...]) -> int:
    import pyarrow.parquet as pq

    return sum(pq.ParquetFile(one.removeprefix("file://")).metadata.num_rows for one in files)


def patiently(work: Callable[[], Any]) -> Any:
    for left in reversed(range(TRIES)):
        try:
            return work()
        except Exception as error:
            if not left or not no_worker(error):
                raise
    raise AssertionError("the last try returns or raises")


def at_any_moment(lake: Lake, engine: Engine | None, rounds: int, chance: random.Random) -> str:
    """Commits, kills, compactions and the rest, in an order that chance makes; a look after each."""
    done: dict[str, int] = {}
    kinds: dict[str, Callable[[], object]] = {"partition added": lake.grow, "log shortened": lake.delete}
    if engine is not None:
        kinds |= {"compacted": engine.compact, "expired": lambda: (engine.compact(), engine.expire())}
    order = [name for _ in range(rounds) for name in chance.sample(sorted(kinds), len(kinds))][: 2 * rounds]
    lake.writer.start()
    try:
        for number in range(rounds):
            driver = Driver(lake, lake.file, "--interval", "200 milliseconds")
            try:
                driver.wait_running()
                time.sleep(chance.uniform(0.0, 6.0))
                lake.look(f"round {number + 1}, the pipeline runs")
                what = order[2 * number]
                kinds[what]()
                done[what] = done.get(what, 0) + 1
                lake.look(f"round {number + 1}, {what} beside it")
            finally:
                driver.kill()
            lake.look(f"round {number + 1}, killed")
            what = order[2 * number + 1]
            kinds[what]()
            done[what] = done.get(what, 0) + 1
            lake.look(f"round {number + 1}, {what} while it is stopped")
    finally:
        lake.writer.stop()
    lake.look("nobody writes any more", whole=True)
    lake.keep()
    lake.look("the table has all", whole=True)
    if engine is not None and engine.rows() != lake.in_table():
        raise AssertionError(
            f"the other engine finds {engine.rows()} rows in the table, not {lake.in_table()}"
        )
    lake.writer.write(100)
    lake.broker.kill()
    lake.look("the broker is dead", whole=True)
    told = ", ".join(f"{name} {count}" for name, count in sorted(done.items()))
    return f"{lake.looks} looks, {rounds} kills, {told}: {len(lake.writer.acknowledged)} records, each once in each"


def scans(lake: Lake, rows: int) -> str:
    """The same rows by `table` and by Spark's Parquet reader; then with a tail of a tenth."""
    from penstock.spark.tables.reading import Wanted, look

    lake.writer.write(rows, 1000)
    lake.keep()

    def total(frame: "DataFrame") -> tuple[float, Any]:
        began = time.monotonic()
        answer = patiently(frame.selectExpr("count(*)", "sum(length(value))").first)
        return time.monotonic() - began, answer

    held, _tail = look(Wanted(lake.store, TOPIC))
    assert held is not None
    ways: dict[str, Callable[[], DataFrame]] = {
        "plain": lambda: lake.spark.read.parquet(*held.files),
        "table": lambda: lake.table(columns=["value"]),
    }
    times: dict[str, list[float]] = {name: [] for name in (*ways, "with a tail")}
    for _ in range(4):
        answers = set()
        for name, way in ways.items():
            began = time.monotonic()
            took, answer = total(way())
            times[name].append(max(took, time.monotonic() - began))
            answers.add(tuple(answer))
        if len(answers) != 1:
            raise AssertionError(f"the ways differ: {answers}")
    lake.writer.write(rows // 10, 1000)
    for _ in range(4):
        began = time.monotonic()
        _took, answer = total(lake.table(columns=["value"]))
        times["with a tail"].append(time.monotonic() - began)
        if answer[0] != rows + rows // 10:
            raise AssertionError(f"{answer[0]} rows, not {rows + rows // 10}")
    plain, table, tail = (statistics.median(found[1:]) for found in times.values())
    return (
        f"{rows} rows of 1 kB: spark.read.parquet {plain:.2f} s, table {table:.2f} s ({table / plain:.2f} times);"
        f" with a tail of {rows // 10} rows {tail:.2f} s ({tail / plain:.2f} times)"
    )


def session() -> "SparkSession":
    from pyspark.sql import SparkSession

    import penstock.spark
    from penstock.spark.java import prepare_java

    prepare_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in {
        "spark.log.level": "OFF", "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false", "spark.sql.session.timeZone": "UTC",
    }.items():  # fmt: skip
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    penstock.spark.register(spark)
    return spark


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8, help="kills of the driver (default: 8)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument(
        "--scan", type=int, default=200_000, help="rows of the scan (default: 200000); 0: none"
    )
    parser.add_argument("--without-engine", action="store_true", help="nobody compacts the table")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])
    )
    began = time.monotonic()
    with interrupted_cleanly(), ExitStack() as stack:
        spark = session()
        stack.callback(spark.stop)
        try:
            lake = Lake(stack.enter_context(Penstock()), spark)
            lake.look("the topic is empty", whole=True)
            lake.writer.write(500)
            lake.look("there is no table", whole=True)
            lake.keep()
            engine = None
            if not options.without_engine:
                engine = stack.enter_context(Engine(lake.path, lake.broker.folder / "engine.log"))
            said = at_any_moment(lake, engine, options.rounds, random.Random(options.seed))
            print(f"held  {said}  ({time.monotonic() - began:.0f} s)", flush=True)
            if options.scan:
                with Penstock() as broker:
                    print(f"scan  {scans(Lake(broker, spark), options.scan)}", flush=True)
        except PartMissing as why:
            print(f"not run  {why}", flush=True)
            return NOT_RUN
        except (AssertionError, RuntimeError, subprocess.SubprocessError) as error:
            print(f"BROKEN  {error}", flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
