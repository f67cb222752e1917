"""Clients whose every observation goes into a history: writers, readers, observers of ends of partitions."""

import contextlib
import threading
import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from conformance.cluster import bare
from conformance.cluster.processes import HOST
from conformance.cluster.streams import QUIET
from conformance.faults.history import History, Read, Resume, Watermark, Write
from penstock.client import Client, ClientError, Connection
from penstock.wire.api.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from penstock.wire.api.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from penstock.wire.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

# A paused broker answers when it wakes: who waits for that hears what it has to say.
PATIENCE_S = 30.0
RESTLESS_S = 2.0
LIBRARY_TIMEOUT_MS = 1000
COMMIT_EVERY_S = 0.5
MEMBER_S = 6.0
"""So long a member of the group stays."""


class Actor(threading.Thread):
    """A client on a thread, which acts until it is told to end."""

    def __init__(self, name: str, bootstrap: str, topic: str, history: History) -> None:
        super().__init__(name=name, daemon=True)
        self.bootstrap = bootstrap
        self.topic = topic
        self.history = history
        self.ending = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.act()
        except BaseException as error:
            self.failure = error

    @abstractmethod
    def act(self) -> None: ...

    def end(self) -> None:
        self.ending.set()


class LibraryWriter(Actor):
    """librdkafka's idempotent producer, acks=all: tries again by itself, and each value is there once."""

    def __init__(self, bootstrap: str, topic: str, history: History, partitions: int, every_s: float) -> None:
        super().__init__("library", bootstrap, topic, history)
        self.partitions = partitions
        self.every_s = every_s

    def act(self) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 0,
            "message.timeout.ms": 60_000,
            "retry.backoff.ms": 50,
            "retry.backoff.max.ms": 250,
            "reconnect.backoff.max.ms": 500,
            # A paused broker keeps its connections; this is how soon its clients look elsewhere.
            "socket.timeout.ms": LIBRARY_TIMEOUT_MS,
            "api.version.request.timeout.ms": LIBRARY_TIMEOUT_MS,
            "socket.connection.setup.timeout.ms": LIBRARY_TIMEOUT_MS,
            **QUIET,
        }
        producer = Producer(settings)
        number = 0
        while not self.ending.wait(self.every_s):
            for partition in range(self.partitions):
                value = b"%s-%d-%d" % (self.name.encode(), partition, number)
                write = Write(f"{self.name}-{partition}", partition, value, time.monotonic())
                self.history.writes.append(write)
                producer.produce(
                    self.topic, value, partition=partition, on_delivery=partial(_delivered, write)
                )
            number += 1
            producer.poll(0)
        producer.flush(60)


def _delivered(write: Write, error: KafkaError | None, message: Message) -> None:
    write.answered_at = time.monotonic()
    if error is None:
        write.offset = message.offset()


class BareWriter(Actor):
    """Sends one batch at a time to the leader and waits for the answer, however long it takes. It
    never tries a value again, so it needs no idempotence; and it hears the late answer of a leader
    that slept meanwhile."""

    def __init__(self, bootstrap: str, topic: str, history: History, partition: int, every_s: float) -> None:
        super().__init__(f"bare-{partition}", bootstrap, topic, history)
        self.partition = partition
        self.every_s = every_s

    def act(self) -> None:
        number = 0
        connection: Connection | None = None
        while not self.ending.wait(self.every_s):
            if connection is None:
                connection = _leader(self.bootstrap, self.topic, self.partition)
                if connection is None:
                    continue
            value = b"%s-%d" % (self.name.encode(), number)
            number += 1
            write = Write(self.name, self.partition, value, time.monotonic())
            self.history.writes.append(write)
            if not self._send(connection, write):
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def _send(self, connection: Connection, write: Write) -> bool:
        try:
            code, offset = bare.produce(
                connection, self.topic, self.partition, write.value, seconds=PATIENCE_S
            )
        except ClientError:
            return False
        write.answered_at = time.monotonic()
        if code == 0:
            write.offset = offset
        return code == 0


