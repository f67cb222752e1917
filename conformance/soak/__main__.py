"""A mixed load for an hour: the store levels off, and so do files, descriptors and memory.

A busy topic with retention.bytes, many topics with a record now and then, a compacted topic, topics that are
created and deleted, groups that come and go, and a kill -9 of a broker every few minutes. Every few seconds
the run notes the bytes in the store, the bytes that can be read, and the memory and files of the brokers. At
the end it reads every record that must be there. The verdict says whether each figure levelled off, and
whether the store holds at most about twice what can be read. `--out` gets samples.csv, result.json and
soak.svg. A short run scales its delays with it.
"""

import argparse
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from conformance.cluster.processes import Cluster
from conformance.parts import ROOT, PartMissing, not_run
from conformance.s3.server import S3Server
from conformance.server import ServerFailed, interrupted_cleanly
from conformance.soak.load import Busy, Comers, Compacted, Groups, Load, Slow
from conformance.soak.samples import Allowance, Sample, judge, stored_sizes, to_csv, to_svg
from penstock.client import Client, ClientError
from penstock.wire.api.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse

FULL_MINUTES = 60.0
SAMPLES = 360
SLOW_TOPICS = 150
BUSY_BYTES_PER_S = 250_000.0
RETENTION_BYTES = 24 << 20
SETTLE_BYTES = 16 << 20
LISTENING_S = 5.0


