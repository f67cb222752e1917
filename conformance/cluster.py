"""Three brokers that never contradict themselves or each other, while brokers stop, die and come back.

For each broker as the only bootstrap address, and for each other broker: a controlled stop, a start, a
kill -9 and a start. Before, during and after each of these, every broker that runs is asked for Metadata,
DescribeCluster and the coordinators of hundreds of groups: whatever is named must be in the broker list of
the same broker, the list is exactly the live brokers (a killed one until its lease runs out), and the brokers
agree. Meanwhile group consumers of many libraries, which know only that one address, read a topic that is
being written, and must come to its end without a gap.
"""

import argparse
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance import parts
from conformance.client import BY_NAME, ClientFailed, Session
from conformance.clients.protocol import Record
from conformance.cluster_processes import Cluster, Member
from conformance.cluster_views import agreed_view, view, wait_for_brokers
from conformance.server import ServerFailed, interrupted_cleanly

SESSION_TIMEOUT_S = 3.0
LISTED_WITHIN_S = 8.0
"""A killed broker must be off every list by then: the session time-out, and slack for a busy machine."""
SETTINGS = {
    "broker.session.timeout.ms": str(int(SESSION_TIMEOUT_S * 1000)),
    "group.initial.rebalance.delay.ms": "0",
    "leader.imbalance.check.interval.seconds": "2",
}
PARTITIONS = 3
RECORDS_PER_SECOND = 25
CLIENT_TIMEOUT_S = 110.0
ALL_CLIENTS = (
    "confluent-kafka",
    "kafka-python",
    "kafka-python-0.10",
    "aiokafka",
    "franz-go",
    "sarama",
    "java",
)
BROKEN_CONNECTION = ("refused", "REFUSED", "EOF", "reset", "broken pipe", "disconnected")
SHORT_CLIENTS = ("confluent-kafka", "kafka-python-0.10", "aiokafka")


