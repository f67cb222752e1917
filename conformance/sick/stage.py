"""One scene's cluster, its store and its clients, and the checks that a scene can make at its end."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.cluster.processes import HOST, Cluster, penstock
from conformance.s3.proxy import Proxy
from conformance.s3.server import BUCKET, S3Server
from conformance.sick.speaker import Speaker
from conformance.sick.verdict import Expected, Place, Reading, Told, hurt_records, judge
from penstock.testing.waiting import until

PROGRAM = Path(__file__).with_name("program.py")
SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "leader.imbalance.check.interval.seconds": "1",
    "wal.settle.interval.ms": "500",
    "log.segment.delete.delay.ms": "1000",
    "log.retention.check.interval.ms": "1000",
    "offsets.topic.num.partitions": "4",
}
UNSETTLED = {**SETTINGS, "wal.settle.interval.ms": "3600000"}
"""Everything stays in the write-ahead log, as long as no broker takes over."""
SWEEP_S = 32.0
"""A broker sweeps half a minute after its start."""


class Failed(Exception):
    """A promise was broken; the message says how."""


class Skipped(Exception):
    """The scene cannot be played on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Scene:
    name: str
    play: Callable[[], str]
    """Gives the figures for its line."""
    s3: bool = False
    short: bool = False
    alone: bool = False
    """Its figures are times: nothing else runs meanwhile."""


SCENES: list[Scene] = []


def scene(
    *, s3: bool = False, short: bool = False, alone: bool = False
) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Make a function a scene of its name."""

    def register(play: Callable[[], str]) -> Callable[[], str]:
        SCENES.append(Scene(play.__name__.replace("_", "-"), play, s3, short, alone))
        return play

    return register


class Stage:
    def __init__(self, cluster: Cluster, objects: Path, proxy: Proxy | None = None) -> None:
        self.cluster = cluster
        self.objects = objects
        """The store's objects, as files."""
        self.told = Told()
        self.speaker = self.new_speaker()
        self._proxy = proxy
        self.faults = cluster.folder / "faults"

    def new_speaker(self) -> Speaker:
        return Speaker(lambda: self.bootstrap, self.told)

    @property
    def bootstrap(self) -> str:
        running = self.cluster.running or list(self.cluster.members.values())
        return ",".join(member.address for member in running)

    @property
    def proxy(self) -> Proxy:
        assert self._proxy is not None, "this store has no proxy"
        return self._proxy

    def files(self, prefix: str) -> list[Path]:
        """Objects under a prefix, by name: temporary ones and seals left out."""
        found = [path for path in (self.objects / prefix).rglob("*") if path.is_file()]
        return sorted(path for path in found if path.name not in ("open", "sealed", "missed"))

    def wait_for_new(self, prefix: str, before: Collection[Path], within_s: float) -> None:
        until(lambda: bool(set(self.files(prefix)) - set(before)), within_s, f"a new object in {prefix}")

    def wait_quiet(self, prefix: str, for_s: float = 1.5) -> None:
        """Until nothing new came under a prefix for a while."""
        seen, since = self.files(prefix), time.monotonic()
        while time.monotonic() - since < for_s:
            time.sleep(0.1)
            now = self.files(prefix)
            if now != seen:
                seen, since = now, time.monotonic()

    def settled_write(self, places: Collection[Place], count: int, size: int = 100) -> None:
        """Write through librdkafka, and wait until that is in segments."""
        before = set(self.files("manifests"))
        self.speaker.library_write(places, count, size)
        self.wait_for_new("manifests", before, 20)
        self.wait_quiet("manifests")

    def sweep(self) -> None:
        """Wait until brokers that started just now have swept, and deleted what they thought was garbage."""
        time.sleep(SWEEP_S + 3.0)

    def read(self, within_s: float = 30.0) -> dict[Place, Reading]:
        return self.speaker.read(list(self.told.acknowledged), within_s)

    def check(self, expected: Expected | None = None, within_s: float = 30.0) -> int:
        """Read everything and judge; how many records are said to be hurt."""
        readings = self.read(within_s)
        problems = judge(self.told, readings, expected or Expected())
        if problems:
            raise Failed("; ".join(problems[:4]))
        return hurt_records(self.told, readings)

    def check_whole(self, within_s: float = 30.0) -> None:
        """Everything acknowledged is there, for bare requests and for librdkafka."""
        self.check(within_s=within_s)
        for place, found in self.speaker.library_read(self.told.acknowledged).items():
            for offset, value in self.told.acknowledged[place].items():
                if found.get(offset) != value:
                    raise Failed(
                        f"librdkafka read {found.get(offset)!r} at {offset} of {place}, not {value!r}"
                    )

    def check_goes_on(self, count: int = 3, within_s: float = 20.0) -> None:
        """Every place takes writes again, at offsets that nobody was given."""
        places = list(self.told.acknowledged)
        done = self.speaker.write(places, count, within_s=within_s)
        if self.told.twice:
            raise Failed("; ".join(self.told.twice[:3]))
        if done < count * len(places):
            raise Failed(f"only {done} of {count * len(places)} writes were taken within {within_s:.0f} s")

    def said(self, *words: str) -> bool:
        """Whether a broker's log has one of these words."""
        return any(map(self.count_said, words))

    def count_said(self, words: str) -> int:
        """How often brokers' logs have these words."""
        logs = [member.log.read_text(errors="replace").lower() for member in self.cluster.members.values()]
        return sum(log.count(words) for log in logs)

    def audit(self) -> dict[str, Any]:
        command = [penstock(), "store", "audit", "--json", "--grace", "0", "--store", self.cluster.store]
        environment = self.cluster[1].environment
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        try:
            report: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            raise Failed(f"store audit said {done.stdout[-200:]}{done.stderr[-200:]}") from None
        return report


@contextmanager
def on_directory(
    brokers: int = 1,
    settings: Mapping[str, str] = SETTINGS,
    *,
    store: Path | None = None,
    obedient: bool = False,
    start: bool = True,
) -> Iterator[Stage]:
    """A cluster on a directory. `obedient`: its file calls and clock can be made to fail."""

    def environment(folder: Path) -> dict[str, str]:
        return {**os.environ, "PENSTOCK_FAULTS": str(folder / "faults")}

    cluster = Cluster(
        brokers,
        settings,
        program=[sys.executable, str(PROGRAM)] if obedient else None,
        environment=environment,
        store=None if store is None else str(store),
    )
    (cluster.folder / "faults").mkdir()
    with _quiet(cluster):
        if start:
            cluster.start()
        yield Stage(cluster, Path(cluster.store))


@contextmanager
def on_s3(brokers: int = 1, settings: Mapping[str, str] = SETTINGS, seed: int = 1) -> Iterator[Stage]:
    """A cluster on an S3 server behind a proxy."""
    with S3Server() as store, Proxy(store.port, f"{BUCKET}/cluster", seed) as proxy:
        variables = {
            **os.environ,
            **store.environment,
            "AWS_ENDPOINT_URL": f"http://{HOST}:{proxy.port}",
        }
        cluster = Cluster(brokers, settings, environment=lambda _folder: variables, store=store.url)
        with _quiet(cluster):
            cluster.start()
            yield Stage(cluster, store.objects, proxy)


@contextmanager
def _quiet(cluster: Cluster) -> Iterator[None]:
    """Close the cluster; keep its logs where SICK_KEEP says, if it does."""
    try:
        yield
    finally:
        keep = os.environ.get("SICK_KEEP")
        cluster.kill()
        if keep:
            shutil.copytree(cluster.folder, Path(keep) / cluster.folder.name, dirs_exist_ok=True)
        cluster.close()
