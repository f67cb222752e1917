"""The scenarios: each puts one kind of load on one broker and gives one figure per row.

A row says what its figure means, which direction is better, and which value is expected.
"""

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from conformance.server import Server

from benchmarks import brokers, clients, control, secured
from benchmarks.load import WORKLOADS

numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Goal:
    """How many times better than the others Penstock should be; `at_most` is a bound on its own figure."""

    than_kafka: float = 1.0
    than_null: float | None = None
    at_most: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    key: str
    label: str
    unit: str
    higher_is_better: bool
    goal: Goal = Goal()


@dataclass(frozen=True, slots=True)
class Scenario:
    """One load. `run` gives a figure for each row's key, if the broker offers what the row needs."""

    key: str
    rows: tuple[Row, ...]
    run: Callable[["Target"], dict[str, float]]
    # Set where the scenario starts brokers of its own and is not given a running one.
    starts: bool = False
    # Set where a broker writes so much that the memory it gets for it matters.
    heavy: bool = False
    # Set where only a broker can answer that keeps what it is told.
    keeps: bool = False


@dataclass(slots=True)
class Target:
    """A broker under test."""

    name: str
    server: Server
    topics: list[str] = field(default_factory=list)

    @property
    def keeps(self) -> bool:
        """False for the null brokers, from which nothing can be read back."""
        return self.name not in ("null", "file")

    def offers(self, api: int) -> bool:
        connection = control.Control(self.server.host, self.server.port)
        try:
            return connection.offers(api)
        finally:
            connection.close()

    def topic(self, partitions: int = 1) -> str:
        """A new topic of its own for a run."""
        name = f"bench-{os.getpid()}-{next(numbers)}"
        connection = control.Control(self.server.host, self.server.port)
        connection.create_topic(name, partitions)
        connection.close()
        self.topics.append(name)
        return name

    def unused_topic(self) -> str:
        """A name for a client that creates the topic itself."""
        self.topics.append(f"bench-{os.getpid()}-{next(numbers)}")
        return self.topics[-1]

    def forget_topics(self) -> None:
        """Delete what the runs made, so that its write-back does not burden the next one."""
        if self.keeps and self.topics:
            connection = control.Control(self.server.host, self.server.port)
            for name in self.topics:
                connection.delete_topic(name)
            connection.close()
        self.topics.clear()


@dataclass(frozen=True, slots=True)
class Size:
    """How much of each load: the full measure, or --quick."""

    bulk_bytes: int = 300_000_000
    java_bulk_bytes: int = 200_000_000
    small_seconds: float = 2.0
    latency_seconds: float = 4.0
    alone_seconds: float = 1.5
    warm_seconds: float = 4.0
    touched_bytes: int = 800_000_000


QUICK = Size(60_000_000, 60_000_000, 0.7, 1.5, 0.5, 2.5, 300_000_000)
# Records a second; where each waits for the disk, few enough that a peer without group commit keeps up.
LATENCY_RATE = {"os": 1000.0, "fsync": 100.0}
# Transactions a second, each of one record: few enough for either broker.
TRANSACTION_RATE = {"os": 100.0, "fsync": 20.0}
SMALL_VALUE_BYTES = 1024
CONNECTIONS = 1000
# The null broker syncs nothing, so it is no measure of what does.
BULK_GOALS = {"os": Goal(than_kafka=1.0, than_null=0.9), "fsync": Goal()}


def human(value_bytes: int) -> str:
    return "1 KiB" if value_bytes == 1024 else f"{value_bytes} B"