class Stream(threading.Thread):
    """Writes numbered records to a topic at an even pace until it is told to end."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(name=f"stream to {topic}", daemon=True)
        self.topic = topic
        self.acknowledged: dict[int, dict[int, bytes]] = defaultdict(dict)
        self.failures: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 0,
                "log.connection.close": False,
            }
        )
        self._end = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._end.wait(1 / RECORDS_PER_SECOND):
            self._producer.produce(
                self.topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered
            )
            self._producer.poll(0)
            number += 1
        left = self._producer.flush(30)
        if left:
            self.failures.append(f"{left} records were never answered")

    def _delivered(self, error: Any, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None and offset is not None
        self.acknowledged[partition][offset] = message.value() or b""

    def end(self) -> None:
        self._end.set()
        self.join()


def prove(bootstrap: Member, cluster: Cluster, others: Sequence[int], clients: Sequence[str]) -> list[str]:
    """One bootstrap address: failures, as sentences."""
    topic = f"stream-{bootstrap.broker}-{time.monotonic_ns()}"
    groups = [f"group-{number}" for number in range(300)]
    admin = AdminClient({"bootstrap.servers": bootstrap.address})
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(30)
    # The coordinators' topic is created by the first question for one.
    view(bootstrap, groups[:1])
    stream = Stream(cluster.bootstrap, topic)
    stream.start()
    count = RECORDS_PER_SECOND * 8 * len(others) * 2
    with ThreadPoolExecutor(max(1, len(clients))) as pool:
        reading = {
            name: pool.submit(read, name, bootstrap.address, topic, f"readers-{topic}-{name}", count)
            for name in clients
        }
        failures = disturb(bootstrap, cluster, others, groups)
        failures += [
            f"{name} did not keep going: {problem}"
            for name, future in reading.items()
            for problem in complaints(future, stream)
        ]
        stream.end()
    return failures + [f"the producer failed: {failure}" for failure in stream.failures]


def disturb(bootstrap: Member, cluster: Cluster, others: Sequence[int], groups: list[str]) -> list[str]:
    everybody = set(cluster.members)
    try:
        wait_for_brokers(cluster.running, groups, everybody, LISTED_WITHIN_S)
        agreed_view(cluster.running, groups)
        for broker in others:
            member = cluster[broker]
            rest = everybody - {broker}
            member.terminate()
            began = time.monotonic()
            looks = 0
            while member.running and time.monotonic() - began < 30:
                # During the stop: whoever answers contradicts nothing.
                found = view(bootstrap, groups).contradictions()
                assert not found, f"during the stop of {broker}: {found[:5]}"
                looks += 1
            stopped = member.wait_until_ended(began)
            gone = wait_for_brokers(cluster.running, groups, rest, 1.0)
            agreed_view(cluster.running, groups)
            started = member.start()
            back = wait_for_brokers(cluster.running, groups, everybody, 1.0)
            agreed_view(cluster.running, groups)
            member.kill()
            died = wait_for_brokers(cluster.running, groups, rest, LISTED_WITHIN_S)
            agreed_view(cluster.running, groups)
            again = member.start()
            wait_for_brokers(cluster.running, groups, everybody, 1.0)
            agreed_view(cluster.running, groups)
            print(
                f"  broker {broker}: stopped in {stopped:.2f} s ({looks} looks meanwhile), off all lists "
                f"{gone:.2f} s later; started in {started:.2f} s, on all lists {back:.2f} s later; killed, "
                f"off all lists after {died:.2f} s; started again in {again:.2f} s",
                flush=True,
            )
    except AssertionError as problem:
        return [f"bootstrap {bootstrap.broker}: {problem}"]
    return []


def read(name: str, address: str, topic: str, group: str, count: int) -> list[Record]:
    """Join a group through one address, and read on whatever happens. Some libraries hand a broken connection
    to the application; it then tries again, as applications do."""
    client = BY_NAME[name]
    deadline = time.monotonic() + CLIENT_TIMEOUT_S
    with Session(client, address) as session:
        while True:
            left = deadline - time.monotonic()
            try:
                records, _committed = session.group(group, topic, count, "classic", left)
                break
            except ClientFailed as problem:
                if left < 1 or not any(word in str(problem) for word in BROKEN_CONNECTION):
                    raise
    if len(records) < count:
        raise ClientFailed(f"it read {len(records)} of {count} records in {CLIENT_TIMEOUT_S:.0f} s")
    return records


def complaints(future: "Future[list[Record]]", stream: Stream) -> list[str]:
    try:
        records = future.result()
    except (ClientFailed, parts.PartMissing) as problem:
        return [str(problem)]
    found = []
    read_by: dict[int, dict[int, bytes | None]] = defaultdict(dict)
    for record in records:
        read_by[record.partition][record.offset] = record.value
    for partition, offsets in read_by.items():
        missing = set(range(max(offsets) + 1)) - set(offsets)
        if missing:
            found.append(f"partition {partition} lacks offsets {sorted(missing)[:5]}")
        for offset, value in stream.acknowledged[partition].items():
            if offset in offsets and offsets[offset] != value:
                found.append(f"partition {partition} offset {offset} is {offsets[offset]!r}, not {value!r}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.cluster", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--short", action="store_true", help="one bootstrap address, Python's clients: for CI"
    )
    parser.add_argument("--clients", help=f"comma-separated (default: {','.join(ALL_CLIENTS)})")
    chosen = parser.parse_args(arguments)
    clients = (chosen.clients or ",".join(SHORT_CLIENTS if chosen.short else ALL_CLIENTS)).split(",")
    failures: list[str] = []
    began = time.monotonic()
    with interrupted_cleanly(), Cluster(3, SETTINGS, racks=True) as cluster:
        cluster.start()
        for broker in [2] if chosen.short else cluster.members:
            others = [other for other in cluster.members if other != broker]
            print(f"bootstrap only broker {broker}; groups of {', '.join(clients)}", flush=True)
            try:
                failures += prove(cluster[broker], cluster, others[:1] if chosen.short else others, clients)
            except ServerFailed as problem:
                failures.append(str(problem))
                break
        failures += cluster.tracebacks()
    for failure in failures:
        print(f"FAILED: {failure}")
    if not failures:
        print(f"no contradiction, and every group kept going ({time.monotonic() - began:.0f} s)")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
