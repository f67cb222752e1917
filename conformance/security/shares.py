"""Quotas of a user over TLS: several connections of one user share what it has, with librdkafka and with Java.

    python -m conformance.security.shares [--only librdkafka|java] [--rate BYTES]

On a cluster of `penstock start --secure` one user has a quota, as a producer and as a consumer, and another has none.
Three clients of the first user write, and then read, as fast as they can. What they write is seen by the ends of their
topics, and what they read is counted as it comes. In ten seconds, after some in which clients start and use up what
they have at first, all three together must be within 10 % of the quota. The other user's client sends one message
after the other all the while: it must not be throttled, must send more than twice the rate, and must not wait for a
second.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance import parts
from conformance.security.quotas import MESSAGE, SLACK, SMALL, Neighbour, Tally
from conformance.security.secure import Cluster, secure_cluster
from conformance.server import interrupted_cleanly
from penstock.client import Client
from penstock.settings.clients import client_security
from penstock.settings.properties import parse_properties
from penstock.testing.waiting import until
from penstock.wire.api.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)

LIMITED, FREE, PASSWORD = "limited", "free", "a-password"
CLIENTS = 3
SECONDS = 10.0
BEGIN_S = 60.0
START_S = 8.0
"""All of them have started, and what a user has at first is over."""
SLOWEST_S = 1.0
FACTOR = 2.0
WRITTEN = [f"written-{number}" for number in range(CLIENTS)]
FILLED = [f"filled-{number}" for number in range(CLIENTS)]


class Stage:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.admin: dict[str, Any] = dict(cluster.librdkafka())
        for user in (LIMITED, FREE):
            add = ["users", "add", user, "--password-stdin"]
            cluster.penstock(*add, given=f"{PASSWORD}\n".encode())
        self._reader = Consumer({**self.admin, "group.id": "ends"})
        admin = AdminClient(self.admin)
        for made in admin.create_topics(
            [NewTopic(one, 1, 1) for one in (*WRITTEN, *FILLED, "neighbour")]
        ).values():
            made.result(30)

    def user(self, name: str) -> dict[str, Any]:
        return {**self.admin, "sasl.username": name, "sasl.password": PASSWORD}

    def java_file(self) -> str:
        given = parse_properties(self.cluster.client_properties.read_text())
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        given["sasl.jaas.config"] = f'{module} required username="{LIMITED}" password="{PASSWORD}";'
        given["batch.size"] = given["fetch.max.bytes"] = given["max.partition.fetch.bytes"] = str(SMALL)
        file = self.cluster.store.parent / "limited.properties"
        file.write_text("".join(f"{name}={text}\n" for name, text in given.items()))
        return str(file)

    def limit(self, rate: int) -> None:
        ops = [OpData(key=f"{kind}_byte_rate", value=float(rate)) for kind in ("producer", "consumer")]
        entry = EntryData(entity=[EntityData(entity_type="user", entity_name=LIMITED)], ops=ops)
        given = client_security(parse_properties(self.cluster.client_properties.read_text()))
        with Client(self.cluster.bootstrap, 30.0, given) as client:
            answer = client.any().ask(AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse)
        assert not any(one.error_code for one in answer.entries), answer

    def fill(self, size: int) -> None:
        producer = Producer({**self.admin, "batch.size": SMALL // 2, "linger.ms": 50})
        for topic in FILLED:
            for _ in range(size // MESSAGE):
                producer.produce(topic, b"x" * MESSAGE)
                if len(producer) > 50_000:
                    producer.poll(0.1)
        assert producer.flush(120) == 0

    def written(self) -> int:
        """Bytes in the topics that limited clients write to."""
        ends = [self._reader.get_watermark_offsets(TopicPartition(one, 0), 10) for one in WRITTEN]
        return MESSAGE * sum(end[1] for end in ends)


Load = Callable[[Stage, threading.Event, Tally], list[threading.Thread]]


def librdkafka_writes(stage: Stage, leaving: threading.Event, _: Tally) -> list[threading.Thread]:
    def run(topic: str) -> None:
        producer = Producer({**stage.user(LIMITED), "batch.size": SMALL, "linger.ms": 5})
        value = os.urandom(MESSAGE)
        while not leaving.is_set():
            try:
                producer.produce(topic, value)
            except BufferError:
                producer.poll(0.05)
        producer.purge()

    return [threading.Thread(target=run, args=(topic,), daemon=True) for topic in WRITTEN]


def librdkafka_reads(stage: Stage, leaving: threading.Event, tally: Tally) -> list[threading.Thread]:
    def run(topic: str) -> None:
        limits = {"group.id": topic, "enable.auto.commit": False, "fetch.message.max.bytes": SMALL}
        consumer = Consumer({**stage.user(LIMITED), **limits})
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while not leaving.is_set():
            for message in consumer.consume(1000, 0.02):
                tally.add(len(message.value() or b""))
        consumer.close()

    return [threading.Thread(target=run, args=(topic,), daemon=True) for topic in FILLED]


def _java(*arguments: str) -> "subprocess.Popen[bytes]":
    java = parts.java(parts.kafka_classpath(parts.KAFKA_NEWEST), heap_mb=256)
    return subprocess.Popen([*java, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def java_writes(stage: Stage, leaving: threading.Event, _: Tally) -> list[threading.Thread]:
    file = stage.java_file()

    def run(topic: str) -> None:
        size = ["--record-size", str(MESSAGE), "--num-records", "100000000", "--throughput", "-1"]
        place = ["--bootstrap-server", stage.cluster.bootstrap, "--command-config", file, "--topic", topic]
        process = _java("org.apache.kafka.tools.ProducerPerformance", *place, *size)
        leaving.wait()
        process.kill()
        process.communicate()

    return [threading.Thread(target=run, args=(topic,), daemon=True) for topic in WRITTEN]


def java_reads(stage: Stage, leaving: threading.Event, tally: Tally) -> list[threading.Thread]:
    file = stage.java_file()

    def run(topic: str) -> None:
        place = ["--bootstrap-server", stage.cluster.bootstrap, "--command-config", file, "--topic", topic]
        process = _java("org.apache.kafka.tools.consumer.ConsoleConsumer", *place, "--from-beginning")
        assert process.stdout is not None
        while not leaving.is_set():
            tally.add(len(os.read(process.stdout.fileno(), 1 << 16)))
        process.kill()
        process.communicate()

    return [threading.Thread(target=run, args=(topic,), daemon=True) for topic in FILLED]


LOADS: dict[str, Load] = {
    "librdkafka writes": librdkafka_writes,
    "librdkafka reads": librdkafka_reads,
    "java writes": java_writes,
    "java reads": java_reads,
}


def holds(name: str, stage: Stage, load: Load, rate: int) -> bool:
    leaving, tally = threading.Event(), Tally()
    neighbour = Neighbour(stage.user(FREE))
    neighbour.start()
    threads = load(stage, leaving, tally)
    for thread in threads:
        thread.start()
    before = stage.written()
    until(
        lambda: tally.within(0, tally.seconds) > 0 or stage.written() > before,
        BEGIN_S,
        "the first record",
        every_s=0.5,
    )
    time.sleep(START_S)
    started, written = tally.seconds, stage.written()
    time.sleep(SECONDS)
    ended, since = tally.seconds, stage.written() - written
    got = tally.within(started, ended) if "reads" in name else since
    for event in (leaving, neighbour.leaving):
        event.set()
    for thread in (*threads, neighbour):
        thread.join(30)
    allowed, beside = rate * (ended - started), neighbour.tally.within(0, neighbour.tally.seconds)
    right = abs(got - allowed) <= SLACK * allowed
    unharmed = (
        not neighbour.problem
        and not neighbour.tally.throttled
        and neighbour.slowest_s < SLOWEST_S
        and beside > FACTOR * rate * (START_S + SECONDS)
    )
    print(
        f"{'held  ' if right and unharmed else 'FAILED'} {CLIENTS} clients, {name}: {got / 1e6:.2f} MB where "
        f"{allowed / 1e6:.2f} are allowed ({got / allowed - 1:+.1%}); the other user {beside / 1e6:.1f} MB, slowest "
        f"{1000 * neighbour.slowest_s:.0f} ms, throttled {neighbour.tally.throttled} times {neighbour.problem}",
        flush=True,
    )
    return right and unharmed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=("librdkafka", "java"), help="this client alone")
    parser.add_argument("--rate", type=int, default=1_000_000, help="bytes a second (default: %(default)s)")
    options = parser.parse_args()
    try:
        parts.kafka_classpath(parts.KAFKA_NEWEST)
    except parts.PartMissing as missing:
        return parts.not_run(missing)
    settings = {"allow.everyone.if.no.acl.found": "true"}
    with interrupted_cleanly(), secure_cluster(settings=settings) as cluster:
        stage = Stage(cluster)
        stage.fill(int(2 * options.rate * (START_S + SECONDS)))
        stage.limit(options.rate)
        chosen = {name: load for name, load in LOADS.items() if options.only in (None, name.split()[0])}
        results = [holds(name, stage, load, options.rate) for name, load in chosen.items()]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
