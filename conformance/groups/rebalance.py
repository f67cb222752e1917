"""Members of many clients join, leave and die while records flow: nothing is lost, nothing is owned twice.

Each scenario is a list of steps. After each step the group must come to rest: every partition has one owner
and the shares are even. Members that answer must get there without waiting for any time-out, which is
measured. In the end every record has been consumed, by its owner and in order. The history of the group, with
every commit in the broker's own log, is checked as a whole (see history.py).
"""

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from confluent_kafka import Message, Producer

from conformance import parts
from conformance.client import BY_NAME, OLD, ClientFailed, Session
from conformance.clients.voice import SESSION_TIMEOUT_MS
from conformance.groups.history import Holding, again, complaints_about, holdings
from conformance.groups.members import History, Member, MemberFailed
from conformance.groups.offsets import await_coordinators, commit_history, committed, find_topic
from conformance.oracle import ApacheKafka
from conformance.server import Server, ServerFailed, interrupted_cleanly
from conformance.target import add_against, server_named

PARTITIONS = 12
RECORDS_PER_S = 200
FLOW_S = 1.0
"""How long records flow after each step, once the group is at rest."""
SESSION_S = SESSION_TIMEOUT_MS / 1000
GAP_MAX_S = 10.0
"""The longest that a partition may have no owner between members that answer: less than any time-out."""
LEFT_MAX_S = GAP_MAX_S
JOINED_MAX_S = 60.0
"""Programs have to start first, on a machine that may be busy."""
DEATH_MAX_S = SESSION_S + 2 * GAP_MAX_S
"""A death is noticed when the session has run out."""
DRAIN_MAX_S = 60.0

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    # Times of the new protocol are the broker's to choose; as in voice.py.
    "group.consumer.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "group.consumer.min.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
}


@dataclass(frozen=True, slots=True)
class Step:
    """`join`: clients, as NAME or NAME/VARIANT. `leave`, `kill`: how many of those that are there longest."""

    action: str
    who: tuple[str, ...] = ()
    count: int = 0


def join(*who: str) -> Step:
    return Step("join", who)


def leave(count: int) -> Step:
    return Step("leave", count=count)


def kill(count: int) -> Step:
    return Step("kill", count=count)


SCENARIOS: dict[str, tuple[str, tuple[Step, ...]]] = {
    "classic": (
        "classic",
        (
            join("franz-go", "java"),
            join("sarama"),
            join("kafka-python", "aiokafka", "confluent-kafka"),
            join("kafkajs", "sarama-0.10.2", "kafka-python-0.10", "franz-go"),
            leave(1),
            kill(2),
            join("java", "sarama"),
            leave(3),
        ),
    ),
    "cooperative": (
        "cooperative",
        (
            join("franz-go", "confluent-kafka"),
            join("java", "kafka-python"),
            leave(1),
            kill(1),
            join("franz-go", "confluent-kafka", "franz-go"),
            leave(2),
        ),
    ),
    "consumer": (
        "consumer",
        (
            join("confluent-kafka", "franz-go"),
            join("java", "confluent-kafka", "franz-go"),
            leave(1),
            kill(1),
            join("franz-go", "confluent-kafka", "confluent-kafka", "franz-go", "confluent-kafka"),
            leave(4),
        ),
    ),
    "migration": (
        "cooperative",
        (
            join("franz-go", "java"),
            join("confluent-kafka/consumer", "franz-go/consumer"),
            leave(1),
            join("confluent-kafka", "franz-go/consumer"),
            kill(1),
            leave(2),
        ),
    ),
}
SHORT = ("consumer",)


