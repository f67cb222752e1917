"""Numbered updates of keys: written, read along, and compared in the end with the last of each key."""

import multiprocessing
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance.server import Server, ServerFailed
from conformance.target import server_named

TOPIC = "updates"
RETENTION_MS = 2000
TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.3",
    "segment.bytes": "16777216",
    "segment.ms": "3000",
    "delete.retention.ms": str(RETENTION_MS),
}
BROKER_SETTINGS = {"log.cleaner.backoff.ms": "1000"}
TOMBSTONES_EVERY = 100
"""The last update of each hundredth key is a tombstone."""
VALUE_BYTES = 64
PADDING = random.Random(1).randbytes(4001 + VALUE_BYTES)
STRIDE = 7919
"""A prime: update n is to key n * STRIDE modulo the number of keys, so that all keys change all the time."""
CLEAN_TIMEOUT_S = 180.0
STUCK_S = 60.0


class Broken(Exception):
    """A promise was broken; the message says which and where."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is written to each partition."""

    updates: int
    keys: int
    partitions: int

    def key(self, number: int) -> bytes:
        return b"key-%08d" % (number * STRIDE % self.keys)

    def value(self, partition: int, number: int) -> bytes | None:
        if number >= self.updates - self.keys and (number * STRIDE % self.keys) % TOMBSTONES_EVERY == 0:
            return None
        at = number % 4001
        return b"%d/%d/" % (partition, number) + PADDING[at : at + VALUE_BYTES]

    def last(self) -> dict[bytes, int]:
        """The offset of the last update of each key."""
        return {self.key(number): number for number in range(max(0, self.updates - self.keys), self.updates)}


def check(plan: Plan, message: Message) -> int:
    """The record's offset, once it is sure that this very record was written there."""
    error = message.error()
    if error is not None:
        raise Broken(f"a reader got an error: {error}")
    offset, partition = message.offset(), message.partition()
    if offset is None or partition is None or not 0 <= offset < plan.updates:
        raise Broken(f"a record has the offset {offset}, but {plan.updates} were written")
    value = message.value()
    if message.key() != plan.key(offset) or (value and not value.startswith(b"%d/%d/" % (partition, offset))):
        raise Broken(f"offset {offset} of partition {partition} holds another record: {message.key()!r}")
    if value is None and plan.value(partition, offset) is not None:
        raise Broken(f"offset {offset} of partition {partition} lost its value")
    return offset


def consumer(bootstrap: str, **settings: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 2,  # Of a broker that is killed, clients have much to say.
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,
            **settings,
        }
    )


# Writing.


@dataclass(slots=True)
class Writer:
    """Writes the plan, a partition at a time in turns, and remembers the updates that were not delivered."""

    plan: Plan
    bootstrap: str
    failures: list[str] = field(default_factory=list)
    written: int = 0

    def run(self) -> float:
        """How long it took until everything was acknowledged."""
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "log_level": 2,
                "enable.idempotence": True,
                "linger.ms": 20,
                "batch.num.messages": 5000,
                "queue.buffering.max.messages": 200_000,
                "delivery.report.only.error": True,
                "message.timeout.ms": 300_000,
                "compression.type": "lz4",
            }
        )
        began = time.monotonic()
        plan = self.plan
        for number in range(plan.updates):
            key = plan.key(number)
            for partition in range(plan.partitions):
                value = plan.value(partition, number)
                while True:
                    try:
                        producer.produce(TOPIC, value, key, partition, on_delivery=self._delivered)
                        break
                    except BufferError:
                        producer.poll(0.05)
            if number % 500 == 0:
                producer.poll(0)
                self.written = number
        left = producer.flush(300)
        if left or self.failures:
            raise Broken(
                f"{left} updates were not acknowledged, {len(self.failures)} failed: {self.failures[:1]}"
            )
        return time.monotonic() - began

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))


# Reading along, in a process of its own.


def read_along(plan: Plan, bootstrap: str, answer: Connection) -> None:
    """Follow each partition from beginning to end: how many records came, and the last of each key."""
    try:
        answer.send(_read_along(plan, bootstrap))
    except Exception as why:
        answer.send(f"{type(why).__name__}: {why}")


