"""Quotas of bytes with librdkafka, which pipelines: the limited client has its rate, and its neighbour is not harmed.

    python -m conformance.security.quotas [--short] [--against BROKER] [--rate BYTES]

A client that would take all it can get is limited, as a producer and then as a consumer: to the rate with small
requests, to five times the rate with those that librdkafka makes unasked, and to the rate with those. Its bytes are
counted by the time they come. In the ten seconds after the first one they must be within 10 % of the quota, and
not above that in any ten seconds, the first one included; in the last case, where one request is a tenth of all, give
or take one. All the while another client without a quota sends one message after the other: it must not be throttled,
must send more than twice the rate, and must not wait for a second.
"""

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance.server import Server, interrupted_cleanly
from conformance.target import add_against, server_named
from penstock.client import Client
from penstock.wire.api.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)

LIMITED, FREE = "limited", "free"
MESSAGE = 1000
SMALL, UNASKED = 50_000, 1_000_000
"""Bytes of a request: ours, and librdkafka's default."""
SLACK = 0.10
SECONDS = 10
START_S = 1.0
NEIGHBOUR_MESSAGE = 100_000
NEIGHBOUR_PAUSE_S = 0.01
NEIGHBOUR_FACTOR = 2.0
NEIGHBOUR_SLOWEST_S = 1.0


