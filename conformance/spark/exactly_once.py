"""Exactly once, whatever happens to the driver: topic to topic and topic to table, killed again and again.

    python -m conformance.spark.exactly_once [--kills N] [--seed S]

Numbered records are written to a topic all the time. A Spark driver (`spark.driver`) copies them to another
topic through format("penstock") and to a Parquet table. It is killed with everything that it started. The
next one, whose session came up meanwhile, takes its checkpoints over. A third of the kills come at a random
moment. The others are aimed at moments before the checkpoint knows of a micro-batch: when its plan lies in
the store, when the plan was just carried out, or when the table's own log has the micro-batch. In the end the
topic and the table must hold each record once.

With --sink kafka Spark's own connector writes the topic. It does not promise that: this run is expected to
find duplicates, and shows that they would be found.
"""

import argparse
import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance.parts import ROOT
from conformance.server import interrupted_cleanly
from conformance.spark.jars import connector_jars
from conformance.target import Penstock

SOURCE, TARGET = "numbers", "copies"
PARTITIONS = 2
TARGET_PARTITIONS = 3
RECORDS_A_SECOND = 100
BATCH_RECORDS = 200
CATCH_UP_RECORDS = 20_000
START_TIMEOUT_S = 300
FINISH_TIMEOUT_S = 600
AIM_TIMEOUT_S = 60.0
RANDOM_DELAY_S = 6.0
"""A driver takes about this long from its start to a steady run of micro-batches."""


class Broken(Exception):
    """A promise was broken, or the run could not go on; the message says how."""


class Numbers:
    """Writes numbered records from a thread of its own until told to stop."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20}
        )
        self._stop = threading.Event()
        self.written = 0
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        while not self._stop.wait(0.1):
            for _ in range(RECORDS_A_SECOND // 10):
                self._producer.produce(
                    SOURCE, b"record %d" % self.written, partition=self.written % PARTITIONS
                )
                self.written += 1
            self._producer.poll(0)

    def stop(self) -> set[bytes]:
        """The values of all records, each acknowledged."""
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(60)
        if left:
            raise Broken(f"{left} of the records to copy were not taken by the broker")
        return {b"record %d" % number for number in range(self.written)}


class Driver:
    """One driver with everything that it starts, in a process group of its own."""

    def __init__(self, options: dict[str, Any], log: Path) -> None:
        self._log = log
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "conformance.spark.driver", json.dumps(options)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0,
                env=environment, start_new_session=True,
            )  # fmt: skip
        self._said = b""

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{word}\n".encode())
        except BrokenPipeError:
            raise Broken(f"the driver was not there to be told {word!r}; it said:\n{self.tail()}") from None

    def await_word(self, word: str, seconds: float) -> None:
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            line, end, rest = self._said.partition(b"\n")
            if end:
                self._said = rest
                if line.strip() == word.encode():
                    return
            elif select.select([self._process.stdout], [], [], left)[0]:
                piece = os.read(self._process.stdout.fileno(), 4096)
                if not piece:
                    break
                self._said += piece
        raise Broken(f"the driver did not say {word!r}; it said:\n{self.tail()}")

    def tail(self) -> str:
        """What it said last, without where in Java it was."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in lines if not line.startswith("\tat ")][-60:])

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """kill -9 of the driver, its JVM and its Python workers at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class Aim:
    """The moment of a kill: what the store and the checkpoints show of a micro-batch on its way."""

    def __init__(self, store: Path, home: Path) -> None:
        self._plans = store / "spark" / "plan"
        self._table = home / "table" / "_spark_metadata"
        self._home = home

    def newest_plan(self) -> tuple[int, int]:
        """Number and size of the newest plan. One that was carried out loses its data, so it shrinks."""
        newest = (-1, 0)
        with contextlib.suppress(OSError):
            for folder in self._plans.iterdir():
                for file in folder.iterdir():
                    if file.name.isdigit():
                        newest = max(newest, (int(file.name), file.stat().st_size))
        return newest

    def newest(self, folder: Path) -> int:
        """The newest micro-batch that a log of Spark's has."""
        with contextlib.suppress(OSError):
            names = (file.name.removesuffix(".compact") for file in folder.iterdir())
            return max((int(name) for name in names if name.isdigit()), default=-1)
        return -1

    def begun(self) -> int:
        """How many micro-batches were begun in all."""
        return sum(self.newest(self._home / query / "offsets") for query in ("to-topic", "to-table"))

    def ahead(self) -> list[str]:
        """Which sinks have a micro-batch that their query's checkpoint has not."""
        found = []
        if self.newest_plan()[0] > self.newest(self._home / "to-topic" / "commits"):
            found.append("topic")
        if self.newest(self._table) > self.newest(self._home / "to-table" / "commits"):
            found.append("table")
        return found

    def planned(self) -> Callable[[], bool]:
        before = self.newest_plan()[0]
        return lambda: self.newest_plan()[0] > before

    def carried_out(self) -> Callable[[], bool]:
        """A plan beyond the present one was made, and then shrank."""
        before = self.newest_plan()[0]
        seen: dict[int, int] = {}

        def done() -> bool:
            number, size = self.newest_plan()
            return number > before and size < seen.setdefault(number, size)

        return done

    def in_table(self) -> Callable[[], bool]:
        before = self.newest(self._table)
        return lambda: self.newest(self._table) > before


