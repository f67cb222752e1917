"""Brokers, the clients that use them all the while, and the history of what these clients saw."""

import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance.cluster.processes import Cluster, Member
from conformance.cluster.streams import QUIET
from conformance.cluster.views import agreed_view, wait_for_brokers
from conformance.faults.clients import (
    Actor,
    Administrator,
    BareWriter,
    GroupReader,
    LibraryWriter,
    Observer,
    Reader,
    leaders,
    read_log,
)
from conformance.faults.history import History, Violation, check, gaps
from conformance.s3.server import S3Server

TOPIC = "history"
PARTITIONS = 3
SESSION_TIMEOUT_S = 3.0
GO_ON_WITHIN_S = 5.0
PAUSE_S = SESSION_TIMEOUT_S + 3.0
# On a directory the end of a process is known at once. On S3 it is known when the session time-out is over, and
# librdkafka, which looks once a second for leaders that are down, takes up to two seconds more. The cluster itself
# is held to its time there by writers without a library.
LIBRARY_S = 2.0
ENDING = ("kill", "restart", "stop")
"""Faults after which a connection is broken, not silent: whoever has no library tries again at once."""
SETTINGS = {
    "broker.session.timeout.ms": str(int(SESSION_TIMEOUT_S * 1000)),
    "leader.imbalance.check.interval.seconds": "1",
    "group.initial.rebalance.delay.ms": "0",
}
VARIANTS = Path(__file__).with_name("variants.py")