def _read_along(plan: Plan, bootstrap: str) -> tuple[int, list[dict[bytes, int]]]:
    reader = consumer(bootstrap, **{"auto.offset.reset": "earliest"})
    reader.assign([TopicPartition(TOPIC, partition, 0) for partition in range(plan.partitions)])
    last: list[dict[bytes, int]] = [{} for _ in range(plan.partitions)]
    previous = [-1] * plan.partitions
    count = 0
    moved = time.monotonic()
    while any(offset < plan.updates - 1 for offset in previous):
        if time.monotonic() - moved > STUCK_S:
            raise Broken(f"nothing came for {STUCK_S:.0f} s after the offsets {previous}")
        for message in reader.consume(10_000, 1.0):
            error = message.error()
            if error is not None:
                if error.fatal():
                    raise Broken(f"the reader along failed: {error}")
                continue  # At the end for now, or the broker is away for a moment.
            offset, partition = check(plan, message), int(message.partition() or 0)
            if offset <= previous[partition]:
                raise Broken(f"offset {offset} of partition {partition} came after {previous[partition]}")
            previous[partition] = offset
            moved = time.monotonic()
            last[partition][plan.key(offset)] = offset
            count += 1
    reader.close()
    return count, last


# Reading everything.


def read_all(plan: Plan, bootstrap: str, start: int = 0) -> list[dict[int, Message]]:
    """Every record from an offset on, by partition and offset. Partitions end where the broker says."""
    reader = consumer(bootstrap)
    try:
        reader.assign([TopicPartition(TOPIC, partition, start) for partition in range(plan.partitions)])
        found: list[dict[int, Message]] = [{} for _ in range(plan.partitions)]
        ended: set[int] = set()
        deadline = time.monotonic() + 120
        while len(ended) < plan.partitions:
            if time.monotonic() > deadline:
                raise Broken(f"a reader from offset {start} on did not get to the end of partitions")
            for message in reader.consume(10_000, 1.0):
                error = message.error()
                partition = int(message.partition() or 0)
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    if message.offset() != plan.updates:
                        raise Broken(f"partition {partition} ends at {message.offset()}, not {plan.updates}")
                    ended.add(partition)
                    continue
                found[partition][check(plan, message)] = message
        return found
    finally:
        reader.close()


def wait_until_clean(plan: Plan, server: Server) -> tuple[list[dict[int, Message]], float]:
    """Read again and again until nothing but the last updates is left."""
    began = time.monotonic()
    expected = set(plan.last().values())
    while True:
        found = read_all(plan, server.bootstrap)
        for partition, records in enumerate(found):
            _expect_last(plan, partition, records)
        left = [len(records) for records in found]
        if all(records.keys() <= expected for records in found):
            return found, time.monotonic() - began
        if time.monotonic() - began > CLEAN_TIMEOUT_S:
            raise Broken(f"{left} records were left after {CLEAN_TIMEOUT_S:.0f} s, of {plan.keys} keys each")
        time.sleep(1.0)


def _expect_last(plan: Plan, partition: int, records: dict[int, Message]) -> None:
    """The last update of each key must be there, at any time. A tombstone may be gone."""
    for key, offset in plan.last().items():
        if offset not in records and plan.value(partition, offset) is not None:
            raise Broken(f"the last update of {key!r}, offset {offset} of partition {partition}, is gone")