class Run:
    def __init__(self, server: Penstock, home: Path, sink: str, seed: int) -> None:
        self._server = server
        self._home = home
        self._random = random.Random(seed)
        self._options = {
            "bootstrap": server.bootstrap, "store": str(server.folder / "store"), "home": str(home),
            "source": SOURCE, "target": TARGET, "sink": sink,
            "jars": connector_jars() if sink == "kafka" else "",
        }  # fmt: skip
        self._aim = Aim(server.folder / "store", home)
        self._drivers: list[Driver] = []
        self._waiting: Driver | None = None
        self.kills = 0
        self.between: Counter[str] = Counter()

    def spare(self) -> Driver:
        """A driver whose session comes up while another one works."""
        driver = Driver(self._options, self._home / "driver.log")
        self._drivers.append(driver)
        return driver

    def close(self) -> None:
        for driver in self._drivers:
            driver.kill()

    def kill_often(self, kills: int) -> None:
        # A topic that the connector writes has no plans to aim at: it grows, and then there is a checkpoint.
        aimed = [self._aim.planned, self._aim.carried_out, self._aim.in_table]
        ways: list[Callable[[], Callable[[], bool]] | None] = [
            None,
            *(aimed if not self._options["jars"] else [self._grown]),
        ]
        for number in range(kills):
            driver, self._waiting = self._waiting or self.spare(), None
            driver.await_word("ready", START_TIMEOUT_S)
            driver.tell(f"go {BATCH_RECORDS}")
            way = ways[number % len(ways)]
            began = time.monotonic()
            moment = self._strike(driver, way() if way is not None else None)
            driver.kill()
            self._drivers.remove(driver)
            self.kills += 1
            ahead = self._aim.ahead()
            self.between.update(ahead)
            print(
                f"kill {number + 1:3d}  {moment}, {time.monotonic() - began:.1f} s after the start"
                f"{'; ahead of the checkpoint: ' + ', '.join(ahead) if ahead else ''}",
                flush=True,
            )

    def _grown(self) -> Callable[[], bool]:
        consumer = Consumer({"bootstrap.servers": self._server.bootstrap, "group.id": "aim"})
        places = [TopicPartition(TARGET, partition) for partition in range(TARGET_PARTITIONS)]

        def records() -> int:
            return sum(consumer.get_watermark_offsets(place, 30)[1] for place in places)

        before = records()
        return lambda: records() > before

    def _strike(self, driver: Driver, seen: Callable[[], bool] | None) -> str:
        """Wait for the moment to kill; what it was."""
        deadline = time.monotonic() + (AIM_TIMEOUT_S if seen else self._random.uniform(0, RANDOM_DELAY_S))
        before = self._aim.begun()
        while time.monotonic() < deadline:
            if self._waiting is None and self._aim.begun() > before:
                # Not sooner: the two would compete for the processor, and Spark's patience is short.
                self._waiting = self.spare()
            if seen is not None and seen():
                # At once, or a little later: somewhere on the way to the checkpoint.
                time.sleep(self._random.choice((0.0, 0.0, 0.02, 0.1)))
                return "aimed"
            if not driver.alive():
                raise Broken(f"the driver ended by itself; it said:\n{driver.tail()}")
            time.sleep(0.002)
        return "aimed, and missed" if seen is not None else "at random"

    def finish(self) -> list[bytes]:
        """Let the last driver catch up; the values in the table."""
        last = self._waiting or self.spare()
        last.await_word("ready", START_TIMEOUT_S)
        last.tell(f"go {CATCH_UP_RECORDS}")
        last.tell("finish")
        last.await_word("finished", FINISH_TIMEOUT_S)
        return [bytes.fromhex(line) for line in (self._home / "values").read_text().splitlines()]