class Flow:
    """Records into every partition in turn, at a steady rate, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.ends = dict.fromkeys(range(PARTITIONS), 0)
        self.problems: list[str] = []
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when everything is acknowledged."""
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(30)
        if left:
            self.problems.append(f"{left} records were not acknowledged")

    def _run(self) -> None:
        sent = 0
        began = time.monotonic()
        while not self._stop.wait(0.01):
            due = int((time.monotonic() - began) * RECORDS_PER_S)
            while sent < due:
                at = sent % PARTITIONS
                self._producer.produce(self._topic, b"%d" % sent, partition=at, on_delivery=self._delivered)
                sent += 1
            self._producer.poll(0)

    def _delivered(self, error: object, message: Message) -> None:
        if error is not None:
            self.problems.append(f"a record was not acknowledged: {error}")
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None and offset is not None
        self.ends[partition] = max(self.ends[partition], offset + 1)


class Rebalance:
    """One scenario under way."""

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name
        self.variant, self.steps = SCENARIOS[name]
        self.topic = f"rebalance-{name}"
        self.group = f"group-{name}"
        self.history = History()
        self.members: list[Member] = []
        self.failures: list[str] = []
        self.sizes: list[int] = []

    @property
    def live(self) -> list[Member]:
        return [member for member in self.members if member.alive]

    def run(self) -> None:
        with Session(BY_NAME["confluent-kafka"], self.server.bootstrap) as session:
            session.create(self.topic, PARTITIONS)
        await_coordinators(self.server, [self.group])
        flow = Flow(self.server.bootstrap, self.topic)
        try:
            for step in self.steps:
                self._do(step)
                time.sleep(FLOW_S)
            flow.stop()
            self._drain(flow.ends)
            for member in self.live:
                member.ask_to_leave()
                member.await_left()
            self.failures += flow.problems
            self._judge(flow.ends)
        except MemberFailed as why:
            self.failures.append(str(why))
        finally:
            flow.stop()
            for member in self.members:
                member.close()

    def _do(self, step: Step) -> None:
        """Take the step and wait until the group is at rest."""
        began = time.time() * 1000
        limit_s, what = JOINED_MAX_S, ""
        match step.action:
            case "join":
                new = [self._member(who) for who in step.who]
                for member in new:
                    member.join(self.group, self.topic)
                what = "joined: " + ", ".join(member.name for member in new)
            case "leave":
                gone = self.live[: step.count]
                for member in gone:
                    member.ask_to_leave()
                limit_s, what = LEFT_MAX_S, "left: " + ", ".join(member.name for member in gone)
            case "kill":
                gone = self.live[: step.count]
                for member in gone:
                    member.kill()
                limit_s, what = DEATH_MAX_S, "killed: " + ", ".join(member.name for member in gone)
        rest_s = self._come_to_rest(began, limit_s)
        if step.action == "leave":
            for member in gone:
                member.await_left()
        self.sizes.append(len(self.live))
        if rest_s is None:
            owned = {name: sorted(mine) for name, mine in self.history.owned.items() if mine}
            self.failures.append(f"{what}: not at rest after {limit_s:.0f} s: {owned}")
            raise MemberFailed(f"{self.name} cannot go on")
        print(f"  {what}; {len(self.live)} members at rest after {rest_s:.1f} s", flush=True)

    def _member(self, who: str) -> Member:
        client, _, variant = who.partition("/")
        number = len(self.members) + 1
        member = Member(
            f"{number} {who}", client, variant or self.variant, self.server.bootstrap, self.history
        )
        self.members.append(member)
        return member

    def _come_to_rest(self, began: float, limit_s: float) -> float | None:
        """Seconds until every partition has one owner and shares are even; None if that does not come."""
        deadline = time.monotonic() + limit_s
        with self.history.heard:
            while not self._is_at_rest():
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self.history.heard.wait(left)
            changes = [event.at for event in self.history.events if event.kind != "consumed"]
            return max(0.0, (max(changes) - began) / 1000)

    def _is_at_rest(self) -> bool:
        for member in self.live:
            if member.failure:
                raise MemberFailed(member.failure)
        shares = [self.history.owned.get(member.name, set()) for member in self.live]
        sizes = [len(share) for share in shares]
        everything = set().union(*shares)
        return sum(sizes) == len(everything) == PARTITIONS and max(sizes) - min(sizes) <= 1

    def _drain(self, ends: dict[int, int]) -> None:
        deadline = time.monotonic() + DRAIN_MAX_S
        while time.monotonic() < deadline:
            consumed = self.history.consumed()
            if all(len(consumed.get(partition, ())) >= end for partition, end in ends.items()):
                return
            with self.history.heard:
                self.history.heard.wait(0.5)

    def write_trace(self, path: Path) -> None:
        with path.open("a") as file:
            for event in sorted(self.history.events, key=lambda event: event.at):
                offsets = f" {event.offsets[0]}..{event.offsets[-1]}" if event.offsets else ""
                file.write(
                    f"{event.at:.3f} {self.name} {event.member} {event.kind} {list(event.partitions)}{offsets}\n"
                )

    def _judge(self, ends: dict[int, int]) -> None:
        topic = find_topic(self.server, self.topic)
        commits = commit_history(self.server, self.group, self.topic)
        final = committed(self.server, self.group, topic)
        self.failures += complaints_about(self.history.events, commits, ends, final)
        found, _ = holdings(self.history.events)
        gaps = handovers(found)
        if gaps and max(gaps) > GAP_MAX_S:
            self.failures.append(
                f"a partition had no owner for {max(gaps):.1f} s between members that answer"
            )
        gaps.sort()
        print(
            f"  {sum(ends.values()):,} records written and consumed, {again(found):,} of them again; "
            f"{min(self.sizes)} to {max(self.sizes)} members; {len(commits):,} commits; {len(found)} holdings; "
            f"{len(gaps)} handovers between members that answer: median {_middle(gaps):.2f} s, "
            f"longest {max(gaps, default=0):.2f} s",
            flush=True,
        )


