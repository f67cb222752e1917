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
from typing import Protocol

from conformance.parts import NOT_RUN, ROOT, PartMissing
from conformance.pipelines.place import BRIEF_JAVA, Place
from conformance.pipelines.rows import delta_rows, iceberg_rows, parquet_rows, s3_rows
from conformance.s3.server import BUCKET, S3Server
from conformance.server import free_port, interrupted_cleanly
from conformance.target import Penstock
from penstock.testing.waiting import until

START_SECONDS = 300
"""For a machine that others use as well: this bounds what hangs, nothing is expected to take so long."""
ENDS_SECONDS = 60
CHECKS = ("kills", "cluster", "delta", "iceberg", "s3")


class PenstockOnS3(Penstock):
    def command(self) -> list[str]:
        store = str(self.folder / "store")
        return [f"s3://{BUCKET}/store" if one == store else one for one in super().command()]


class Commands(Protocol):
    def command(self, *arguments: str | Path) -> list[str]:
        """`penstock pipeline` with these arguments, on a cluster."""


class Driver:
    """`penstock pipeline run`, following, in a process that can be killed."""

    def __init__(self, place: Commands, file: Path, *arguments: str) -> None:
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
    verdicts: Counter[str] = Counter()
    with interrupted_cleanly():
        for name in chosen:
            began = time.monotonic()
            try:
                with broker_for(name) as broker:
                    place = Place(broker)
                    place.write(500)
                    said, verdict = checks[name](place), "held"
            except PartMissing as why:
                said, verdict = str(why), "not run"
            except (AssertionError, RuntimeError, subprocess.SubprocessError) as error:
                said, verdict = str(error), "BROKEN"
            verdicts[verdict] += 1
            print(f"{verdict}  {name}  {said}  ({time.monotonic() - began:.0f} s)", flush=True)
    if verdicts["BROKEN"]:
        return 1
    return NOT_RUN if verdicts["not run"] else 0


if __name__ == "__main__":
    sys.exit(main())