def values_of(bootstrap: str, topic: str, partitions: int) -> Iterator[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "check", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    ended = 0
    while ended < partitions:
        message = consumer.poll(120)
        if message is None:
            raise Broken(f"{topic} was not read to its end: nothing came for 120 s")
        if message.error():
            ended += 1
            continue
        yield message.value() or b""
    consumer.close()


def judge(name: str, written: set[bytes], found: Iterable[bytes]) -> bool:
    counts = Counter(found)
    lost = written - counts.keys()
    strange = counts.keys() - written
    twice = [value for value, count in counts.items() if count > 1]
    print(
        f"{name}: {len(written):,} records written, {len(lost):,} lost, {len(twice):,} more than once,"
        f" {len(strange):,} never written",
        flush=True,
    )
    for what, some in (("lost", lost), ("more than once", twice), ("never written", strange)):
        if some:
            print(f"    {what}: {', '.join(repr(value) for value in sorted(some)[:5])}")
    return not lost and not twice and not strange


def run(kills: int, seed: int, sink: str) -> int:
    home = Path(tempfile.mkdtemp(prefix="exactly-once-"))
    try:
        with interrupted_cleanly(), Penstock() as server:
            admin = AdminClient({"bootstrap.servers": server.bootstrap})
            topics = [NewTopic(SOURCE, PARTITIONS, 1), NewTopic(TARGET, TARGET_PARTITIONS, 1)]
            for done in admin.create_topics(topics).values():
                done.result(30)
            trial = Run(server, home, sink, seed)
            numbers = Numbers(server.bootstrap)
            try:
                trial.kill_often(kills)
                written = numbers.stop()
                table = trial.finish()
            finally:
                trial.close()
            print(
                f"{trial.kills} kills; found a sink ahead of its checkpoint: topic {trial.between['topic']} times,"
                f" table {trial.between['table']} times"
            )
            copies = values_of(server.bootstrap, TARGET, TARGET_PARTITIONS)
            held = [judge("topic to topic", written, copies), judge("topic to table", written, table)]
            return 0 if all(held) else 1
    except Broken as broken:
        print(f"broken: {broken}")
        return 1
    finally:
        shutil.rmtree(home, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.spark.exactly_once", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--sink", choices=("penstock", "kafka"), default="penstock")
    chosen = parser.parse_args()
    began = time.monotonic()
    print(f"seed {chosen.seed}", flush=True)
    code = run(chosen.kills, chosen.seed, chosen.sink)
    print(f"{time.monotonic() - began:.0f} s")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