def bulk(
    prefix: str, make: Callable[[], clients.Client], name: str, value_bytes: int, total: int
) -> Scenario:
    records = total // value_bytes

    def run(target: Target) -> dict[str, float]:
        client = make()
        topic = target.topic()
        sent = client.produce(target.server.bootstrap, topic, records, value_bytes)
        read = client.consume(target.server.bootstrap, topic, records, value_bytes)
        if target.keeps:
            clients.same(client.name, sent, read)
        got = {f"{key}/produce": sent.megabytes_per_second, f"{key}/consume": read.megabytes_per_second}
        if isinstance(client, clients.Java) and target.offers(clients.JOIN_GROUP):
            where = target.server.bootstrap
            got[f"{key}/group"] = client.consume_in_group(where, topic, records, value_bytes)
        return got

    key = f"{prefix}/bulk/{name}/{value_bytes}"
    label = f"{name}, {human(value_bytes)}"
    goal = BULK_GOALS[prefix]
    rows: tuple[Row, ...] = (
        Row(f"{key}/produce", f"bulk produce, {label}", "MB/s", True, goal),
        Row(f"{key}/consume", f"bulk consume, {label}", "MB/s", True, goal),
    )
    if make is clients.java:
        rows += (Row(f"{key}/group", f"bulk consume in a group, {label}", "MB/s", True, goal),)
    return Scenario(key, rows, run, heavy=True)


def small(
    prefix: str, make: Callable[[], clients.Sender], name: str, connections: int, seconds: float
) -> Scenario:
    def run(target: Target) -> dict[str, float]:
        client = make()
        owns = isinstance(client, clients.Raw)
        topic = target.unused_topic() if owns else target.topic(connections)
        where = target.server.bootstrap
        sent = client.small(where, topic, connections, seconds, SMALL_VALUE_BYTES, verify=target.keeps)
        return {key: sent.records_per_second}

    key = f"{prefix}/small/{name}/{connections}"
    noun = "connection" if connections == 1 else "connections"
    label = f"small requests, {name}, {connections} {noun}"
    return Scenario(key, (Row(key, label, "req/s", True, Goal(than_kafka=2.0)),), run)


def latency(prefix: str, make: Callable[[], clients.Sender], name: str, seconds: float) -> Scenario:
    def run(target: Target) -> dict[str, float]:
        client = make()
        owns = isinstance(client, clients.Raw)
        topic = target.unused_topic() if owns else target.topic()
        where = target.server.bootstrap
        rate = LATENCY_RATE[prefix]
        got = client.latency(where, topic, rate, seconds, SMALL_VALUE_BYTES, verify=target.keeps)
        return {
            f"{key}/ack-p50": got.ack_p50_us / 1e3,
            f"{key}/ack-p99": got.ack_p99_us / 1e3,
            f"{key}/end-p50": got.end_to_end_p50_us / 1e3,
            f"{key}/end-p99": got.end_to_end_p99_us / 1e3,
        }

    key = f"{prefix}/latency/{name}"
    rows = tuple(
        Row(f"{key}/{short}-{quantile}", f"{what} {quantile}, {name}", "ms", False, goal)
        for short, what in (("ack", "acknowledgement"), ("end", "end to end"))
        for quantile, goal in (("p50", Goal()), ("p99", Goal(than_kafka=3.0)))
    )
    return Scenario(key, rows, run)


def alone(prefix: str, workload: str, seconds: float) -> Scenario:
    def run(target: Target) -> dict[str, float]:
        topic = target.unused_topic()
        where = target.server.bootstrap
        got = clients.raw().alone(where, topic, workload, seconds, SMALL_VALUE_BYTES, verify=target.keeps)
        return {key: got.megabytes_per_second}

    key = f"{prefix}/alone/{workload}"
    return Scenario(key, (Row(key, f"prebuilt frames, {workload}", "MB/s", True),), run, heavy=True)


def transactions(
    prefix: str, client: Callable[[], clients.Transactor], name: str, partitions: int, seconds: float
) -> Scenario:
    """One producer, one transaction after the other, each with one record to each partition."""

    def run(target: Target) -> dict[str, float]:
        topic = target.topic(partitions)
        sent = client().transact(target.server.bootstrap, topic, partitions, seconds, SMALL_VALUE_BYTES)
        return {key: sent.records_per_second}

    key = f"{prefix}/transactions/{name}/{partitions}"
    noun = "partition" if partitions == 1 else "partitions"
    label = f"transactions of {partitions} {noun}, {name}"
    return Scenario(key, (Row(key, label, "txn/s", True, Goal(than_kafka=2.0)),), run, keeps=True)