class Soak:
    def __init__(self, minutes: float, seed: int, store: S3Server | None) -> None:
        self.seconds = minutes * 60
        scale = min(1.0, minutes / FULL_MINUTES)
        self._delete_delay_s = max(3.0, 60 * scale)
        settings = {
            "broker.session.timeout.ms": "3000",
            "wal.settle.interval.ms": str(int(max(1000, 10_000 * scale))),
            "wal.settle.bytes": str(SETTLE_BYTES),
            "log.segment.delete.delay.ms": str(int(self._delete_delay_s * 1000)),
            "log.retention.check.interval.ms": str(int(max(1000, 30_000 * scale))),
            "log.cleaner.backoff.ms": str(int(max(500, 15_000 * scale))),
            # The log is trimmed two snapshots later: some must come within the run, as they do within a day.
            "metadata.snapshot.entries": str(int(max(50, 200 * scale))),
            "group.initial.rebalance.delay.ms": "0",
            "offsets.retention.minutes": "1",
            "offsets.retention.check.interval.ms": "10000",
        }
        environment = None if store is None else (lambda _folder: {**os.environ, **store.environment})
        self.cluster = Cluster(
            2, settings, environment=environment, store=None if store is None else store.url
        )
        self._objects = Path(self.cluster.store) if store is None else store.objects
        self._chance = random.Random(seed)
        self._kill_every_s = max(25.0, 240 * scale)
        bootstrap = self.cluster.bootstrap
        self.loads: list[Load] = [
            Busy(bootstrap, BUSY_BYTES_PER_S / max(scale, 0.25), RETENTION_BYTES),
            Slow(bootstrap, SLOW_TOPICS, max(20.0, 120 * scale)),
            Compacted(bootstrap, 60.0),
            Comers(bootstrap, max(4.0, 20 * scale)),
            Groups(bootstrap, max(4.0, 15 * scale), seed),
        ]
        self.samples: list[Sample] = []
        self.kills: list[float] = []
        self._readable = 0

    def run(self) -> list[str]:
        """Load, sample, kill; then read everything back. What is wrong with it."""
        self.cluster.start()
        began = time.monotonic()
        for load in self.loads:
            load.start()
        kill_at = began + self._kill_every_s
        every_s = max(2.0, self.seconds / SAMPLES)
        while time.monotonic() - began < self.seconds:
            time.sleep(every_s)
            self.sample(time.monotonic() - began)
            if time.monotonic() > kill_at:
                self.kill(began)
                kill_at = time.monotonic() + self._kill_every_s
        return self.finish()

    def kill(self, began: float) -> None:
        victim = self._chance.choice(list(self.cluster.members.values()))
        self.kills.append(time.monotonic() - began)
        victim.kill()
        time.sleep(self._chance.uniform(0.0, 5.0))
        victim.start()

    def sample(self, seconds: float) -> None:
        stored, files = stored_sizes(self._objects)
        running = self.cluster.running
        self._readable = self.readable_bytes() or self._readable
        sample = Sample(
            seconds=round(seconds, 1),
            written_bytes=sum(load.written_bytes for load in self.loads),
            readable_bytes=self._readable,
            stored=stored,
            files=files,
            descriptors=sum(len(os.listdir(f"/proc/{member.pid}/fd")) for member in running),
            rss_bytes=sum(member.rss_bytes() for member in running),
        )
        self.samples.append(sample)
        if len(self.samples) % 15 == 0:
            print(
                f"{seconds / 60:5.1f} min: written {sample.written_bytes / 1e6:.0f} MB, readable "
                f"{sample.readable_bytes / 1e6:.0f} MB, stored {sample.stored_bytes / 1e6:.0f} MB in {files} files, "
                f"{sample.descriptors} descriptors, {sample.rss_bytes / 1e6:.0f} MB of memory",
                flush=True,
            )

    def readable_bytes(self) -> int:
        """The sizes of all partitions, each once; 0 while somebody does not answer."""
        sizes: dict[tuple[str, int], int] = {}
        for member in self.cluster.running:
            try:
                with Client(member.address, LISTENING_S) as client:
                    answer = client.any().ask(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
            except ClientError:
                return 0
            for place in answer.results:
                for topic in place.topics:
                    for one in topic.partitions:
                        key = (topic.name, one.partition_index)
                        sizes[key] = max(sizes.get(key, 0), one.partition_size)
        return sum(sizes.values())

    def finish(self) -> list[str]:
        problems = []
        for load in self.loads:
            load.ending.set()
        for load in self.loads:
            load.join(180)
            if load.failure is not None or load.is_alive():
                problems.append(f"{load.name} did not end well: {load.failure!r}")
        for load in self.loads:
            try:
                problems += load.check()
            except Exception as error:
                problems.append(f"{load.name} could not be read back: {error}")
        return problems + self.cluster.tracebacks()

    @property
    def allowance(self) -> Allowance:
        # Each broker may hold that much before it settles, and then has it in both forms for a while.
        return Allowance(self._delete_delay_s, 2 * 2 * SETTLE_BYTES)


@contextlib.contextmanager
def maybe_s3(wanted: bool) -> Iterator[S3Server | None]:
    if not wanted:
        yield None
        return
    with S3Server() as store:
        yield store


def main(arguments: Sequence[str] | None = None) -> int:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m conformance.soak", description=summary)
    parser.add_argument("--minutes", type=float, default=FULL_MINUTES)
    parser.add_argument("--s3", action="store_true", help="on an S3 server (needs Go)")
    parser.add_argument("--out", type=Path, default=ROOT / "conformance" / "out" / "soak", metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    try:
        with interrupted_cleanly(), maybe_s3(chosen.s3) as store:
            soak = Soak(chosen.minutes, chosen.seed, store)
            with soak.cluster:
                problems = soak.run()
    except PartMissing as why:
        return not_run(why)
    except ServerFailed as why:
        print(f"FAILED: {why}")
        return 1
    verdict = judge(soak.samples, soak.allowance)
    problems += verdict.problems
    lines = [load.figures() for load in soak.loads] + [f"{len(soak.kills)} kills", *verdict.lines]
    kind = "an S3 server" if chosen.s3 else "a directory"
    title = f"A mixed load of {chosen.minutes:g} minutes on {kind}, {len(soak.kills)} times kill -9"
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "samples.csv").write_text(to_csv(soak.samples))
    (chosen.out / "soak.svg").write_text(to_svg(soak.samples, title, soak.kills))
    result = {"minutes": chosen.minutes, "s3": chosen.s3, "figures": lines, "problems": problems}
    (chosen.out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    print(*lines, sep="\n")
    for problem in problems[:20]:
        print(f"FAILED: {problem}")
    if not problems:
        print("everything levelled off, and everything that must be there was read")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