def check_gaps(plan: Plan, server: Server, found: list[dict[int, Message]]) -> None:
    """Readers that begin where nothing is left get what comes next, and times lead to records."""
    reader = consumer(server.bootstrap)
    try:
        for partition, records in enumerate(found):
            offsets = sorted(records)
            for start in (0, plan.updates // 2, offsets[0] - 1, offsets[len(offsets) // 2]):
                reader.assign([TopicPartition(TOPIC, partition, max(0, start))])
                first = _first_record(reader)
                expected = next(offset for offset in offsets if offset >= start)
                if check(plan, first) != expected:
                    raise Broken(f"a reader from {start} on got offset {first.offset()}, not {expected}")
            stamp = records[offsets[-1]].timestamp()[1]
            (at,) = reader.offsets_for_times([TopicPartition(TOPIC, partition, stamp)], timeout=30)
            expected = next(offset for offset in offsets if records[offset].timestamp()[1] >= stamp)
            if at.offset != expected:
                raise Broken(f"time {stamp} leads to {at.offset} of partition {partition}, not {expected}")
    finally:
        reader.close()


def _first_record(reader: Consumer) -> Message:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        message = reader.poll(1.0)
        if message is not None and message.error() is None:
            return message
    raise Broken("a reader that began inside of a gap got nothing")


def check_tombstones_go(plan: Plan, server: Server) -> None:
    """More updates to each partition, and tombstones that have served their time are gone."""
    producer = Producer({"bootstrap.servers": server.bootstrap, "log_level": 2, "enable.idempotence": True})
    deadline = time.monotonic() + CLEAN_TIMEOUT_S
    left = -1
    while time.monotonic() < deadline:
        time.sleep(RETENTION_MS / 1000)
        # Much of it, because a partition is due by its dirty share.
        for number in range(plan.keys):
            for partition in range(plan.partitions):
                producer.produce(TOPIC, b"n" * VALUE_BYTES, b"nudge-%d" % (number % 10), partition)
            if number % 1000 == 0:
                producer.poll(0)
        producer.flush(60)
        left = sum(_tombstones(server, plan))
        if not left:
            return
    raise Broken(f"{left} tombstones were left {CLEAN_TIMEOUT_S:.0f} s after their time")


def _tombstones(server: Server, plan: Plan) -> Iterator[int]:
    reader = consumer(server.bootstrap)
    try:
        for partition in range(plan.partitions):
            reader.assign([TopicPartition(TOPIC, partition, 0)])
            count = 0
            ended = False
            while not ended:
                for message in reader.consume(10_000, 1.0):
                    error = message.error()
                    if error is not None:
                        ended = ended or error.code() == KafkaError._PARTITION_EOF
                    else:
                        count += message.value() is None
            yield count
    finally:
        reader.close()


# The run.


class Watch(threading.Thread):
    """Remembers the most memory that the broker used, and kills it now and then."""

    def __init__(self, server: Server, writer: Writer, kills: int) -> None:
        super().__init__(name="watch", daemon=True)
        self.server = server
        self.writer = writer
        self.kill_at = [writer.plan.updates * (at + 1) // (kills + 1) for at in range(kills)]
        self.rss_bytes = 0
        self.problem: str | None = None
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.2):
            try:
                if self.kill_at and self.writer.written >= self.kill_at[0]:
                    del self.kill_at[0]
                    self.server.kill()
                    self.server.start()
                self.rss_bytes = max(self.rss_bytes, self.server.rss_bytes())
            except (ServerFailed, OSError) as why:
                self.problem = str(why)
                return


def stored_bytes(server: Server) -> int:
    store = server.folder / "store"
    folder = store if store.exists() else server.folder / "data"
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def updates_run(against: str, plan: Plan, kills: int) -> None:
    with server_named(against, BROKER_SETTINGS) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        wanted = NewTopic(TOPIC, plan.partitions, 1, config=TOPIC_SETTINGS)
        admin.create_topics([wanted])[TOPIC].result(30)
        receive, send = multiprocessing.Pipe(duplex=False)
        along = multiprocessing.get_context("spawn").Process(
            target=read_along, args=(plan, server.bootstrap, send), daemon=True
        )
        along.start()
        writer = Writer(plan, server.bootstrap)
        watch = Watch(server, writer, kills)
        watch.start()
        seconds = writer.run()
        total = plan.updates * plan.partitions
        keys = plan.keys * plan.partitions
        print(f"{total:,} updates to {keys:,} keys written in {seconds:.0f} s, {kills} kills", flush=True)
        if not receive.poll(5 * STUCK_S):
            raise Broken("the reader along did not get to the end")
        came: Any = receive.recv()
        along.join(10)
        if isinstance(came, str):
            raise Broken(f"the reader along: {came}")
        count, last = came
        if any(one != plan.last() for one in last):
            raise Broken("the reader along ended with another last update of some key")
        print(f"a consumer that read along saw {count:,} of them, with the last of each key", flush=True)
        found, seconds = wait_until_clean(plan, server)
        left = sum(map(len, found))
        print(f"cleaned to {left:,} records within {seconds:.1f} s; every offset is unchanged", flush=True)
        check_gaps(plan, server, found)
        check_tombstones_go(plan, server)
        watch.ended.set()
        watch.join()
        if watch.problem is not None:
            raise Broken(watch.problem)
        print(f"tombstones went after {RETENTION_MS} ms")
        memory, stored = watch.rss_bytes >> 20, stored_bytes(server) >> 20
        print(f"most memory of the broker: {memory} MiB; in its store now: {stored} MiB")