def transaction_latency(prefix: str, seconds: float) -> Scenario:
    def run(target: Target) -> dict[str, float]:
        topic = target.topic()
        where = target.server.bootstrap
        rate = TRANSACTION_RATE[prefix]
        got = clients.franz_go().transact_latency(where, topic, rate, seconds, SMALL_VALUE_BYTES)
        return {
            f"{key}/commit-p50": got.ack_p50_us / 1e3,
            f"{key}/commit-p99": got.ack_p99_us / 1e3,
            f"{key}/end-p50": got.end_to_end_p50_us / 1e3,
            f"{key}/end-p99": got.end_to_end_p99_us / 1e3,
        }

    key = f"{prefix}/transactions/latency"
    rows = tuple(
        Row(f"{key}/{short}-{quantile}", f"{what} {quantile}, franz-go", "ms", False)
        for short, what in (("commit", "transaction to its commit"), ("end", "end to end at read_committed"))
        for quantile in ("p50", "p99")
    )
    return Scenario(key, rows, run, keeps=True)


def transaction_bulk(prefix: str, value_bytes: int, total: int) -> Scenario:
    """The same records and flushes with transactions and without: the second row says what share of the speed is
    left. Both run in turns, in both orders, after a run of each that is not counted: who comes first is slower."""
    records = total // value_bytes // 2

    def run(target: Target) -> dict[str, float]:
        client, where = clients.franz_go(), target.server.bootstrap

        def speed_of(*, plain: bool) -> float:
            done = client.transact_bulk(where, target.topic(), records, value_bytes, plain=plain)
            return done.megabytes_per_second

        turns = [(plain, speed_of(plain=plain)) for plain in (True, False, True, False, False, True)][2:]
        within, without = (
            statistics.harmonic_mean([speed for kind, speed in turns if kind is plain])
            for plain in (False, True)
        )
        return {f"{key}/produce": within, f"{key}/share": 100 * within / without}

    key = f"{prefix}/transactions/bulk/{value_bytes}"
    label = f"bulk produce in transactions, franz-go, {human(value_bytes)}"
    rows = (
        Row(f"{key}/produce", label, "MB/s", True),
        # A broker that is quick without them keeps a smaller share.
        Row(f"{key}/share", f"{label}: of the speed without", "%", True, Goal(than_kafka=0.5)),
    )
    return Scenario(key, rows, run, heavy=True, keeps=True)


def start(prefix: str) -> Scenario:
    """From the command to the first acknowledged record, on an empty store."""

    def run(target: Target) -> dict[str, float]:
        server = target.server
        began = time.monotonic()
        brokers.launch(server)
        control.first_produce(server.host, server.port)
        return {key: time.monotonic() - began}

    key = f"{prefix}/start"
    goal = Goal(at_most=0.25)
    return Scenario(
        key, (Row(key, "start to first acknowledged record", "s", False, goal),), run, starts=True
    )


def door(target: Target) -> tuple[str, list[str]]:
    """Where clients log in, and the options that make them do so."""
    assert isinstance(target.server, secured.Secured)
    return target.server.door, target.server.login


def secured_bulk(make: Callable[[], clients.Program], name: str, value_bytes: int, total: int) -> Scenario:
    records = total // value_bytes

    def run(target: Target) -> dict[str, float]:
        where, login = door(target)
        client = make().with_login(login)
        topic = target.topic()
        sent = client.produce(where, topic, records, value_bytes)
        read = client.consume(where, topic, records, value_bytes)
        clients.same(client.name, sent, read)
        return {f"{key}/produce": sent.megabytes_per_second, f"{key}/consume": read.megabytes_per_second}

    key = f"{secured.KEY}/bulk/{name}/{value_bytes}"
    label = f"{name}, {human(value_bytes)}, TLS and SCRAM"
    rows = (
        Row(f"{key}/produce", f"bulk produce, {label}", "MB/s", True),
        Row(f"{key}/consume", f"bulk consume, {label}", "MB/s", True),
    )
    return Scenario(key, rows, run, heavy=True, keeps=True)


