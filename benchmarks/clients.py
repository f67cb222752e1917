"""The clients that put load on a broker, each a program of its own that prints what it measured.

Java's ProducerPerformance is Kafka's own; the others are in `native/` and say there how they work. A client
reads back all that it produces. `Measured.digest` is a checksum over contents and offsets, from the
acknowledgements when producing and from the records when consuming, and the two must be equal.
"""

import importlib.util
import json
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from benchmarks import build
from conformance import parts

RUN_TIMEOUT_S = 300
# Of the records that a Java client handles, this share is not timed: the JIT compiler is at work then.
JAVA_WARM_SHARE = 0.25
JOIN_GROUP = 11
STEADY = re.compile(r"(\d+) steady state records sent, ([\d.]+) records/sec")


class ClientFailed(Exception):
    """A client ended with an error, or read other records than were acknowledged."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run of a client gave."""

    records: int
    records_per_second: float
    megabytes_per_second: float
    digest: str | None = None
    ack_p50_us: float = 0.0
    ack_p99_us: float = 0.0
    end_to_end_p50_us: float = 0.0
    end_to_end_p99_us: float = 0.0


class Client(Protocol):
    """What bulk measurements need."""

    name: str

    def produce(self, bootstrap: str, topic: str, records: int, value_bytes: int) -> Measured: ...

    def consume(self, bootstrap: str, topic: str, records: int, value_bytes: int) -> Measured: ...


class Transactor(Protocol):
    """What measurements of transactions need; everything is read back at read_committed."""

    name: str

    def transact(
        self, bootstrap: str, topic: str, partitions: int, seconds: float, value_bytes: int
    ) -> Measured: ...


class Sender(Protocol):
    """What measurements of small requests need; both read everything back."""

    name: str

    def small(
        self, bootstrap: str, topic: str, connections: int, seconds: float, value_bytes: int, *, verify: bool
    ) -> Measured: ...

    def latency(
        self, bootstrap: str, topic: str, rate: float, seconds: float, value_bytes: int, *, verify: bool
    ) -> Measured: ...


class Program:
    """native/rdkafka.c or native/franz: two programs with one command line."""

    def __init__(self, name: str, path: Path, login: Sequence[str] = ()) -> None:
        """`login`: options that make it speak TLS and log in."""
        self.name = name
        self.path = path
        self._login = login

    def with_login(self, login: Sequence[str]) -> "Program":
        return Program(self.name, self.path, login)

    def connect(self, bootstrap: str, connections: int) -> Measured:
        return self._run("connect", bootstrap, "none", f"--connections={connections}")

    def produce(self, bootstrap: str, topic: str, records: int, value_bytes: int) -> Measured:
        return self._run("produce", bootstrap, topic, f"--records={records}", f"--value={value_bytes}")

    def consume(
        self, bootstrap: str, topic: str, records: int, value_bytes: int, partitions: int = 1
    ) -> Measured:
        sizes = (f"--records={records}", f"--value={value_bytes}", f"--partitions={partitions}")
        return self._run("consume", bootstrap, topic, *sizes)

    def small(
        self, bootstrap: str, topic: str, connections: int, seconds: float, value_bytes: int, *, verify: bool
    ) -> Measured:
        sizes = (f"--connections={connections}", f"--seconds={seconds}", f"--value={value_bytes}")
        sent = self._run("small", bootstrap, topic, *sizes)
        if verify:
            same(self.name, sent, self.consume(bootstrap, topic, sent.records, value_bytes, connections))
        return sent

    def latency(
        self, bootstrap: str, topic: str, rate: float, seconds: float, value_bytes: int, *, verify: bool
    ) -> Measured:
        sizes = (f"--rate={rate}", f"--seconds={seconds}", f"--value={value_bytes}")
        sent = self._run("latency", bootstrap, topic, *sizes)
        if verify:
            same(self.name, sent, self.consume(bootstrap, topic, sent.records, value_bytes))
        return sent

    def transact(
        self, bootstrap: str, topic: str, partitions: int, seconds: float, value_bytes: int
    ) -> Measured:
        """Transactions of one record to each partition; as many a second as `records_per_second` says."""
        sizes = (f"--partitions={partitions}", f"--seconds={seconds}", f"--value={value_bytes}")
        sent = self._run("transact", bootstrap, topic, *sizes)
        same(self.name, sent, self.consume_committed(bootstrap, topic, sent.records, value_bytes, partitions))
        return sent

    def transact_bulk(
        self, bootstrap: str, topic: str, records: int, value_bytes: int, *, plain: bool = False
    ) -> Measured:
        """`plain`: the same flushes, and no transactions."""
        sizes = (f"--records={records}", f"--value={value_bytes}", *(["--plain"] if plain else []))
        sent = self._run("transact-bulk", bootstrap, topic, *sizes)
        same(self.name, sent, self.consume_committed(bootstrap, topic, sent.records, value_bytes, 1))
        return sent

    def transact_latency(
        self, bootstrap: str, topic: str, rate: float, seconds: float, value_bytes: int
    ) -> Measured:
        sizes = (f"--rate={rate}", f"--seconds={seconds}", f"--value={value_bytes}")
        sent = self._run("transact-latency", bootstrap, topic, *sizes)
        same(self.name, sent, self.consume_committed(bootstrap, topic, sent.records, value_bytes, 1))
        return sent

    def consume_committed(
        self, bootstrap: str, topic: str, records: int, value_bytes: int, partitions: int
    ) -> Measured:
        """Read back at read_committed."""
        sizes = (
            f"--records={records}",
            f"--value={value_bytes}",
            f"--partitions={partitions}",
            "--committed",
        )
        return self._run("consume", bootstrap, topic, *sizes)

    def _run(self, mode: str, bootstrap: str, topic: str, *options: str) -> Measured:
        place = [f"--broker={bootstrap}", f"--topic={topic}"]
        command = [str(self.path), mode, *place, *self._login, *options]
        return measured(json.loads(output(self.name, command)))


