"""Pipelines as users run them: by the command, killed at random, on a cluster of processes, to every table.

    python -m conformance.pipelines [--rounds 50] [--few 3] [--only kills,cluster,delta,iceberg,s3] [--seed N]

kills     the driver is killed with SIGKILL at random moments while records are written: its Python, its Java,
          or both at once. At the end the table, the topic and the dead letters hold each record exactly once,
          and any reader of Parquet agrees.
cluster   the same definition on a standalone Spark cluster: a master, a worker and its executors are processes
          of their own.
delta     a Delta table, with the jar from Maven Central, killed and run again.
iceberg   an Iceberg table, read back by pyiceberg, killed and run again.
s3        log, checkpoints and a Parquet table on an S3 server (needs Go), with Hadoop's jars from Maven
          Central (700 MB the first time), killed and run again.

One line a kill and a check; the exit code says whether all held. A round takes about 20 s on two cores that
nobody else uses. `--rounds` can be had in slices: each one is judged by itself.
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance.parts import ROOT, PartMissing
from conformance.s3.server import BUCKET, S3Server
from conformance.server import free_port, interrupted_cleanly
from conformance.target import Penstock
from penstock.testing.waiting import until

START_SECONDS = 300
RUN_SECONDS = 600
"""For a machine that others use as well: these bound what hangs, nothing is expected to take so long."""
ENDS_SECONDS = 60
BAD_EVERY = 50
PARTITIONS = 3
TOPIC = "numbers"
BRIEF_JAVA = ("--set", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1")
"""A driver that lives for seconds gains nothing from the slower one of Java's compilers."""

CHECKS = ("kills", "cluster", "delta", "iceberg", "s3")

DEFINITION = """
from penstock.pipeline import Json, Pipeline

pipeline = Pipeline("{name}")
numbers = pipeline.source("numbers", value=Json("n long not null, text string"), dead_letters="{name}.dead")

@pipeline.table("rows", format="{format}")
def rows(numbers):
    return numbers.select("value.n", "value.text", "partition", "offset", "timestamp")

@pipeline.topic("{name}.even", key="n")
def even(numbers):
    return numbers.where("value.n % 2 = 0").select("value.n")
"""


class Place:
    """A broker with a topic, and the pipelines that are run on it."""

    def __init__(self, broker: Penstock) -> None:
        self.broker = broker
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
            made.result(30)
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20})
        self.written = 0

    def write(self, count: int) -> None:
        for _ in range(count):
            number = self.written
            value = json.dumps({"n": number, "text": f"text {number}" * 5}).encode()
            bad = number % BAD_EVERY == 7
            self._producer.produce(TOPIC, b"bad %d" % number if bad else value, b"%d" % number)
            self._producer.poll(0)
            self.written += 1
        if self._producer.flush(60):
            raise RuntimeError("records could not be written")

    def define(self, name: str, kind: str = "parquet") -> Path:
        file = self.broker.folder / f"{name}.py"
        file.write_text(DEFINITION.format(name=name, format=kind))
        return file

    def command(self, *arguments: str | Path) -> list[str]:
        return [
            sys.executable,
            "-m",
            "penstock",
            "pipeline",
            *map(str, arguments),
            "--bootstrap",
            self.broker.bootstrap,
        ]

    def run(self, file: Path, *arguments: str) -> None:
        """Everything that is there now."""
        done = subprocess.run(
            self.command("run", file, "--once", *BRIEF_JAVA, *arguments),
            capture_output=True, text=True, timeout=RUN_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"a run failed: {done.stderr.strip() or done.stdout.strip()}")

    def status(self, file: Path) -> dict[str, Any]:
        done = subprocess.run(
            self.command("status", file), capture_output=True, text=True, timeout=60, check=True
        )
        (found,) = json.loads(done.stdout)
        return dict(found)

    def table(self, name: str) -> Path:
        return self.broker.folder / "store" / "pipelines" / name / "tables" / "rows"

    def topic(self, topic: str) -> list[Any]:
        consumer = Consumer(
            {"bootstrap.servers": self.broker.bootstrap, "group.id": "check", "enable.auto.commit": False}
        )
        found = []
        for number in consumer.list_topics(topic, 30).topics[topic].partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), 30)
            consumer.assign([TopicPartition(topic, number, low)])
            while low < high:
                message = consumer.poll(30)
                if message is None or message.error():
                    raise RuntimeError(f"{topic} cannot be read: {message and message.error()}")
                found.append(message)
                low = (message.offset() or 0) + 1
        consumer.close()
        return found

    def judge(self, name: str, table: list[int]) -> str:
        """Each record once, in the table, in the topic or among the dead letters. Raises AssertionError."""
        good = [n for n in range(self.written) if n % BAD_EVERY != 7]
        exactly("the table", table, good)
        sent = [json.loads(one.value() or b"")["n"] for one in self.topic(f"{name}.even")]
        exactly("the topic", sent, [n for n in good if n % 2 == 0])
        letters = self.topic(f"{name}.dead")
        dead = [int((one.value() or b"").split()[1]) for one in letters]
        exactly("the dead letters", dead, [n for n in range(self.written) if n % BAD_EVERY == 7])
        for one in letters:
            headers = dict(one.headers() or [])
            if headers["__connect.errors.topic"] != TOPIC.encode():
                raise AssertionError(f"a dead letter is said to be of {headers}")
        return f"{len(table)} rows, {len(sent)} records, {len(dead)} dead letters, each once"