def secured_small(
    make: Callable[[], clients.Program], name: str, connections: int, seconds: float
) -> Scenario:
    def run(target: Target) -> dict[str, float]:
        where, login = door(target)
        topic = target.topic(connections)
        sent = (
            make().with_login(login).small(where, topic, connections, seconds, SMALL_VALUE_BYTES, verify=True)
        )
        return {key: sent.records_per_second}

    key = f"{secured.KEY}/small/{name}/{connections}"
    label = f"small requests, {name}, {connections} connections, TLS and SCRAM"
    return Scenario(key, (Row(key, label, "req/s", True),), run, keeps=True)


def secured_connect(connections: int) -> Scenario:
    def run(target: Target) -> dict[str, float]:
        where, login = door(target)
        return {key: clients.franz_go().with_login(login).connect(where, connections).records_per_second}

    key = f"{secured.KEY}/connect/{connections}"
    label = f"{connections} connections opened with TLS and SCRAM"
    return Scenario(key, (Row(key, label, "conn/s", True),), run, keeps=True)


def secured_scenarios(size: Size) -> Iterator[Scenario]:
    for name, make in (("librdkafka", clients.librdkafka), ("franz-go", clients.franz_go)):
        yield secured_bulk(make, name, 1024, size.bulk_bytes)
        for connections in (1, 8):
            yield secured_small(make, name, connections, size.small_seconds)
    yield secured_connect(CONNECTIONS)


def memory_rows(prefix: str) -> tuple[Row, Row]:
    """Figures that the harness reads off the running brokers itself."""
    return (
        Row(f"{prefix}/rss/idle", "resident memory, idle", "MB", False, Goal(at_most=50)),
        Row(f"{prefix}/rss/loaded", "resident memory, after the bulk runs", "MB", False, Goal(at_most=200)),
    )


def scenarios(durability: str, size: Size) -> Iterator[Scenario]:
    """Every scenario at this durability; where each answer waits for the disk, fewer clients say it all."""
    if durability == secured.KEY:
        yield from secured_scenarios(size)
        return
    everything = durability == "os"
    if everything:
        for value_bytes in (1024, 100):
            yield bulk(durability, clients.java, "Java", value_bytes, size.java_bulk_bytes)
    for value_bytes in (1024, 100):
        yield bulk(durability, clients.librdkafka, "librdkafka", value_bytes, size.bulk_bytes)
        if everything:
            yield bulk(durability, clients.franz_go, "franz-go", value_bytes, size.bulk_bytes)
    for connections in (1, 8, 16):
        yield small(durability, clients.raw, "raw frames", connections, size.small_seconds)
        if everything:
            yield small(durability, clients.librdkafka, "librdkafka", connections, size.small_seconds)
        yield small(durability, clients.franz_go, "franz-go", connections, size.small_seconds)
    for partitions in (1, 10, 100) if everything else (1,):
        yield transactions(durability, clients.franz_go, "franz-go", partitions, size.small_seconds)
    if everything:
        yield transactions(durability, clients.java, "Java", 1, size.small_seconds)
    yield transaction_latency(durability, size.latency_seconds)
    if everything:
        yield transaction_bulk(durability, 1024, size.bulk_bytes)
    yield latency(durability, clients.raw, "raw frames", size.latency_seconds)
    yield latency(durability, clients.franz_go, "franz-go", size.latency_seconds)
    if everything:
        yield latency(durability, clients.librdkafka, "librdkafka", size.latency_seconds)
        for workload in WORKLOADS:
            yield alone(durability, workload, size.alone_seconds)
        yield start(durability)