class Raw:
    """native/load.c: prebuilt frames, so that nearly all the processor time is the broker's."""

    name = "raw frames"

    def __init__(self, path: Path) -> None:
        self.path = path

    def small(
        self, bootstrap: str, topic: str, connections: int, seconds: float, value_bytes: int, *, verify: bool
    ) -> Measured:
        shape = (f"--workload={value_bytes}-{connections}x1", f"--partitions={connections}")
        return self._run(bootstrap, topic, seconds, value_bytes, verify, *shape)

    def latency(
        self, bootstrap: str, topic: str, rate: float, seconds: float, value_bytes: int, *, verify: bool
    ) -> Measured:
        shape = (f"--workload={value_bytes}-d1", f"--rate={rate}", "--tail")
        return self._run(bootstrap, topic, seconds, value_bytes, verify, *shape)

    def alone(
        self, bootstrap: str, topic: str, workload: str, seconds: float, value_bytes: int, *, verify: bool
    ) -> Measured:
        """One of the workloads of `python -m benchmarks.load`."""
        return self._run(bootstrap, topic, seconds, value_bytes, verify, f"--workload={workload}")

    def _run(
        self, bootstrap: str, topic: str, seconds: float, value_bytes: int, verify: bool, *shape: str
    ) -> Measured:
        command = [str(self.path), f"--broker={bootstrap}", f"--topic={topic}", f"--seconds={seconds}"]
        command += [f"--value={value_bytes}", *shape, *(() if verify else ("--no-verify",))]
        printed = json.loads(output(self.name, command))
        return measured(printed | {"records": printed["requests"]})


