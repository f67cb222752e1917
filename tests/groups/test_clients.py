"""Real clients: a group that comes back goes on at the exact next record, whatever happened in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from penstock.testing import Broker
from tests.groups.clients import CLIENTS, Position, committed, confluent, next_offsets, produce

PARTITIONS = 3
RECORDS = 60
EVERYTHING = sorted((n % PARTITIONS, n // PARTITIONS) for n in range(RECORDS))
SETTINGS: dict[str, str | int | bool] = {"group.initial.rebalance.delay.ms": 0}


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker(settings=SETTINGS) as broker:
        produce(broker.bootstrap_servers, "t", PARTITIONS, RECORDS)
        yield broker.bootstrap_servers


@pytest.mark.parametrize("client", CLIENTS)
def test_comes_back_and_goes_on(client: str, bootstrap: str) -> None:
    group = f"back-{client}"
    assert committed(bootstrap, group, "t", PARTITIONS) == {}
    first = CLIENTS[client](bootstrap, group, "t", RECORDS // 2)
    assert committed(bootstrap, group, "t", PARTITIONS) == next_offsets(first)
    second = CLIENTS[client](bootstrap, group, "t", RECORDS - len(first))
    assert sorted(first + second) == EVERYTHING
    assert committed(bootstrap, group, "t", PARTITIONS) == next_offsets(EVERYTHING)


@pytest.mark.parametrize("client", CLIENTS)
def test_goes_on_after_kill_9(client: str) -> None:
    with Broker(settings=SETTINGS, process=True) as broker:
        bootstrap = broker.bootstrap_servers
        produce(bootstrap, "t", PARTITIONS, RECORDS)
        first = CLIENTS[client](bootstrap, "g", "t", RECORDS // 2)
        broker.kill()
        broker.start()
        assert committed(bootstrap, "g", "t", PARTITIONS) == next_offsets(first)
        second = CLIENTS[client](bootstrap, "g", "t", RECORDS - len(first))
    assert sorted(first + second) == EVERYTHING


@pytest.mark.parametrize("then", CLIENTS)
@pytest.mark.parametrize("first", ["kafka-python-0.10.0", "confluent-consumer-protocol"])
def test_one_client_goes_on_where_another_stopped(first: str, then: str, bootstrap: str) -> None:
    group = f"{first}-then-{then}"
    read = CLIENTS[first](bootstrap, group, "t", RECORDS // 2)
    rest = CLIENTS[then](bootstrap, group, "t", RECORDS - len(read))
    assert sorted(read + rest) == EVERYTHING


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_that_come_and_go_read_everything(protocol: str) -> None:
    """Records flow while members come and leave: nothing is lost, and no commit goes back."""
    settings = {
        **SETTINGS,
        "group.min.session.timeout.ms": 1000,
        "group.consumer.session.timeout.ms": 2000,
        "group.consumer.heartbeat.interval.ms": 300,
        "group.consumer.assignment.interval.ms": 0,
    }
    with Broker(settings=settings) as broker:
        shared = Shared(broker.bootstrap_servers, protocol)
        produce(broker.bootstrap_servers, "t", 6, 0)
        producer = threading.Thread(target=shared.produce, args=(3_000,))
        producer.start()
        members = [shared.member(f"m{n}", stops_after=stop) for n, stop in enumerate([None, 200, 300, None])]
        deadline = time.monotonic() + 120
        while len(shared.read) < 3_000 and time.monotonic() < deadline:
            shared.progress.wait(1)
            shared.progress.clear()
        shared.done.set()
        for member in [*members, producer]:
            member.join(120)
        assert not shared.failures
        assert len(shared.read) == 3_000
        assert committed(broker.bootstrap_servers, "g", "t", 6) == dict.fromkeys(range(6), 500)


class Shared:
    """What the threads of the test above have in common."""

    def __init__(self, bootstrap: str, protocol: str) -> None:
        self.bootstrap = bootstrap
        self.options = {"group.protocol": protocol}
        if protocol == "classic":
            self.options |= {"session.timeout.ms": "2000", "heartbeat.interval.ms": "300"}
        self.read: set[Position] = set()
        self.failures: list[str] = []
        self.progress = threading.Event()
        self.done = threading.Event()

    def produce(self, count: int) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0, "linger.ms": 5})
        for number in range(count):
            producer.produce("t", b"%d" % number, partition=number % 6)
            if number % 100 == 0:
                producer.flush(60)
        producer.flush(60)

    def member(self, name: str, stops_after: int | None) -> threading.Thread:
        thread = threading.Thread(target=self._consume, args=(name, stops_after))
        thread.start()
        return thread

    def _consume(self, name: str, stops_after: int | None) -> None:
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "client.id": name,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
                **self.options,
            }
        )
        consumer.subscribe(["t"])
        mine = 0
        while not self.done.is_set() and (stops_after is None or mine < stops_after):
            messages = consumer.consume(50, timeout=0.2)
            if not messages:
                continue
            self.failures += [str(message.error()) for message in messages if message.error()]
            if self.failures:
                break
            found = [(message.partition() or 0, message.offset() or 0) for message in messages]
            offsets = [TopicPartition("t", p, offset) for p, offset in next_offsets(found).items()]
            try:
                consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException:
                continue  # A rebalance came first: whoever has the partition now reads it again.
            self.read.update(found)
            mine += len(messages)
            self.progress.set()
        consumer.close()


def test_a_coordinator_that_dies_is_replaced(tmp_path: object) -> None:
    """Two brokers; the group's coordinator is killed for good; the other one knows the offsets."""
    settings = {**SETTINGS, "broker.session.timeout.ms": 1500, "offsets.topic.num.partitions": 4}
    store = str(tmp_path)
    with Broker(store=store, broker_id=1, settings=settings, process=True) as one:
        produce(one.bootstrap_servers, "t", PARTITIONS, RECORDS)
        with Broker(store=store, broker_id=2, settings=settings, process=True) as two:
            both = f"{one.bootstrap_servers},{two.bootstrap_servers}"
            read = {f"g{n}": confluent(both, f"g{n}", "t", RECORDS // 2) for n in range(4)}
            one.kill()
            for group, first in read.items():
                rest = confluent(two.bootstrap_servers, group, "t", RECORDS - len(first))
                assert sorted(first + rest) == EVERYTHING, group