def handovers(found: Sequence[Holding]) -> list[float]:
    """Seconds for which a partition had no owner after one that gave it up in good order."""
    gaps = []
    for partition in range(PARTITIONS):
        row = sorted((held for held in found if held.partition == partition), key=lambda held: held.since)
        for earlier, later in pairwise(row):
            if earlier.ended_by == "revoked" and earlier.until is not None:
                gaps.append((later.since - earlier.until) / 1000)
    return gaps


def _middle(numbers: Sequence[float]) -> float:
    return numbers[len(numbers) // 2] if numbers else 0.0


def for_server(server: Server, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Kafka 4 no longer speaks to the oldest clients: their newest versions take their places there."""
    if not isinstance(server, ApacheKafka) or server.version < "4":
        return steps
    newer = {old: old.rpartition("-")[0] for old in OLD}
    return tuple(Step(s.action, tuple(newer.get(who, who) for who in s.who), s.count) for s in steps)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.groups.rebalance", description=__doc__.splitlines()[0]
    )
    add_against(parser)
    parser.add_argument("--scenario", nargs="+", choices=SCENARIOS, help="some of them (default: all)")
    parser.add_argument(
        "--trace", metavar="FILE", help="write every event of the members to this file, a line each"
    )
    parser.add_argument("--short", action="store_true", help=f"only {', '.join(SHORT)}, for each push")
    options = parser.parse_args()
    names = options.scenario or (SHORT if options.short else tuple(SCENARIOS))
    failed = 0
    try:
        server = server_named(options.against, SETTINGS)
        for name in names:
            variant, steps = SCENARIOS[name]
            SCENARIOS[name] = variant, for_server(server, steps)
            for step in SCENARIOS[name][1]:
                for who in step.who:
                    BY_NAME[who.partition("/")[0]].program()
        with interrupted_cleanly(), server:
            for name in names:
                print(f"{name}:", flush=True)
                scenario = Rebalance(server, name)
                scenario.run()
                for why in scenario.failures[:20]:
                    print(f"FAILED {name}: {why}", flush=True)
                failed += bool(scenario.failures)
                if options.trace:
                    scenario.write_trace(Path(options.trace))
    except parts.PartMissing as why:
        return parts.not_run(why)
    except (ServerFailed, ClientFailed) as why:
        print(f"rebalance: {why}", file=sys.stderr)
        return 2
    print(f"{len(names)} scenarios against {server.name}, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
