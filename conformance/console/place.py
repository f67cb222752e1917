"""A cluster with much in it, and the console that shows it, each as the commands that users run."""

import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from playwright.sync_api import Page

from conformance.cluster.processes import Cluster, penstock
from conformance.server import ServerFailed
from penstock.client import Client
from penstock.wire.api.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse

TOPICS = 5000
ORDERS = "orders"
"""The topic with many records: each has a key of its own."""
GROUP = "billing"
PARTITIONS = 4
AT_ONCE = 250
FILL_SECONDS = 600.0
ADDRESS = re.compile(rb"(https?://\S+)")
START_SECONDS = 30.0
PAGES = (
    "/",
    "/brokers",
    "/brokers/1",
    "/topics",
    f"/topics/{ORDERS}",
    f"/topics/{ORDERS}/records",
    f"/topics/{ORDERS}/groups",
    f"/topics/{ORDERS}/settings",
    "/create-topic",
    "/groups",
    f"/groups/{GROUP}",
    f"/groups/{GROUP}?view=reset&way=earliest",
    "/transactions",
    "/access",
    "/pipelines",
    "/doctor",
    "/store",
)


class Shown(Protocol):
    """A console, and the cluster that it shows."""

    records: int
    """In the topic `ORDERS`."""

    @property
    def address(self) -> str:
        """Where the console is."""

    @property
    def client(self) -> Mapping[str, str]:
        """How clients of librdkafka reach the cluster."""

    def enter(self, page: Page) -> None:
        """Log in, if one must."""


class Served:
    """`penstock console`, in a process of its own."""

    def __init__(self, *options: str) -> None:
        self._log = tempfile.NamedTemporaryFile(prefix="console-", suffix=".log")  # noqa: SIM115
        command = [penstock(), "console", "--listen", "127.0.0.1:0", *options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = ADDRESS.search(line)
        if found is None:
            self.close()
            raise ServerFailed(f"the console did not come to serve: {line!r} {self.said()}")
        self.address = found[1].decode().rstrip("/")

    @property
    def pid(self) -> int:
        return self._process.pid

    def said(self) -> str:
        return Path(self._log.name).read_text(errors="replace")[-2000:]

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(f"--- the console said last:\n{self.said()}")
        self.close()


def name_of(number: int) -> str:
    return f"shop.{number % 50:02d}.events-{number:04d}"


def create(bootstrap: str, names: Sequence[str], partitions: int = 1) -> None:
    with Client(bootstrap, 60.0) as client:
        for at in range(0, len(names), AT_ONCE):
            topics = [
                CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1)
                for name in names[at : at + AT_ONCE]
            ]
            request = CreateTopicsRequest(topics=topics, timeout_ms=60_000)
            answer = client.controller().ask(request, CreateTopicsResponse, seconds=90.0)
            for result in answer.topics:
                if result.error_code:
                    raise ServerFailed(f"topic {result.name}: {result.error_message or result.error_code}")


def produce(client: Mapping[str, str], topic: str, count: int) -> None:
    """Records key-0000000 and on, spread over the partitions, as a client of librdkafka does it."""
    settings = {"compression.type": "lz4", "linger.ms": 50, "acks": "all"}
    producer = Producer({**client, **settings, "queue.buffering.max.messages": 200_000})
    lost: list[object] = []
    began = time.monotonic()

    def told(error: object, _message: object) -> None:
        if error is not None:
            lost.append(error)

    for number in range(count):
        value = b'{"order": %d, "customer": {"id": %d}, "amount": %d}' % (number, number % 977, number % 500)
        while True:
            try:
                producer.produce(topic, value, b"key-%07d" % number, on_delivery=told)
                break
            except BufferError:
                producer.poll(0.1)
        if time.monotonic() - began > FILL_SECONDS:
            raise ServerFailed(f"{count} records took more than {FILL_SECONDS:.0f} s")
    producer.flush(60)
    if lost:
        raise ServerFailed(f"{len(lost)} records were not taken: {lost[0]}")


def commit(client: Mapping[str, str], group: str, topic: str, offsets: Sequence[int]) -> None:
    """A group that has read so far, and left."""
    consumer = Consumer({**client, "group.id": group, "enable.auto.commit": False})
    places = [TopicPartition(topic, number, offset) for number, offset in enumerate(offsets)]
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            consumer.commit(offsets=places, asynchronous=False)
            break
        except KafkaException as error:
            # Kafka makes the topic of its coordinators when the first group comes.
            if not error.args[0].retriable() and error.args[0].code() != KafkaError.NOT_COORDINATOR:
                raise
            if time.monotonic() > deadline:
                raise ServerFailed(f"the group could not commit: {error}") from None
            time.sleep(0.2)
    consumer.close()


class Writer:
    """A client that writes a record every now and then, until it is told to stop."""

    def __init__(self, client: Mapping[str, str], topic: str, pause_seconds: float = 0.2) -> None:
        self._producer = Producer({**client, "linger.ms": 5})
        self._topic = topic
        self._pause = pause_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = 0

    def _run(self) -> None:
        while not self._ended.wait(self._pause):
            self._producer.produce(self._topic, f"tick {self.sent}", f"tick-{self.sent:05d}")
            self._producer.poll(0)
            self.sent += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(10)
        self._producer.flush(20)


class Place:
    """Three brokers with 5,000 topics and a topic with many records, and a console."""

    def __init__(self, records: int, topics: int = TOPICS) -> None:
        self.records = records
        self.topics = topics
        self.cluster = Cluster(
            3, {"broker.session.timeout.ms": "6000", "group.initial.rebalance.delay.ms": "0"}
        )
        self.console: Served | None = None

    @property
    def address(self) -> str:
        assert self.console is not None
        return self.console.address

    @property
    def client(self) -> Mapping[str, str]:
        return {"bootstrap.servers": self.cluster.bootstrap}

    def enter(self, page: Page) -> None:
        """Everybody may see everything."""

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        try:
            self.cluster.start()
            bootstrap = self.cluster.bootstrap
            create(bootstrap, [name_of(number) for number in range(self.topics)])
            create(bootstrap, [ORDERS], PARTITIONS)
            produce(self.client, ORDERS, self.records)
            each = self.records // PARTITIONS
            commit(self.client, GROUP, ORDERS, [each // 2] * PARTITIONS)
            self.console = Served("--bootstrap", bootstrap)
        except BaseException:
            self.cluster.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console is not None:
            self.console.__exit__(kind, error, trace)
        self.cluster.__exit__(kind, error, trace)


def rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
