"""The mixed load of a long run: each kind of topic has a writer that knows what must be there at the end.

Busy       one topic with retention.bytes, written all the while Slow       many topics with a record now and
then; none of these records may go Compacted  updates to some keys; the newest of each must be there Comers
topics that are created, written and deleted Groups     groups that come, read, commit and go
"""

import array
import contextlib
import itertools
import os
import random
import threading
import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

QUIET = {"log_level": 0, "log.connection.close": False}
UNKNOWN = -1
Reads = Iterator[tuple[int, int, bytes | None, bytes]]
"""Partition, offset, key and value."""


def producer(bootstrap: str) -> Producer:
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "linger.ms": 5,
        "message.timeout.ms": 300_000,
        "retry.backoff.max.ms": 500,
        "reconnect.backoff.max.ms": 500,
        **QUIET,
    }
    return Producer(settings)


class Load(threading.Thread):
    """Acts again and again until it is told to end; then it can check what it wrote."""

    def __init__(self, name: str, bootstrap: str, every_s: float) -> None:
        super().__init__(name=name, daemon=True)
        self.bootstrap = bootstrap
        self.every_s = every_s
        self.ending = threading.Event()
        self.failure: BaseException | None = None
        self.written_bytes = 0
        self.admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})

    def create(self, names: list[str], partitions: int, configs: dict[str, str] | None = None) -> None:
        wanted = [NewTopic(name, partitions, 1, config=configs or {}) for name in names]
        for made in self.admin.create_topics(wanted, request_timeout=60).values():
            with contextlib.suppress(KafkaException):  # A broker was killed just then: writing tells.
                made.result(60)

    def run(self) -> None:
        try:
            self.begin()
            while not self.ending.wait(self.every_s):
                self.act()
            self.finish()
        except BaseException as error:
            self.failure = error

    def begin(self) -> None:
        """Before the first act."""

    @abstractmethod
    def act(self) -> None: ...

    def finish(self) -> None:
        """After the last."""

    def check(self) -> list[str]:
        """What is not there that must be."""
        return []

    def figures(self) -> str:
        return f"{self.name}: {self.written_bytes / 1e6:.1f} MB"

    def readings(self, topic: str, partitions: int, within_s: float = 120.0) -> Reads:
        """Everything from the first offset to the end of now."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "unused",
                "auto.offset.reset": "error",
                **QUIET,
            }
        )
        deadline = time.monotonic() + within_s
        try:
            places, ends = [], {}
            for partition in range(partitions):
                low, high = _bounds(consumer, topic, partition, deadline)
                if low < high:
                    places.append(TopicPartition(topic, partition, low))
                    ends[partition] = high
            consumer.assign(places)
            while ends:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{topic} could not be read to its ends, {ends} are left")
                for message in consumer.consume(2000, 0.5):
                    error = message.error()
                    if error is not None:
                        raise KafkaException(error)
                    at, offset = message.partition(), message.offset()
                    assert at is not None and offset is not None
                    yield at, offset, message.key(), message.value() or b""
                for place in consumer.position(places):
                    if place.offset >= ends.get(place.partition, 1 << 62):
                        del ends[place.partition]
        finally:
            consumer.close()


def _bounds(consumer: Consumer, topic: str, partition: int, deadline: float) -> tuple[int, int]:
    while True:
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), 20)
            return low, high
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


class Busy(Load):
    """Records of 1 KB whose values carry a number; where each was acknowledged is kept in an array."""

    partitions = 4
    value_bytes = 1000

    def __init__(self, bootstrap: str, bytes_per_s: float, retention_bytes: int) -> None:
        super().__init__("busy", bootstrap, 0.1)
        self._per_act = max(1, int(bytes_per_s * self.every_s / self.value_bytes))
        self._retention_bytes = retention_bytes
        self._numbers = itertools.count()
        self._told = [array.array("q") for _ in range(self.partitions)]
        self._lock = threading.Lock()
        self._left_s = 0.0

    def begin(self) -> None:
        each = self._retention_bytes // self.partitions
        self.create(["busy"], self.partitions, {"retention.bytes": str(each), "segment.bytes": "1048576"})
        self._producer = producer(self.bootstrap)

    def act(self) -> None:
        for _ in range(self._per_act):
            number = next(self._numbers)
            partition = number % self.partitions
            value = b"%020d" % number + os.urandom(self.value_bytes - 20)
            try:
                self._producer.produce(
                    "busy",
                    value,
                    partition=partition,
                    on_delivery=partial(self._delivered, number, len(value)),
                )
            except BufferError:
                self._producer.poll(0.5)
        self._producer.poll(0)

    def _delivered(self, number: int, size: int, error: KafkaError | None, message: Message) -> None:
        offset, partition = message.offset(), message.partition()
        if error is not None or offset is None or offset < 0 or partition is None:
            return
        with self._lock:
            self.written_bytes += size
            told = self._told[partition]
            while len(told) <= offset:
                told.append(UNKNOWN)
            told[offset] = number

    def finish(self) -> None:
        self._producer.flush(120)

    def check(self) -> list[str]:
        """From the first offset on there is every acknowledged record, and about as much as retention says."""
        problems, read_bytes = [], 0
        expected: dict[int, int] = {}
        for partition, offset, _key, value in self.readings("busy", self.partitions):
            read_bytes += len(value)
            told = self._told[partition]
            known = told[offset] if offset < len(told) else UNKNOWN
            if known not in (UNKNOWN, int(value[:20])):
                problems.append(
                    f"busy-{partition}: number {int(value[:20])} at {offset}, acknowledged was {known}"
                )
            due = expected.get(partition, offset)
            if offset != due:
                problems.append(f"busy-{partition}: {offset} follows {due - 1}")
            expected[partition] = offset + 1
        for partition, told in enumerate(self._told):
            if expected.get(partition, 0) < len(told):
                problems.append(
                    f"busy-{partition} ends at {expected.get(partition)}, {len(told)} were acknowledged"
                )
        enough = min(self.written_bytes, self._retention_bytes)
        if read_bytes < 0.8 * enough:
            problems.append(f"busy: {read_bytes} bytes can be read, {enough} should be kept")
        return problems[:5]


class Slow(Load):
    """A record to one of many topics; all of them must be there."""

    def __init__(self, bootstrap: str, topics: int, round_s: float) -> None:
        super().__init__("slow", bootstrap, round_s / topics)
        self._topics = [f"slow-{number}" for number in range(topics)]
        self._turn = itertools.cycle(self._topics)
        self._told: dict[str, dict[int, bytes]] = defaultdict(dict)

    def begin(self) -> None:
        self.create(self._topics, 1)
        self._producer = producer(self.bootstrap)

    def act(self) -> None:
        topic = next(self._turn)
        value = os.urandom(100)
        self._producer.produce(topic, value, partition=0, on_delivery=partial(self._delivered, topic, value))
        self._producer.poll(0)

    def _delivered(self, topic: str, value: bytes, error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        if error is None and offset is not None and offset >= 0:
            self.written_bytes += len(value)
            self._told[topic][offset] = value

    def finish(self) -> None:
        self._producer.flush(120)

    def check(self) -> list[str]:
        problems = []
        for topic, told in self._told.items():
            found = {offset: value for _, offset, _, value in self.readings(topic, 1)}
            wrong = [offset for offset, value in told.items() if found.get(offset) != value]
            if wrong:
                problems.append(f"{topic}: {len(wrong)} of {len(told)} acknowledged records are not there")
        return problems[:5]


class Compacted(Load):
    """Updates; the newest acknowledged value of each key must be there, or one that was sent after it."""

    partitions = 2
    keys = 300

    def __init__(self, bootstrap: str, per_s: float) -> None:
        super().__init__("compacted", bootstrap, 0.2)
        self._per_act = max(1, int(per_s * self.every_s))
        self._numbers = itertools.count()
        self._newest: dict[int, tuple[int, int]] = {}
        """By key, the offset of the newest acknowledged update and its number."""

    def begin(self) -> None:
        configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.3", "segment.ms": "5000"}
        self.create(["compacted"], self.partitions, configs)
        self._producer = producer(self.bootstrap)

    def act(self) -> None:
        for _ in range(self._per_act):
            number = next(self._numbers)
            key = number % self.keys
            value = b"%020d" % number + os.urandom(480)
            self._producer.produce(
                "compacted",
                value,
                b"%d" % key,
                key % self.partitions,
                on_delivery=partial(self._delivered, key, number, len(value)),
            )
        self._producer.poll(0)

    def _delivered(
        self, key: int, number: int, size: int, error: KafkaError | None, message: Message
    ) -> None:
        offset = message.offset()
        if error is None and offset is not None and offset >= 0:
            self.written_bytes += size
            if offset >= self._newest.get(key, (-1, 0))[0]:
                self._newest[key] = (offset, number)

    def finish(self) -> None:
        self._producer.flush(120)

    def check(self) -> list[str]:
        found: dict[int, int] = {}
        for _, _, key, value in self.readings("compacted", self.partitions):
            found[int(key or b"-1")] = int(value[:20])
        wrong = [key for key, (_, number) in self._newest.items() if found.get(key, -1) < number]
        return [f"compacted: the newest value of {len(wrong)} keys is not there"] if wrong else []


class Comers(Load):
    """Topics that are created, written to, and deleted."""

    def __init__(self, bootstrap: str, every_s: float, alive: int = 5) -> None:
        super().__init__("comers", bootstrap, every_s)
        self._alive = alive
        self._numbers = itertools.count()

    def begin(self) -> None:
        self._producer = producer(self.bootstrap)

    def act(self) -> None:
        number = next(self._numbers)
        name = f"comer-{number}"
        self.create([name], 2)
        for at in range(200):
            self._producer.produce(name, os.urandom(1000), partition=at % 2, on_delivery=self._delivered)
        self._producer.flush(30)
        if number >= self._alive:
            old = f"comer-{number - self._alive}"
            for done in self.admin.delete_topics([old], operation_timeout=30).values():
                with contextlib.suppress(KafkaException):
                    done.result(30)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.written_bytes += 1000

    def figures(self) -> str:
        return f"{super().figures()}, {next(self._numbers)} topics came"


class Groups(Load):
    """A group of a new name reads for a while, commits, and goes; one group stays."""

    def __init__(self, bootstrap: str, stay_s: float, seed: int) -> None:
        super().__init__("groups", bootstrap, 0.2)
        self._stay_s = stay_s
        self._chance = random.Random(seed)
        self._numbers = itertools.count()
        self._committed = 0

    def act(self) -> None:
        number = next(self._numbers)
        name = "stays" if number % 3 == 0 else f"guest-{number}"
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": name,
            "auto.offset.reset": "latest",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
            **QUIET,
        }
        consumer = Consumer(settings)
        consumer.subscribe(["busy"])
        leave_at = time.monotonic() + self._chance.uniform(0.5, 1.0) * self._stay_s
        while time.monotonic() < leave_at and not self.ending.is_set():
            if any(message.error() is None for message in consumer.consume(500, 0.5)):
                with contextlib.suppress(KafkaException):
                    consumer.commit(asynchronous=False)
                    self._committed += 1
        consumer.close()

    def figures(self) -> str:
        return f"groups: {next(self._numbers)} came, {self._committed} commits"