class World:
    """A cluster, its clients and their history."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.history = History()
        self.actors: list[Actor] = []
        self.late: list[str] = []
        """What did not come in time, or gave up."""

    def begin(self) -> None:
        self.cluster.start()
        bootstrap = self.cluster.bootstrap
        admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)
        where = (bootstrap, TOPIC, self.history)
        self.actors = [
            LibraryWriter(*where, PARTITIONS, 0.02),
            Reader(*where, PARTITIONS, 1),
            GroupReader(*where, "group-1"),
            Administrator(*where, 0.7),
            *(BareWriter(*where, partition, 0.02) for partition in range(PARTITIONS)),
            *(Observer(*where, partition, 0.05) for partition in range(PARTITIONS)),
        ]
        for actor in self.actors:
            actor.start()

    def come_to_rest(self, within_s: float = 30.0) -> None:
        """Wait until all brokers are back and everything is led."""
        wait_for_brokers(self.cluster.running, ("group-1",), self.cluster.members, within_s, patient=True)
        # Topics come and go all the while, and a broker on S3 hears of it a fifth of a second later.
        agreed_view(self.cluster.running, (), within_s=10.0)

    def finish(self) -> list[Violation]:
        """End the clients, read the log, check."""
        self.come_to_rest()
        for actor in self.actors:
            actor.end()
        for actor in self.actors:
            actor.join(90)
            if actor.failure is not None:
                self.late.append(f"{actor.name} gave up: {actor.failure}")
            assert not actor.is_alive(), f"{actor.name} did not end"
        read_log(self.cluster.bootstrap, TOPIC, PARTITIONS, self.history)
        return check(self.history)


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    act: Callable[["FaultyWorld", Member], None]
    within_s: float | None
    """So soon must writing and reading go on for every partition."""


class FaultyWorld(World):
    """Brokers that obey a folder of faults, and rounds in which something happens to one of them."""

    def __init__(
        self,
        variant: str,
        seed: int,
        store: S3Server | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.store = store
        super().__init__(
            Cluster(
                3,
                {**SETTINGS, "wal.settle.interval.ms": "2000", **(settings or {})},
                program=[sys.executable, str(VARIANTS), variant],
                environment=self._environment,
                store=None if store is None else store.url,
            )
        )
        (self.cluster.folder / "faults").mkdir()
        self.chance = random.Random(seed)
        self.rounds: Counter[str] = Counter()
        self.pauses: dict[str, list[float]] = defaultdict(list)
        """By fault, the longest time in each round without a write, or without a read, of some partition."""

    def _environment(self, folder: Path) -> dict[str, str]:
        own = {} if self.store is None else self.store.environment
        return {**os.environ, **own, "PENSTOCK_FAULTS": str(folder / "faults")}

    def fault(self, name: str, broker: int | None, content: str = "") -> Path:
        """Make a file that brokers obey; it is removed by whoever made it."""
        path = self.cluster.folder / "faults" / (name if broker is None else f"{name}-{broker}")
        path.write_text(content)
        return path

    def round(self, fault: Fault) -> None:
        led = leaders(self.cluster.bootstrap, TOPIC)
        candidates = [broker for broker in led.values() if broker in self.cluster.members]
        victim = self.cluster[self.chance.choice(candidates)]
        began = time.monotonic()
        fault.act(self, victim)
        self.come_to_rest()
        # Everybody has a moment of peace, in which all must be seen to go on.
        time.sleep(0.5)
        ended = time.monotonic()
        what, gap = max(self._longest_gaps(began, ended).items(), key=lambda found: found[1])
        self.rounds[fault.name] += 1
        self.pauses[fault.name].append(gap)
        within_s = fault.within_s
        if fault.name in ENDING:
            bare = self._longest_bare_gap(began, ended)
            self.pauses[f"{fault.name}, without a library"].append(bare)
            if within_s is not None and bare > within_s:
                self.late.append(f"{fault.name} of broker {victim.broker}: no bare write for {bare:.1f} s")
        if within_s is not None and gap > within_s + (LIBRARY_S if self.store is not None else 0):
            self.late.append(f"{fault.name} of broker {victim.broker}: nothing of {what} for {gap:.1f} s")
        number = sum(self.rounds.values())
        writes = len(self.history.writes)
        print(
            f"round {number}: {fault.name} broker {victim.broker}, nothing of {what} for {gap:.2f} s, "
            f"{writes} writes so far",
            flush=True,
        )

    def _longest_gaps(self, began: float, ended: float) -> dict[str, float]:
        """By partition, the longest time without an acknowledgement for the library, and without a read."""
        found = {}
        for partition in range(PARTITIONS):
            acknowledged = self._acknowledged(f"library-{partition}", began)
            read = [
                r.at for r in self.history.reads["reader-1"] if r.partition == partition and r.at >= began
            ]
            found[f"the writes to partition {partition}"] = gaps(acknowledged, began, ended)
            found[f"the reads of partition {partition}"] = gaps(read, began, ended)
        return found

    def _longest_bare_gap(self, began: float, ended: float) -> float:
        """The same for the bare writers: how long the cluster took, without the habits of a library."""
        writers = [f"bare-{partition}" for partition in range(PARTITIONS)]
        return max(gaps(self._acknowledged(name, began), began, ended) for name in writers)

    def _acknowledged(self, writer: str, began: float) -> list[float]:
        return [
            write.answered_at
            for write in self.history.writes
            if write.writer == writer and write.offset is not None and write.answered_at >= began
        ]


def report(world: FaultyWorld) -> None:
    history = world.history
    acknowledged = sum(write.offset is not None for write in history.writes)
    unknown = len(history.writes) - acknowledged
    records = sum(map(len, history.log.values()))
    print(
        f"{acknowledged} writes acknowledged, {unknown} with another answer or none, {records} records in "
        f"the log, {sum(map(len, history.reads.values()))} read, {len(history.watermarks)} ends told, "
        f"{len(history.resumes)} times a group resumed, {len(history.topics_created)} topics created and "
        f"{len(history.topics_deleted)} deleted"
    )
    for name, pauses in world.pauses.items():
        pauses.sort()
        nine_in_ten = pauses[min(len(pauses) - 1, len(pauses) * 9 // 10)]
        print(
            f"{len(pauses)} rounds of {name}: the longest pause of a round was {pauses[len(pauses) // 2]:.2f} s "
            f"in the median, {nine_in_ten:.2f} s in nine of ten, {pauses[-1]:.2f} s at most"
        )