class Java:
    """Kafka's ProducerPerformance and ConsumerPerformance, and the latter's loop without a group."""

    name = "Java"

    def __init__(self, classpath: str, classes: Path) -> None:
        heap = "-Xmx512M"  # as kafka-producer-perf-test.sh has it
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        self.java = ["java", heap, quiet, "-cp", f"{classpath}{os.pathsep}{classes}"]
        self.digests: dict[tuple[int, int], str] = {}

    def produce(self, bootstrap: str, topic: str, records: int, value_bytes: int) -> Measured:
        warm = int(records * JAVA_WARM_SHARE)
        tool = "org.apache.kafka.tools.ProducerPerformance"
        sizes = [
            "--num-records",
            str(records),
            "--record-size",
            str(value_bytes),
            "--warmup-records",
            str(warm),
        ]
        place = ["--bootstrap-server", bootstrap, "--topic", topic, "--throughput", "-1"]
        printed = output(self.name, [*self.java, tool, *place, *sizes, "--reporting-interval", "600000"])
        found = STEADY.search(printed)
        if found is None or int(found[1]) != records - warm:
            raise ClientFailed(f"{self.name}: ProducerPerformance did not send everything: {printed.strip()}")
        rate = float(found[2])
        return Measured(records, rate, rate * value_bytes / 1e6, self._expected(records, value_bytes))

    def consume(self, bootstrap: str, topic: str, records: int, value_bytes: int) -> Measured:
        warm = int(records * JAVA_WARM_SHARE)
        sizes = [str(records), str(value_bytes), str(warm)]
        return measured(
            json.loads(output(self.name, [*self.java, "Read", "consume", bootstrap, topic, *sizes]))
        )

    def consume_in_group(self, bootstrap: str, topic: str, records: int, value_bytes: int) -> float:
        """ConsumerPerformance, which subscribes; megabytes per second once it has its partitions."""
        tool = "org.apache.kafka.tools.ConsumerPerformance"
        place = ["--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(records)]
        printed = output(self.name, [*self.java, tool, *place, "--hide-header"])
        columns = printed.strip().splitlines()[-1].split(", ")
        if len(columns) != 10 or int(columns[4]) < records:
            raise ClientFailed(f"{self.name}: ConsumerPerformance did not read everything: {printed.strip()}")
        return float(columns[9]) * value_bytes / 1e6

    def transact(
        self, bootstrap: str, topic: str, partitions: int, seconds: float, value_bytes: int
    ) -> Measured:
        """Transactions of one record to each partition; franz-go reads them back."""
        sizes = [str(partitions), str(seconds), str(value_bytes)]
        sent = measured(json.loads(output(self.name, [*self.java, "Transact", bootstrap, topic, *sizes])))
        read = franz_go().consume_committed(bootstrap, topic, sent.records, value_bytes, partitions)
        same(self.name, sent, read)
        return sent

    def _expected(self, records: int, value_bytes: int) -> str:
        key = (records, value_bytes)
        if key not in self.digests:
            command = [*self.java, "Read", "expected", str(records), str(value_bytes)]
            self.digests[key] = str(json.loads(output(self.name, command))["digest"])
        return self.digests[key]


def measured(printed: dict[str, Any]) -> Measured:
    ack, whole = printed.get("ack_us") or {}, printed.get("end_to_end_us") or {}
    return Measured(
        records=int(printed["records"]),
        records_per_second=float(printed["records_per_second"]),
        megabytes_per_second=float(printed["megabytes_per_second"]),
        digest=printed.get("digest"),
        ack_p50_us=float(ack.get("p50", 0)),
        ack_p99_us=float(ack.get("p99", 0)),
        end_to_end_p50_us=float(whole.get("p50", 0)),
        end_to_end_p99_us=float(whole.get("p99", 0)),
    )


def same(name: str, sent: Measured, read: Measured) -> None:
    """What was read back must be what was acknowledged."""
    if sent.records != read.records or sent.digest != read.digest:
        raise ClientFailed(
            f"{name}: {sent.records} records with digest {sent.digest} were acknowledged, "
            f"{read.records} with {read.digest} were read"
        )


def output(name: str, command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as late:
        raise ClientFailed(f"{name}: no end after {RUN_TIMEOUT_S} s") from late
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise ClientFailed(f"{name}: {'; '.join(said[-3:]) or f'ended with {done.returncode}'}")
    return done.stdout


@cache
def librdkafka() -> Program:
    """Built against the library that the confluent-kafka wheel carries."""
    found = importlib.util.find_spec("confluent_kafka")
    if found is None or found.origin is None:
        raise parts.PartMissing(
            "librdkafka cannot be had: the Python package confluent-kafka is not installed."
        )
    folder = Path(found.origin).parent.parent / "confluent_kafka.libs"
    libraries = sorted(folder.glob("librdkafka-*.so*"))
    if not libraries:
        raise parts.PartMissing(f"librdkafka cannot be had: {folder} has no librdkafka.")
    flags = (str(libraries[0]), f"-Wl,-rpath,{folder}", "-Wl,--allow-shlib-undefined", "-lpthread")
    return Program("librdkafka", build.c_program("rdkafka", *flags))


@cache
def franz_go() -> Program:
    source = build.NATIVE / "franz"
    program = build.BIN / "franz"
    if not build.fresh(program, *source.glob("*.go"), source / "go.mod"):
        build.run("the franz-go program", ["go", "build", "-o", str(program), "."], source)
    return Program("franz-go", program)


@cache
def java() -> Java:
    classpath = parts.kafka_classpath(parts.KAFKA_NEWEST)
    sources = sorted((build.NATIVE / "java").glob("*.java"))
    classes = build.BIN / "java"
    if not all(build.fresh(classes / f"{source.stem}.class", source) for source in sources):
        build.run(
            "the Java clients",
            ["javac", "-nowarn", "-cp", classpath, "-d", str(classes), *map(str, sources)],
            build.NATIVE,
        )
    return Java(classpath, classes)


@cache
def raw() -> Raw:
    return Raw(build.c_program("load"))
