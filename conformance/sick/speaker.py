"""The clients of a scene: bare requests, and librdkafka beside them."""

import contextlib
import itertools
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from conformance.cluster import bare
from conformance.cluster.bare import EARLIEST, LATEST
from conformance.cluster.streams import QUIET
from conformance.sick.verdict import Place, Reading, Told
from conformance.wire import batches
from penstock.client import AnswerError, Client, ClientError
from penstock.wire.api.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.api.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from penstock.wire.errors import ErrorCode

KEY_BYTES = 24
"""Of a value: keys are unique, so that compaction keeps everything."""
SAID_AFTER_S = 3.0
"""An error that is still there after so long is the answer: readers of a moving partition get one, too."""
CONTROL = 0x20
"""The attribute of a batch that is a marker."""
HURT_AFTER_S = 1.0
"""The same for an error that no retry is meant for."""
PASSING = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.REQUEST_TIMED_OUT,
    )
)


class Speaker:
    """Writes unique values, remembers the offset at which each was acknowledged, reads everything."""

    def __init__(self, bootstrap: Callable[[], str], told: Told) -> None:
        self._bootstrap = bootstrap
        self._told = told
        self._numbers = itertools.count()
        self.waits: list[float] = []
        """Seconds that each acknowledgement took."""

    def client(self, seconds: float = 10.0) -> Client:
        """A new connection; brokers that just start are waited for."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return Client(self._bootstrap(), seconds)
            except ClientError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def create(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> list[Place]:
        wanted = CreatableTopic(
            name=topic,
            num_partitions=partitions,
            replication_factor=-1,
            configs=[CreatableTopicConfig(name=name, value=value) for name, value in (configs or {}).items()],
        )
        request = CreateTopicsRequest(timeout_ms=20_000, topics=[wanted])
        with self.client() as client:

            def attempt() -> None:
                (made,) = client.any().ask(request, CreateTopicsResponse).topics
                if made.error_code not in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
                    raise AnswerError(made.error_code, f"The creation of {topic!r}")

            client.retry(attempt)
        return [Place(topic, partition) for partition in range(partitions)]

    def delete(self, topic: str) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=20_000)
        with self.client() as client:
            client.any().ask(request, DeleteTopicsResponse)
        for place in [place for place in self._told.acknowledged if place.topic == topic]:
            del self._told.acknowledged[place]

    # -- writing ------------------------------------------------------------------------------------------

    def value(self, size: int = 100) -> bytes:
        head = b"value %d " % next(self._numbers)
        return head + os.urandom(max(0, size - len(head)) // 2).hex().encode()

    def write(self, places: Iterable[Place], count: int, size: int = 100, within_s: float = 30.0) -> int:
        """Write `count` records to each place, one batch at a time; what fails is tried with another value.
        Gives how many were acknowledged: less only when time was over."""
        deadline = time.monotonic() + within_s
        done = 0
        with self.client(within_s) as client:
            for _, place in itertools.product(range(count), list(places)):
                while not self._produce(client, place, self.value(size)):
                    if time.monotonic() > deadline:
                        return done
                    client.refresh()
                    time.sleep(0.1)
                done += 1
        return done

    def _produce(self, client: Client, place: Place, value: bytes) -> bool:
        began = time.monotonic()
        self._told.doubtful.add(value)
        try:
            code, offset = bare.produce(
                client.leader(*place), *place, value, key=value[:KEY_BYTES], timeout_ms=20_000
            )
        except ClientError:
            return False
        if code:
            return False
        self.waits.append(time.monotonic() - began)
        self._told.doubtful.discard(value)
        self._told.acknowledge(place, offset, value)
        return True

    def library_write(
        self, places: Iterable[Place], count: int, size: int = 100, pace_s: float = 0.0
    ) -> None:
        """The same through librdkafka's idempotent producer, many in flight. `pace_s`: between two of them, so that
        there is always one on its way."""
        settings: dict[str, Any] = {
            "bootstrap.servers": self._bootstrap(),
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.size": max(1000, 4 * size),
            "message.timeout.ms": 60_000,
            **QUIET,
        }
        producer = Producer(settings)
        for number, place in itertools.product(range(count), list(places)):
            value = self.value(size)
            self._told.doubtful.add(value)
            delivered = partial(self._delivered, place, value)
            while True:
                try:
                    producer.produce(
                        place.topic, value, value[:KEY_BYTES], place.partition, on_delivery=delivered
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(pace_s)
            if number % 20 == 0 and not pace_s:
                producer.flush(60)
        producer.flush(60)

    def _delivered(self, place: Place, value: bytes, error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        if error is None and offset is not None and offset >= 0:
            self._told.doubtful.discard(value)
            self._told.acknowledge(place, offset, value)

    # -- reading ------------------------------------------------------------------------------------------

    def read(self, places: Iterable[Place], within_s: float = 30.0) -> dict[Place, Reading]:
        found: dict[Place, Reading] = {}
        for place in places:
            deadline = time.monotonic() + within_s
            reading = found[place] = Reading()
            try:
                with self.client(within_s) as client:
                    reading.start = self._bound(client, place, EARLIEST, deadline)
                    reading.end = self._bound(client, place, LATEST, deadline)
                    self._walk(client, place, reading, sorted(self._told.acknowledged[place]))
            except ClientError as error:
                reading.closed = str(error)
        return found

    def bounds(self, place: Place, within_s: float = 10.0) -> tuple[int, int]:
        deadline = time.monotonic() + within_s
        with self.client(within_s) as client:
            return self._bound(client, place, EARLIEST, deadline), self._bound(
                client, place, LATEST, deadline
            )

    def _bound(self, client: Client, place: Place, timestamp: int, deadline: float) -> int:
        while True:
            with contextlib.suppress(ClientError):
                code, offset = bare.bound(client.leader(*place), *place, timestamp)
                if not code:
                    return offset
                if time.monotonic() > deadline:
                    break
            if time.monotonic() > deadline:
                raise ClientError(f"nobody told the bounds of {place.topic}-{place.partition}")
            client.refresh()
            time.sleep(0.2)
        raise AnswerError(code, f"The question for the end of {place.topic}-{place.partition}")

    def epochs(self, place: Place) -> set[tuple[int, int]]:
        """The producers that have batches in a partition, by id and epoch."""
        found: set[tuple[int, int]] = set()
        at, end = self.bounds(place)
        with self.client() as client:
            deadline = time.monotonic() + 30.0
            while at < end and time.monotonic() < deadline:
                for batch in batches.split(self._fetch(client, place, at)[1]):
                    found.add((batch["producer_id"], batch["producer_epoch"]))
                    at = next_offset(batch)
        return found

    def _walk(self, client: Client, place: Place, reading: Reading, wanted: Sequence[int]) -> None:
        """Read on from the start. Behind an offset that is hurt it goes on at the next one of `wanted`: a hurt range
        may be as long as a broker must assume."""
        at, since = reading.start, time.monotonic()
        while at < reading.end:
            code, records = self._fetch(client, place, at)
            found = batches.split(records)
            if found:
                reading.records |= {offset: value for offset, value in values_of(found) if offset >= at}
                at, since = next_offset(found[-1]), time.monotonic()
                continue
            patience_s = SAID_AFTER_S
            if code not in PASSING and (reading.hurt or reading.empty):
                patience_s = 0.0
            elif code and code not in PASSING:
                patience_s = HURT_AFTER_S
            if time.monotonic() - since < patience_s:
                if code in PASSING:
                    client.refresh()
                time.sleep(0.1)
                continue
            if code in PASSING:
                reading.closed = error_name(code)
                return
            if code:
                reading.hurt[at] = code
            else:
                reading.empty.add(at)
            following = bisect_right(wanted, at)
            if following == len(wanted):
                return
            at, since = wanted[following], time.monotonic()

    def _fetch(self, client: Client, place: Place, offset: int) -> tuple[int, bytes]:
        try:
            return bare.fetch(client.leader(*place), *place, offset)
        except ClientError:
            return ErrorCode.LEADER_NOT_AVAILABLE, b""

    def library_read(self, places: Iterable[Place], within_s: float = 20.0) -> dict[Place, dict[int, bytes]]:
        """What librdkafka reads from the first offset on, until it has come to the ends or time is over."""
        wanted = list(places)
        ends = {place: self.bounds(place)[1] for place in wanted}
        found: dict[Place, dict[int, bytes]] = {place: {} for place in wanted}
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap(),
                "group.id": "unused",
                "auto.offset.reset": "earliest",
                "check.crcs": True,
                **QUIET,
            }
        )
        consumer.assign([TopicPartition(place.topic, place.partition, 0) for place in wanted])
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if all(max(found[place], default=-1) + 1 >= ends[place] for place in wanted):
                break
            for message in consumer.consume(500, 0.2):
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                if message.error() is None and topic is not None and partition is not None:
                    assert offset is not None
                    found[Place(topic, partition)][offset] = message.value() or b""
        consumer.close()
        return found


def values_of(found: Iterable[Mapping[str, Any]]) -> Iterable[tuple[int, bytes]]:
    """Offsets and values; the markers of transactions are no records."""
    for batch in found:
        if not batch["attributes"] & CONTROL:
            yield from batches.records(dict(batch))


def next_offset(batch: Mapping[str, Any]) -> int:
    """Compaction may have taken the last record of a batch, or all of them."""
    return int(batch["base_offset"] + batch["last_offset_delta"] + 1)


def error_name(code: int) -> str:
    return ErrorCode(code).name if code in ErrorCode._value2member_map_ else str(code)