class Reader(Actor):
    """Reads all partitions from the first record on, by assignment, and keeps up with the end."""

    def __init__(self, bootstrap: str, topic: str, history: History, partitions: int, number: int) -> None:
        super().__init__(f"reader-{number}", bootstrap, topic, history)
        self.partitions = partitions

    def act(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "unused",
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 200,
                "retry.backoff.max.ms": 250,
                "reconnect.backoff.max.ms": 500,
                "socket.timeout.ms": LIBRARY_TIMEOUT_MS,
                "api.version.request.timeout.ms": LIBRARY_TIMEOUT_MS,
                "socket.connection.setup.timeout.ms": LIBRARY_TIMEOUT_MS,
                **QUIET,
            }
        )
        consumer.assign([TopicPartition(self.topic, partition, 0) for partition in range(self.partitions)])
        reads = self.history.reads[self.name]
        while not self.ending.is_set():
            reads.extend(_take(consumer))
        consumer.close()


class GroupReader(Actor):
    """A member of a group that commits the records that it read, waits for the answer, and leaves and comes
    back now and then. Each assignment is a reader of its own in the history, since records that were read and
    not committed are read again."""

    def __init__(self, bootstrap: str, topic: str, history: History, group: str) -> None:
        super().__init__(group, bootstrap, topic, history)
        self._assignments = 0
        self._fresh: set[int] = set()
        """Partitions that were assigned and not read from yet."""
        self._read: dict[int, int] = defaultdict(int)
        self._committed: dict[int, int] = defaultdict(int)

    def act(self) -> None:
        while not self.ending.is_set():
            self._be_a_member()

    def _be_a_member(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": 500,
                "socket.timeout.ms": LIBRARY_TIMEOUT_MS,
                **QUIET,
            }
        )
        consumer.subscribe([self.topic], on_assign=self._assigned)
        commit_at = 0.0
        leave_at = time.monotonic() + MEMBER_S
        while not self.ending.is_set() and time.monotonic() < leave_at:
            taken = _take(consumer)
            # Assignments happen inside the taking, before what is taken.
            self._note(taken)
            if time.monotonic() >= commit_at:
                self._commit(consumer)
                commit_at = time.monotonic() + COMMIT_EVERY_S
        consumer.close()

    def _assigned(self, _consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._assignments += 1
        self._fresh = {one.partition for one in partitions}

    def _note(self, taken: Sequence[Read]) -> None:
        self.history.reads[f"{self.name}-{self._assignments}"].extend(taken)
        for read in taken:
            known = self._read[read.partition]
            if read.partition in self._fresh:
                self._fresh.discard(read.partition)
                committed = self._committed[read.partition]
                self.history.resumes.append(Resume(self.name, read.partition, read.offset, committed, known))
            self._read[read.partition] = max(known, read.offset + 1)

    def _commit(self, consumer: Consumer) -> None:
        """What is read and belongs to this member: a partition that was not read from since it was assigned
        may be committed further already."""
        wanted = [
            TopicPartition(self.topic, partition, offset)
            for partition, offset in self._read.items()
            if partition not in self._fresh and offset > self._committed[partition]
        ]
        if not wanted:
            return
        # No answer, or another one: the commit may count or not.
        with contextlib.suppress(KafkaException):
            for done in consumer.commit(offsets=wanted, asynchronous=False) or ():
                if done.error is None:
                    self._committed[done.partition] = max(self._committed[done.partition], done.offset)


def _take(consumer: Consumer) -> list[Read]:
    reads = []
    for message in consumer.consume(500, 0.1):
        if message.error() is None:
            partition, offset = message.partition(), message.offset()
            assert partition is not None and offset is not None
            reads.append(Read(partition, offset, message.value() or b"", time.monotonic()))
    return reads


class Observer(Actor):
    """Asks the leader again and again where a partition ends."""

    def __init__(self, bootstrap: str, topic: str, history: History, partition: int, every_s: float) -> None:
        super().__init__(f"observer-{partition}", bootstrap, topic, history)
        self.partition = partition
        self.every_s = every_s

    def act(self) -> None:
        connection: Connection | None = None
        while not self.ending.wait(self.every_s):
            if connection is None:
                connection = _leader(self.bootstrap, self.topic, self.partition)
                if connection is None:
                    continue
            if not self._ask(connection):
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def _ask(self, connection: Connection) -> bool:
        asked_at = time.monotonic()
        try:
            code, end = bare.bound(connection, self.topic, self.partition, seconds=PATIENCE_S)
        except ClientError:
            return False
        if code:
            return False
        mark = Watermark(self.partition, end, asked_at, time.monotonic())
        self.history.watermarks.append(mark)
        return True


class Administrator(Actor):
    """Creates topics through one broker after the other, and deletes every second one later."""

    def __init__(self, bootstrap: str, topic: str, history: History, every_s: float) -> None:
        super().__init__("administrator", bootstrap, topic, history)
        self.every_s = every_s
        self._addresses = cycle(bootstrap.split(","))

    def act(self) -> None:
        history = self.history
        number = 0
        while not self.ending.wait(self.every_s):
            number += 1
            if self._ask(self._make, f"made-{number}"):
                history.topics_created.add(f"made-{number}")
            old = f"made-{number - 5}"
            if number % 2 and old in history.topics_created:
                history.topics_created.discard(old)
                if self._ask(self._unmake, old):
                    history.topics_deleted.add(old)

    def _ask(self, request: Callable[[Connection, str], int], name: str) -> bool:
        """False: not acknowledged; it may have happened nevertheless."""
        host, _colon, port = next(self._addresses).rpartition(":")
        try:
            with contextlib.closing(Connection(host, int(port), RESTLESS_S)) as connection:
                return request(connection, name) == 0
        except ClientError:
            return False

    def _make(self, connection: Connection, name: str) -> int:
        wanted = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=5000)
        return connection.ask(request, CreateTopicsResponse, seconds=PATIENCE_S).topics[0].error_code

    def _unmake(self, connection: Connection, name: str) -> int:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=5000)
        return connection.ask(request, DeleteTopicsResponse, seconds=PATIENCE_S).responses[0].error_code