def exactly(what: str, found: list[int], wanted: list[int]) -> None:
    counts = Counter(found)
    lost = [n for n in wanted if n not in counts]
    twice = [n for n, count in counts.items() if count > 1]
    foreign = counts.keys() - set(wanted)
    if lost or twice or foreign:
        raise AssertionError(
            f"{what}: {len(lost)} lost (first {lost[:3]}), {len(twice)} more than once (first {twice[:3]}),"
            f" {len(foreign)} foreign (first {sorted(foreign)[:3]})"
        )


def parquet_rows(path: Path) -> list[int]:
    """By Arrow, which knows nothing of Spark; and file by file, all that are not hidden."""
    found = ds.dataset(path, format="parquet").to_table(columns=["n"]).column("n").to_pylist()
    files = [
        one
        for one in path.rglob("*.parquet")
        if not any(part[:1] in "._" for part in one.relative_to(path).parts)
    ]
    if sum(pq.ParquetFile(one).metadata.num_rows for one in files) != len(found):
        raise AssertionError("a reader of files sees other rows than a reader of the table")
    return [int(n) for n in found]


def delta_rows(path: Path) -> list[int]:
    """By the table's own log: what was added and not removed."""
    live: dict[str, None] = {}
    for entry in sorted((path / "_delta_log").glob("*.json")):
        for line in entry.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                live[action["add"]["path"]] = None
            elif "remove" in action:
                live.pop(action["remove"]["path"], None)
    return [int(n) for one in live for n in pq.read_table(path / one, columns=["n"]).column("n").to_pylist()]


def iceberg_rows(path: Path) -> list[int]:
    from pyiceberg.catalog import load_catalog

    place = f"sqlite:///{path}/catalog.db"
    with contextlib.closing(
        load_catalog("penstock", type="sql", uri=place, warehouse=f"file://{path}")
    ) as catalog:
        found = catalog.load_table("penstock.rows").scan(selected_fields=("n",)).to_arrow()
    return [int(n) for n in found.column("n").to_pylist()]


def s3_rows(path: Path) -> list[int]:
    """Of the table at the same place in the bucket."""
    from pyarrow import fs

    host = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
    bucket = fs.S3FileSystem(endpoint_override=host, scheme="http")
    place = f"{BUCKET}/{'/'.join(path.parts[path.parts.index('store') :])}"
    found = ds.dataset(place, filesystem=bucket, format="parquet").to_table(columns=["n"])
    return [int(n) for n in found.column("n").to_pylist()]


class PenstockOnS3(Penstock):
    def command(self) -> list[str]:
        store = str(self.folder / "store")
        return [f"s3://{BUCKET}/store" if one == store else one for one in super().command()]