class Tally:
    """Bytes by time."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._rows: list[tuple[float, int]] = []
        self.throttled = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def add(self, size: int) -> None:
        self._rows.append((self.seconds, size))

    def throttle(self, event: Any) -> None:
        self.throttled += event.throttle_time > 0

    def within(self, start: float, end: float) -> int:
        return sum(size for at, size in self._rows if start <= at < end)

    def by_second(self) -> str:
        return " ".join(f"{self.within(second, second + 1) / 1e6:.1f}" for second in range(int(self.seconds)))


class Neighbour(threading.Thread):
    """Sends a message, waits for its report, sends the next."""

    def __init__(self, common: Mapping[str, Any]) -> None:
        super().__init__(daemon=True)
        self.tally = Tally()
        self.slowest_s = 0.0
        self.problem = ""
        self.leaving = threading.Event()
        self._producer = Producer(
            {**common, "client.id": FREE, "linger.ms": 0, "throttle_cb": self.tally.throttle}
        )

    def run(self) -> None:
        value = os.urandom(NEIGHBOUR_MESSAGE)
        while not self.leaving.wait(NEIGHBOUR_PAUSE_S) and not self.problem:
            began = time.monotonic()
            self._producer.produce("neighbour", value, on_delivery=self._told)
            self._producer.flush(30)
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def _told(self, error: Any, _message: Any) -> None:
        if error is None:
            self.tally.add(NEIGHBOUR_MESSAGE)
        else:
            self.problem = str(error)


def set_quota(server: Server, key: str, rate: int) -> None:
    entry = EntryData(
        entity=[EntityData(entity_type="client-id", entity_name=LIMITED)],
        ops=[OpData(key=key, value=float(rate))],
    )
    with Client(server.bootstrap) as client:
        answer = client.any().ask(AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse)
    assert not any(one.error_code for one in answer.entries), answer


def topics(server: Server, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        made.result(30)


def produced(server: Server, seconds: float, request_bytes: int) -> Tally:
    """Acknowledged by delivery reports, which come as the answers do."""
    tally = Tally()

    def told(error: Any, message: Any) -> None:
        if error is None:
            tally.add(len(message.value() or b""))

    producer = Producer(
        {
            "bootstrap.servers": server.bootstrap,
            "client.id": LIMITED,
            "batch.size": request_bytes,
            "linger.ms": 5,
            "throttle_cb": tally.throttle,
        }
    )
    value = os.urandom(MESSAGE)
    while tally.seconds < seconds:
        try:
            producer.produce("produced", value, on_delivery=told)
        except BufferError:
            producer.poll(0.05)
        else:
            producer.poll(0)
    producer.purge()
    producer.flush(1)
    return tally


def consumed(server: Server, seconds: float, request_bytes: int) -> Tally:
    tally = Tally()
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "client.id": LIMITED,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": request_bytes,
            "throttle_cb": tally.throttle,
        }
    )
    consumer.assign([TopicPartition("filled", 0, OFFSET_BEGINNING)])
    try:
        while tally.seconds < seconds:
            for message in consumer.consume(1000, 0.02):
                if message.error():
                    raise KafkaException(message.error())
                tally.add(len(message.value() or b""))
    finally:
        consumer.close()
    return tally


def fill(server: Server, size: int) -> None:
    """Batches as small as the smallest answer: a Fetch brings whole ones."""
    producer = Producer(
        {"bootstrap.servers": server.bootstrap, "client.id": FREE, "batch.size": SMALL // 2, "linger.ms": 50}
    )
    value = os.urandom(MESSAGE)
    for _ in range(size // MESSAGE):
        producer.produce("filled", value)
        if len(producer) > 50_000:
            producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(60) == 0


Drive = Callable[[Server, float, int], Tally]


def holds(
    name: str, server: Server, drive: Drive, rate: int, request_bytes: int, least_beside: float
) -> bool:
    neighbour = Neighbour({"bootstrap.servers": server.bootstrap})
    neighbour.start()
    tally = drive(server, START_S + SECONDS + 0.2, request_bytes)
    neighbour.leaving.set()
    neighbour.join(30)
    allowed = rate * SECONDS
    got = tally.within(START_S, START_S + SECONDS)
    beside = neighbour.tally.within(START_S, START_S + SECONDS)
    slack = SLACK * allowed
    if request_bytes >= slack:
        slack += request_bytes
    most = max(tally.within(tenth / 10, tenth / 10 + SECONDS) for tenth in range(int(START_S * 10) + 1))
    right = got >= allowed - slack and most <= allowed + slack and tally.throttled > 0
    unharmed = (
        not neighbour.problem
        and not neighbour.tally.throttled
        and neighbour.slowest_s < NEIGHBOUR_SLOWEST_S
        and beside > least_beside
    )
    print(
        f"{'held  ' if right and unharmed else 'FAILED'} {name}, requests of {request_bytes}: "
        f"{got / 1e6:.2f} MB in {SECONDS} s where {allowed / 1e6:.2f} are allowed ({got / allowed - 1:+.1%}), "
        f"{tally.within(0, START_S) / 1e6:.2f} MB before, {most / 1e6:.2f} MB at most, throttled {tally.throttled} times; the neighbour "
        f"{beside / 1e6:.1f} MB, slowest {1000 * neighbour.slowest_s:.0f} ms, throttled "
        f"{neighbour.tally.throttled} times {neighbour.problem}\n       by second: {tally.by_second()}",
        flush=True,
    )
    return right and unharmed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="small requests only")
    parser.add_argument("--rate", type=int, default=1_000_000, help="bytes a second (default: %(default)s)")
    add_against(parser)
    options = parser.parse_args()
    results: list[bool] = []
    with interrupted_cleanly(), server_named(options.against) as server:
        topics(server, "produced", "filled", "neighbour")
        rate = options.rate
        cases = [(rate, SMALL)] if options.short else [(rate, SMALL), (5 * rate, UNASKED), (rate, UNASKED)]
        fill(server, 2 * SECONDS * max(allowed for allowed, _ in cases))
        least_beside = NEIGHBOUR_FACTOR * rate * SECONDS
        for allowed, size in cases:
            for name, drive in (("producer", produced), ("consumer", consumed)):
                # Each begins when what the last one of its kind used is forgotten: they take turns.
                set_quota(server, f"{name}_byte_rate", allowed)
                results.append(holds(name, server, drive, allowed, size, least_beside))
    print("all held" if all(results) else "FAILED: a quota did not hold")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
