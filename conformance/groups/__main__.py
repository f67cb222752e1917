"""Every kind of group member: consume a part, commit, leave, come back at the exact next record.

All groups read one topic of several partitions. Each goes through the same stages, each in a process of its
own: a new group takes the first records of every partition, the same group takes the next ones, the broker is
killed with -9 and started again, the same group takes the rest. After each stage Kafka's own tool,
kafka-consumer-groups, must show the offsets and the lag that follow. At the end plain requests ask for
offsets at every version.
"""

import argparse
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from conformance import parts
from conformance.client import BY_NAME, CLIENTS, OLD, Client, ClientFailed, Session
from conformance.clients.protocol import Record
from conformance.groups.offsets import check_never_seen, check_round_trips, committed, find_topic
from conformance.oracle import ApacheKafka
from conformance.server import Server, ServerFailed, interrupted_cleanly
from conformance.target import add_against, server_named

PARTITIONS = 4
RECORDS = 60
"""In each partition."""
BATCH = 7
"""Records that one send puts into a batch, so that members stop and start in the middle of batches."""
STAGES = ((0, 15), (15, 10), (25, 35))
"""The first offset and the number of records that a member takes of every partition."""
STAGE_TIMEOUT_S = 60.0
TOOL_TIMEOUT_S = 90.0
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
SHORT = frozenset(
    (
        ("kafka-python", "classic"),
        ("kafka-python-0.10", "classic"),
        ("aiokafka", "static"),
        ("confluent-kafka", "consumer"),
        ("kafkajs", "classic"),
        ("java", "consumer"),
        ("franz-go", "cooperative"),
        ("sarama-0.10.2", "classic"),
        ("sarama", "classic"),
    )
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A client and the way in which it is a member."""

    client: Client
    variant: str

    @property
    def name(self) -> str:
        return f"{self.client.name} {self.variant}"

    @property
    def group(self) -> str:
        return f"{self.client.name}-{self.variant}"


class Run:
    def __init__(self, server: Server, kinds: list[Kind], jobs: int) -> None:
        self.server = server
        self.kinds = kinds
        self.jobs = jobs
        self.topic = "groups"
        self.failures: dict[str, list[str]] = defaultdict(list)

    def fail(self, kind: str, why: str) -> None:
        self.failures[kind].append(why)
        print(f"FAILED {kind}: {why}", flush=True)

    def write(self) -> None:
        """The topic, by a client that every broker takes."""
        with Session(BY_NAME["confluent-kafka"], self.server.bootstrap) as session:
            session.create(self.topic, PARTITIONS)
            for partition in range(PARTITIONS):
                records = [Record(None, value_at(partition, offset)) for offset in range(RECORDS)]
                for start in range(0, RECORDS, BATCH):
                    session.produce(self.topic, partition, "none", records[start : start + BATCH])

    def stage(self, number: int) -> None:
        """Every group takes its next part, each in a new process."""
        first, count = STAGES[number]
        began = time.monotonic()
        with ThreadPoolExecutor(self.jobs) as workers:
            list(workers.map(lambda kind: self.take(kind, number, first, count), self.kinds))
        took = time.monotonic() - began
        failed = len(self.failures)
        last = first + count - 1
        print(
            f"stage {number + 1}: records {first} to {last} of each partition ({took:.0f} s, {failed} failed)"
        )

    def take(self, kind: Kind, number: int, first: int, count: int) -> None:
        if kind.name in self.failures:
            return  # what follows would only repeat it
        began = time.monotonic()
        try:
            with Session(kind.client, self.server.bootstrap) as session:
                records, said = session.group(
                    kind.group, self.topic, count * PARTITIONS, count, kind.variant, STAGE_TIMEOUT_S
                )
        except ClientFailed as why:
            self.fail(kind.name, f"stage {number + 1}: {why}")
            return
        why_not = difference(records, first, count)
        if why_not:
            self.fail(kind.name, f"stage {number + 1}: {why_not}")
        if said != dict.fromkeys(range(PARTITIONS), first + count):
            self.fail(kind.name, f"stage {number + 1}: it says that it committed {said}")
        print(f"  {kind.name}: {len(records)} records ({time.monotonic() - began:.1f} s)", flush=True)

    def check_offsets(self, number: int, moment: str) -> None:
        """Kafka's tool and a plain request agree with what each group committed."""
        first, count = STAGES[number]
        end = first + count
        topic = find_topic(self.server, self.topic)
        rows = self.describe()
        for kind in self.kinds:
            if kind.name in self.failures:
                continue
            expected = dict.fromkeys(range(PARTITIONS), (end, RECORDS, RECORDS - end))
            if rows[kind.group] != expected:
                self.fail(
                    kind.name, f"kafka-consumer-groups {moment}: {rows[kind.group]}, expected {expected}"
                )
            asked = committed(self.server, kind.group, topic)
            if asked != dict.fromkeys(range(PARTITIONS), end):
                self.fail(kind.name, f"OffsetFetch {moment}: {asked}")
        print(
            f"kafka-consumer-groups --describe {moment}: offset {end}, lag {RECORDS - end} everywhere",
            flush=True,
        )

    def describe(self) -> dict[str, dict[int, tuple[int, int, int]]]:
        """Current offset, end and lag by group and partition, as `kafka-consumer-groups` prints them."""
        output = self._tool("--describe", "--all-groups", "--offsets")
        rows: dict[str, dict[int, tuple[int, int, int]]] = defaultdict(dict)
        columns: list[str] = []
        for line in output.splitlines():
            cells = line.split()
            if cells[:1] == ["GROUP"]:
                columns = cells
            elif columns and len(cells) == len(columns):
                row = dict(zip(columns, cells, strict=True))
                if row["TOPIC"] == self.topic:
                    numbers = (row[name] for name in ("CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"))
                    current, end, lag = (-1 if number == "-" else int(number) for number in numbers)
                    rows[row["GROUP"]][int(row["PARTITION"])] = current, end, lag
        return rows

    def check_states(self) -> None:
        """Whoever left is gone; a static member is expected back and keeps its place."""
        states = {}
        for line in self._tool("--list", "--state").splitlines():
            cells = line.split()
            if len(cells) >= 2:
                states[cells[0]] = cells[-1]
        for kind in self.kinds:
            expected = "Stable" if kind.variant == "static" else "Empty"
            if kind.name not in self.failures and states.get(kind.group) != expected:
                self.fail(
                    kind.name, f"its group is {states.get(kind.group)} after it left, expected {expected}"
                )

    def _tool(self, *options: str) -> str:
        java = parts.java(parts.kafka_classpath(parts.KAFKA_NEWEST), heap_mb=256)
        tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        command = [*java, tool, "--bootstrap-server", self.server.bootstrap, "--timeout", "30000", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
        if done.returncode != 0 or "Error:" in done.stdout:
            self.fail(
                "kafka-consumer-groups", f"{' '.join(options)}: {done.stdout.strip()} {done.stderr.strip()}"
            )
        return done.stdout

    def kill_and_restart(self) -> None:
        self.server.kill()
        took = self.server.start()
        print(f"{self.server.name} was killed with -9 and serves again ({took:.1f} s)", flush=True)

    def check_requests(self) -> None:
        topic = find_topic(self.server, self.topic)
        checks = {"a group never seen": check_never_seen, "commits read back": check_round_trips}
        for name, check in checks.items():
            failures = check(self.server, topic)
            for why in failures:
                self.fail(name, why)
            print(
                f"{name}, at every version: {'every partition as it should be' if not failures else 'FAILED'}"
            )


def value_at(partition: int, offset: int) -> bytes:
    return b"partition %d offset %d" % (partition, offset)


def difference(records: list[Record], first: int, count: int) -> str | None:
    """Why these are not exactly the wanted records of every partition, in order; None if they are."""
    by_partition: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        by_partition[record.partition].append(record)
    for partition in range(PARTITIONS):
        got = [record.offset for record in by_partition[partition]]
        wanted = list(range(first, first + count))
        if got != wanted:
            return f"partition {partition}: {len(got)} records from {got[:1]}, expected {count} from {first}"
        for record in by_partition[partition]:
            if record.value != value_at(partition, record.offset):
                return f"partition {partition} offset {record.offset}: value {record.value!r}"
    return None


def choose(
    server: Server, clients: Iterable[str] | None, variants: Iterable[str] | None, short: bool
) -> list[Kind]:
    """What can be run against this broker; what cannot is said aloud."""
    kinds = [Kind(client, variant) for client in CLIENTS for variant in client.variants]
    if clients is not None:
        kinds = [kind for kind in kinds if kind.client.name in clients]
    if variants is not None:
        kinds = [kind for kind in kinds if kind.variant in variants]
    if short:
        kinds = [kind for kind in kinds if (kind.client.name, kind.variant) in SHORT]
    if isinstance(server, ApacheKafka):
        old = server.version < "4"
        for kind in list(kinds):
            if not old and kind.client.name in OLD:
                kinds.remove(kind)
                print(f"not run: {kind.name}: Kafka {server.version} no longer speaks its protocol")
            if old and kind.variant == "consumer":
                kinds.remove(kind)
                print(f"not run: {kind.name}: Kafka {server.version} has that protocol as a preview only")
    return kinds


def run(server: Server, kinds: list[Kind], jobs: int, kill: bool) -> int:
    """How many kinds of members, and checks, failed."""
    checks = Run(server, kinds, jobs)
    checks.write()
    checks.stage(0)
    checks.check_states()
    checks.check_offsets(0, "after stage 1")
    checks.stage(1)
    checks.check_offsets(1, "after stage 2")
    if kill:
        checks.kill_and_restart()
        checks.check_offsets(1, "after kill -9")
    checks.stage(2)
    checks.check_offsets(2, "after stage 3")
    checks.check_requests()
    print()
    for kind in kinds:
        verdict = "FAILED" if kind.name in checks.failures else "resumed exactly"
        print(f"{kind.name:<28}{verdict}")
    print(f"{len(kinds)} kinds of members against {server.name}, {len(checks.failures)} failures")
    return len(checks.failures)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.groups", description=__doc__.splitlines()[0])
    add_against(parser)
    names = [client.name for client in CLIENTS if client.variants]
    parser.add_argument(
        "--clients", nargs="+", choices=names, metavar="CLIENT", help=f"some of: {', '.join(names)}"
    )
    variants = sorted({variant for client in CLIENTS for variant in client.variants})
    parser.add_argument("--variants", nargs="+", choices=variants, help="some kinds of membership")
    parser.add_argument("--short", action="store_true", help="one kind of membership a client, for each push")
    parser.add_argument(
        "--no-kill", action="store_true", help="leave the broker alive: for one that is not ours"
    )
    parser.add_argument("--jobs", type=int, default=2, help="client programs at a time (default: 2)")
    options = parser.parse_args()
    try:
        server = server_named(options.against, SETTINGS)
        kinds = choose(server, options.clients, options.variants, options.short)
        if not kinds:
            raise parts.PartMissing("no kind of member is left to run.")
        for client in {kind.client.name: kind.client for kind in kinds}.values():
            client.program()
        with interrupted_cleanly(), server:
            return 1 if run(server, kinds, options.jobs, not options.no_kill) else 0
    except parts.PartMissing as why:
        return parts.not_run(why)
    except ServerFailed as why:
        print(f"groups: {why}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
