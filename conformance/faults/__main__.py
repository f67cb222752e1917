"""Brokers are killed and paused, their store goes out and grows slow, and clients notice nothing worse than a
pause: they record what they see, and a checker looks for what a log that keeps its promises cannot show.

Three brokers with a session time-out of 3 s, as processes. An idempotent producer of librdkafka, a bare
writer for each partition that sends to whoever leads and waits for its answer whatever happens, readers, a
group, observers of the ends of partitions, and somebody who creates and deletes topics run all the while. In
each round the leader of a partition is

    killed          kill -9, and started again when the others have noticed
    restarted       kill -9, and started again at once
    paused          SIGSTOP until it is fenced, or until about then, and SIGCONT: what it acknowledges when it
                    wakes must be in the log
    blinked         SIGSTOP for less than the session time-out
    cut off         its store fails for longer than the session time-out
    stopped         a controlled stop, and a start

or two or all brokers are killed at once, or all are paused, or the store of all of them fails for a while, or
is slow. After a kill, writing and reading must go on for every partition within five seconds; after a pause
as well, and the time that a library itself waits for an answer. `--s3` runs all this on a real S3 server,
where an outage is that the server is killed or hangs. `--broken` runs variants that are broken on purpose:
the checker must find something in each.
"""

import argparse
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance.cluster.processes import Cluster, Member
from conformance.cluster.views import agreed_view, wait_for_brokers
from conformance.faults.clients import (
    LIBRARY_TIMEOUT_MS,
    QUIET,
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
from conformance.faults.stores import S3Store
from conformance.server import ServerFailed, interrupted_cleanly

TOPIC = "history"
PARTITIONS = 3
SESSION_TIMEOUT_S = 3.0
GO_ON_WITHIN_S = 5.0
PAUSE_S = SESSION_TIMEOUT_S + 3.0
BLINK_S = 1.0
# On a directory the end of a process is known at once. On S3 it is known when the session time-out is over, and
# librdkafka, which looks once a second for leaders that are down, takes up to two seconds more. The cluster itself
# is held to its time there by writers without a library.
LIBRARY_S = 2.0
ENDING = ("kill", "restart", "stop")
"""Faults after which a connection is broken, not silent: whoever has no library tries again at once."""
OUTAGE_S = 4.0
SLOW_SECONDS = "0.02"
SETTINGS = {
    "broker.session.timeout.ms": str(int(SESSION_TIMEOUT_S * 1000)),
    "leader.imbalance.check.interval.seconds": "1",
    "group.initial.rebalance.delay.ms": "0",
    "wal.settle.interval.ms": "2000",
}
VARIANTS = Path(__file__).with_name("variants.py")


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    act: Callable[["World", Member], None]
    within_s: float | None
    """So soon must writing and reading go on for every partition."""


class World:
    """The cluster, its clients and their history."""

    def __init__(
        self, variant: str, seed: int, store: S3Store | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        self.store = store
        self.cluster = Cluster(
            3,
            {**SETTINGS, **(settings or {})},
            program=[sys.executable, str(VARIANTS), variant],
            environment=self._environment,
            store=None if store is None else store.url,
        )
        (self.cluster.folder / "faults").mkdir()
        self.history = History()
        self.chance = random.Random(seed)
        self.actors: list[Actor] = []
        self.rounds: Counter[str] = Counter()
        self.pauses: dict[str, list[float]] = defaultdict(list)
        """By fault, the longest time in each round without a write, or without a read, of some partition."""
        self.late: list[str] = []

    def _environment(self, folder: Path) -> dict[str, str]:
        own = {} if self.store is None else self.store.environment
        return {**os.environ, **own, "PENSTOCK_FAULTS": str(folder / "faults")}

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

    def fault(self, name: str, broker: int | None, content: str = "") -> Path:
        """Make a file that brokers obey; it is removed by whoever made it."""
        path = self.cluster.folder / "faults" / (name if broker is None else f"{name}-{broker}")
        path.write_text(content)
        return path

    def settle(self, within_s: float = 30.0) -> None:
        """Wait until all brokers are back and everything is led."""
        wait_for_brokers(self.cluster.running, ("group-1",), self.cluster.members, within_s, patient=True)
        # Topics come and go all the while, and a broker on S3 hears of it a fifth of a second later.
        agreed_view(self.cluster.running, (), within_s=10.0)

    def round(self, fault: Fault) -> None:
        led = leaders(self.cluster.bootstrap, TOPIC)
        candidates = [broker for broker in led.values() if broker in self.cluster.members]
        victim = self.cluster[self.chance.choice(candidates)]
        began = time.monotonic()
        fault.act(self, victim)
        self.settle()
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

    def finish(self) -> list[Violation]:
        """End the clients, read the log, check."""
        self.settle()
        for actor in self.actors:
            actor.end()
        for actor in self.actors:
            actor.join(90)
            if actor.failure is not None:
                self.late.append(f"{actor.name} gave up: {actor.failure}")
            assert not actor.is_alive(), f"{actor.name} did not end"
        read_log(self.cluster.bootstrap, TOPIC, PARTITIONS, self.history)
        return check(self.history)


def kill(world: World, victim: Member) -> None:
    victim.kill()
    rest = [member.broker for member in world.cluster.running]
    wait_for_brokers(world.cluster.running, (), rest, 15)
    victim.start()


def pause(world: World, victim: Member) -> None:
    if world.chance.random() < 0.5:
        pause_until_fenced(world, victim)
        return
    # It wakes while it is being fenced, or just before or after.
    victim.pause()
    time.sleep(SESSION_TIMEOUT_S + world.chance.uniform(-0.5, 0.5))
    victim.resume()


def pause_until_fenced(world: World, victim: Member) -> None:
    victim.pause()
    rest = [member for member in world.cluster.running if member is not victim]
    wait_for_brokers(rest, (), [member.broker for member in rest], 15)
    time.sleep(world.chance.uniform(0.0, 1.0))
    victim.resume()


def blink(world: World, victim: Member) -> None:
    victim.pause()
    time.sleep(BLINK_S)
    victim.resume()


def restart(world: World, victim: Member) -> None:
    victim.kill()
    victim.start()


def cut_off(world: World, victim: Member) -> None:
    path = world.fault("outage", victim.broker)
    time.sleep(PAUSE_S)
    path.unlink()


def stop(world: World, victim: Member) -> None:
    victim.stop()
    victim.start()


def kill_all(world: World, victim: Member) -> None:
    world.cluster.kill()
    world.cluster.start()


def kill_two(world: World, victim: Member) -> None:
    """One of three is enough: nothing here needs a majority of the brokers."""
    other = next(member for member in world.cluster.members.values() if member is not victim)
    victim.kill()
    other.kill()
    rest = world.cluster.running
    wait_for_brokers(rest, (), [member.broker for member in rest], 15)
    # The last one is seen to serve alone for a while.
    time.sleep(LIBRARY_TIMEOUT_MS / 1000)
    world.cluster.start([victim.broker, other.broker])


def pause_all(world: World, victim: Member) -> None:
    """As when a machine sleeps: nobody is to blame for the silence of the others."""
    for member in world.cluster.running:
        member.pause()
    time.sleep(SESSION_TIMEOUT_S + 1.0)
    for member in world.cluster.running:
        member.resume()


def outage(world: World, victim: Member) -> None:
    path = world.fault("outage", None)
    time.sleep(OUTAGE_S)
    path.unlink()


def store_down(world: World, victim: Member) -> None:
    assert world.store is not None
    world.store.kill()
    time.sleep(OUTAGE_S)
    world.store.start()


def store_hangs(world: World, victim: Member) -> None:
    assert world.store is not None
    world.store.pause()
    time.sleep(OUTAGE_S)
    world.store.resume()


def slow(world: World, victim: Member) -> None:
    path = world.fault("slow", None, SLOW_SECONDS)
    time.sleep(OUTAGE_S)
    path.unlink()


KILL = Fault("kill", kill, GO_ON_WITHIN_S)
# A paused broker still accepts connections: libraries find out when their own patience is at an end.
PAUSE = Fault("pause", pause, GO_ON_WITHIN_S + LIBRARY_TIMEOUT_MS / 1000)
FENCED = Fault("pause until fenced", pause_until_fenced, None)
OTHERS = (
    Fault("blink", blink, GO_ON_WITHIN_S),
    Fault("restart", restart, GO_ON_WITHIN_S),
    # Silent as a paused one is.
    Fault("cut off", cut_off, GO_ON_WITHIN_S + LIBRARY_TIMEOUT_MS / 1000),
    Fault("stop", stop, GO_ON_WITHIN_S),
    Fault("kill all", kill_all, None),
    Fault("kill two", kill_two, GO_ON_WITHIN_S),
    Fault("pause all", pause_all, None),
    Fault("outage", outage, None),
    Fault("slow", slow, None),
)
S3_OTHERS = (
    Fault("store down", store_down, None),
    Fault("blink", blink, GO_ON_WITHIN_S),
    Fault("store hangs", store_hangs, None),
    Fault("restart", restart, GO_ON_WITHIN_S),
    Fault("stop", stop, GO_ON_WITHIN_S),
    Fault("kill all", kill_all, None),
)


def run(
    variant: str, faults: Sequence[Fault], seed: int, store: S3Store | None = None
) -> tuple[World, list[Violation], list[str]]:
    world = World(variant, seed, store)
    with world.cluster:
        world.begin()
        time.sleep(1.0)
        for fault in faults:
            world.round(fault)
        violations = world.finish()
        return world, violations, world.cluster.tracebacks()


def chosen_faults(rounds: int, others: int, only: str | None, chance: random.Random, s3: bool) -> list[Fault]:
    rest = S3_OTHERS if s3 else OTHERS
    if only is not None:
        return [fault for fault in (KILL, PAUSE, *rest) if fault.name == only] * rounds
    faults = [KILL, PAUSE] * rounds + [rest[n % len(rest)] for n in range(others)]
    chance.shuffle(faults)
    return faults


def prove_sound(faults: Sequence[Fault], seed: int, store: S3Store | None) -> bool:
    world, violations, tracebacks = run("sound", faults, seed, store)
    report(world)
    problems = [*map(str, violations), *world.late, *tracebacks]
    for problem in problems[:20]:
        print(f"FAILED: {problem}")
    if not problems:
        print("nothing lost, nothing twice, nothing out of order")
    return not problems


def report(world: World) -> None:
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


def prove_broken(variant: str, fault: Fault, rounds: int, seed: int) -> bool:
    """The checker finds out within a few rounds."""
    _world, violations, _tracebacks = run(variant, [fault] * rounds, seed)
    kinds = Counter(violation.kind for violation in violations)
    if "lost" in kinds:
        print(f"{variant} was caught: {violations[0]} ({dict(kinds)})")
        return True
    print(f"FAILED: {variant} was not caught: {dict(kinds)}")
    return False


def main(arguments: Sequence[str] | None = None) -> int:
    summary = " ".join((__doc__ or "").split("\n\n")[0].split())
    parser = argparse.ArgumentParser(prog="python -m conformance.faults", description=summary)
    parser.add_argument("--rounds", type=int, default=200, help="of kills, and of pauses (default: 200 each)")
    parser.add_argument("--others", type=int, default=18, help="rounds of the other faults (default: 18)")
    parser.add_argument("--only", metavar="FAULT", help="only rounds of this one: kill, 'pause all', ...")
    parser.add_argument("--s3", action="store_true", help="on an S3 server, which fails too (needs Go)")
    parser.add_argument("--short", action="store_true", help="a few rounds and the broken variants: for CI")
    parser.add_argument("--broken", action="store_true", help="only the variants that are broken on purpose")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    well = True
    with interrupted_cleanly():
        try:
            if not chosen.broken:
                rounds, others = (2, 9) if chosen.short else (chosen.rounds, chosen.others)
                chance = random.Random(chosen.seed)
                faults = chosen_faults(rounds, others, chosen.only, chance, chosen.s3)
                with S3Store() if chosen.s3 else nullcontext() as store:
                    well = prove_sound(faults, chosen.seed, store)
            if chosen.broken or chosen.short:
                well = prove_broken("no-fencing", FENCED, 4, chosen.seed) and well
                well = prove_broken("early-answers", KILL, 2, chosen.seed) and well
        except (AssertionError, ServerFailed) as problem:
            print(f"FAILED: {problem}")
            return 1
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