def leaders(bootstrap: str, topic: str) -> dict[int, int]:
    """Who leads each partition, by whoever answers first."""
    for address in bootstrap.split(","):
        with contextlib.suppress(ClientError), Client(address, RESTLESS_S) as client:
            for found in client.metadata([topic]).topics:
                return {one.partition_index: one.leader_id for one in found.partitions}
    return {}


def _leader(bootstrap: str, topic: str, partition: int) -> Connection | None:
    """A connection to the leader that the first broker to answer names, if it can be had."""
    for address in bootstrap.split(","):
        with contextlib.suppress(ClientError, StopIteration):
            host, _colon, port = address.rpartition(":")
            with contextlib.closing(Connection(host, int(port), RESTLESS_S)) as any_broker:
                request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
                answer = any_broker.ask(request, MetadataResponse, seconds=RESTLESS_S)
            ports = {one.node_id: one.port for one in answer.brokers}
            leader = next(
                one.leader_id
                for one in answer.topics[0].partitions
                if one.partition_index == partition and one.leader_id in ports
            )
            return Connection(HOST, ports[leader], RESTLESS_S)
    return None


def read_log(bootstrap: str, topic: str, partitions: int, history: History, seconds: float = 60.0) -> None:
    """Read the whole log and the names of all topics, once everything is healthy, into the history."""
    with Client(bootstrap) as client:
        history.topics = {found.name or "" for found in client.metadata().topics}
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "auto.offset.reset": "error", **QUIET}
    )
    try:
        places = [TopicPartition(topic, partition, 0) for partition in range(partitions)]
        deadline = time.monotonic() + seconds
        while True:
            try:
                ends = {place.partition: consumer.get_watermark_offsets(place, 20)[1] for place in places}
                break
            except KafkaException:
                # A leader may be opening what was just handed to it.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        consumer.assign(places)
        at = {place.partition: 0 for place in places}
        while any(at[partition] < end for partition, end in ends.items()):
            assert time.monotonic() < deadline, f"the log could not be read to its ends {ends}, only to {at}"
            for read in _take(consumer):
                history.log[read.partition][read.offset] = read.value
                at[read.partition] = max(at[read.partition], read.offset + 1)
    finally:
        consumer.close()