class Driver:
    """`penstock pipeline run`, following, in a process that can be killed."""

    def __init__(self, place: Place, file: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            place.command("run", file, *BRIEF_JAVA, *arguments),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self.said: list[str] = []
        self.running = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip())
            if ": running on" in line:
                self.running.set()
        self.running.set()

    def wait_running(self) -> None:
        if not self.running.wait(START_SECONDS) or self.process.poll() is not None:
            self.kill()
            raise RuntimeError("the pipeline did not start: " + " / ".join(self.said[-5:]))

    def kill(self, what: str = "both") -> str:
        """kill -9; the state that the pipeline is to be in then.

        A Java that is left alone ends by itself, perhaps after the next driver has begun. A Python that is
        left alone says so and fails.
        """
        if what == "java":
            os.kill(self._java(), signal.SIGKILL)
            self.process.wait(ENDS_SECONDS)
            if not any("Spark has ended" in line for line in self.said[-1:]):
                raise AssertionError(f"without Java, the driver said {self.said[-3:]}")
            return "failed"
        with contextlib.suppress(ProcessLookupError):
            if what == "both":
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        self.process.wait()
        return "crashed"

    def _java(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        for number in (int(one) for file in children for one in file.read_text().split()):
            if Path(f"/proc/{number}/comm").read_text().strip() == "java":
                return number
        raise RuntimeError("the driver has no Java")


def killed(
    place: Place, name: str, kind: str, rows: Callable[[Path], list[int]], rounds: int, chance: random.Random
) -> str:
    """Run, kill, run again, while records come in; then finish, and judge."""
    file = place.define(name, kind)
    stop = threading.Event()

    def keep_writing() -> None:
        while not stop.wait(0.2):
            place.write(20)

    writer = threading.Thread(target=keep_writing)
    writer.start()
    kinds: Counter[str] = Counter()
    try:
        for number in range(rounds):
            driver = Driver(place, file, "--interval", "200 milliseconds")
            try:
                driver.wait_running()
                # When exactly, is the point of it: anywhere in the first micro-batches after a restart, or later.
                delay = chance.uniform(0.0, 8.0)
                time.sleep(delay)
                what = chance.choice(("python", "java", "both"))
                wanted = driver.kill(what)
            finally:
                driver.kill()
            kinds[what] += 1
            found = place.status(file)
            print(
                f"    {name}: kill {number + 1} of {rounds}, {what}, {delay:.1f} s after the start;"
                f" {found['state']}, lag {found['lag']}",
                flush=True,
            )
            if found["state"] != wanted:
                raise AssertionError(f"{what} was killed and the status is {found['state']}, not {wanted}")
    finally:
        stop.set()
        writer.join()
    place.run(file)
    state = place.status(file)
    if state["state"] != "finished" or state["lag"] != 0:
        raise AssertionError(f"at the end the status is {state['state']} with a lag of {state['lag']}")
    shares = ", ".join(f"{what} {count}" for what, count in sorted(kinds.items()))
    return f"{rounds} kills ({shares}): {place.judge(name, rows(place.table(name)))}"


@contextlib.contextmanager
def spark_cluster(folder: Path) -> Iterator[tuple[str, Path]]:
    """A master and a worker, as processes; their address, and the worker's directory."""
    import pyspark

    from penstock.spark.java import prepare_java

    prepare_java()
    port = free_port()
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    master = [
        "org.apache.spark.deploy.master.Master",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--webui-port",
        "0",
    ]
    work = folder / "work"
    worker = [
        "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "-c", "2", "-m", "2g",
        "-d", str(work), f"spark://127.0.0.1:{port}",
    ]  # fmt: skip
    started = []
    try:
        for arguments in (master, worker):
            log = (folder / f"{arguments[0].rpartition('.')[2]}.log").open("w")
            started.append(
                subprocess.Popen(
                    [str(spark_class), *arguments],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
        said, words = folder / "Worker.log", "Successfully registered with master"
        until(lambda: words in said.read_text(errors="replace"), 60, f"{words!r} in {said}")
        yield f"spark://127.0.0.1:{port}", work
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def on_cluster(place: Place) -> str:
    file = place.define("far")
    with spark_cluster(place.broker.folder) as (master, work):
        for _ in range(2):
            place.write(3_000)
            place.run(file, "--master", master, "--set", "spark.sql.shuffle.partitions=2")
        executors = sorted(work.glob("app-*/*/stderr"))
        if len(executors) < 2:
            raise AssertionError(f"the runs left the logs of {len(executors)} executors in {work}")
        if not re.search(r"Finished task|Running task", executors[0].read_text(errors="replace")):
            raise AssertionError("the executor ran no task")
        driver = Driver(place, file, "--master", master, "--interval", "200 milliseconds")
        try:
            driver.wait_running()
            place.write(2_000)
            time.sleep(4)
        finally:
            driver.kill()
        place.run(file, "--master", master)
    return f"{len(executors)} runs and one killed: {place.judge('far', parquet_rows(place.table('far')))}"


@contextlib.contextmanager
def broker_for(check: str) -> Iterator[Penstock]:
    if check != "s3":
        with Penstock() as broker:
            yield broker
        return
    with S3Server() as server:
        os.environ.update(server.environment)
        with PenstockOnS3() as broker:
            yield broker


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50, help="kills of the driver (default: 50)")
    parser.add_argument("--few", type=int, default=3, help="kills in each other check (default: 3)")
    parser.add_argument("--only", default=",".join(CHECKS), help="which checks, by comma (default: all)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    chance = random.Random(options.seed)
    checks: dict[str, Callable[[Place], str]] = {
        "kills": lambda place: killed(place, "near", "parquet", parquet_rows, options.rounds, chance),
        "cluster": on_cluster,
        "delta": lambda place: killed(place, "delta", "delta", delta_rows, options.few, chance),
        "iceberg": lambda place: killed(place, "ice", "iceberg", iceberg_rows, options.few, chance),
        "s3": lambda place: killed(place, "remote", "parquet", s3_rows, options.few, chance),
    }
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(CHECKS):
        parser.error(f"there is no check {sorted(unknown)[0]!r}, only {', '.join(checks)}")
    print(f"seed {options.seed}", flush=True)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]).strip(
        os.pathsep
    )
    failed = 0
    with interrupted_cleanly():
        for name in chosen:
            began = time.monotonic()
            try:
                with broker_for(name) as broker:
                    place = Place(broker)
                    place.write(500)
                    said, held = checks[name](place), True
            except (AssertionError, RuntimeError, PartMissing, subprocess.SubprocessError) as error:
                said, held = str(error), False
            failed += not held
            print(
                f"{'held' if held else 'BROKEN'}  {name}  {said}  ({time.monotonic() - began:.0f} s)",
                flush=True,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
