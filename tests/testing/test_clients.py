"""Standard clients write and read without a group: a first look that the whole broker hangs together."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition

from penstock.testing import Broker

RECORDS = [(b"key-%d" % number if number % 3 else None, b"value-%d" % number * 50) for number in range(200)]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def read_with_librdkafka(broker: Broker, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[bytes | None, bytes | None]] = []
    deadline = time.monotonic() + 90
    while len(found) < len(RECORDS) and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None:
            assert message.error() is None
            assert message.offset() == len(found)
            found.append((message.key(), message.value()))
    consumer.close()
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka(broker: Broker, codec: str) -> None:
    topic = f"librdkafka-{codec}"
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec})
    for key, value in RECORDS:
        producer.produce(topic, value, key, on_delivery=lambda error, _message: failures.append(error))
    assert producer.flush(30) == 0
    assert failures == [None] * len(RECORDS)
    assert read_with_librdkafka(broker, topic) == RECORDS


@pytest.mark.parametrize("version", [None, (0, 10, 0), (0, 11), (2, 5)])
def test_kafka_python(broker: Broker, version: tuple[int, ...] | None) -> None:
    topic = f"kafka-python-{'-'.join(map(str, version)) if version else 'newest'}"
    options = {"bootstrap_servers": broker.bootstrap_servers}
    if version:
        options["api_version"] = version  # type: ignore[assignment]
    if version and version < (0, 11):
        options["enable_idempotence"] = False  # type: ignore[assignment]
    producer = KafkaProducer(**options)
    waiting = [producer.send(topic, value, key) for key, value in RECORDS]
    producer.flush(30)
    assert [future.get(30).offset for future in waiting] == list(range(len(RECORDS)))
    producer.close()
    consumer = KafkaConsumer(**{k: v for k, v in options.items() if k != "enable_idempotence"})
    partition = PythonPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    found: list[tuple[bytes | None, bytes | None]] = []
    deadline = time.monotonic() + 90
    while len(found) < len(RECORDS) and time.monotonic() < deadline:
        for records in consumer.poll(1000).values():
            found += [(record.key, record.value) for record in records]
    consumer.close()
    assert found == RECORDS
    assert read_with_librdkafka(broker, topic) == RECORDS


async def test_aiokafka(broker: Broker) -> None:
    topic = "aiokafka"
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, enable_idempotence=True)
    await producer.start()
    sent = [await producer.send(topic, value, key) for key, value in RECORDS]
    await producer.flush()
    assert [(await future).offset for future in sent] == list(range(len(RECORDS)))
    await producer.stop()
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
    await consumer.start()
    partition = AioPartition(topic, 0)
    consumer.assign([partition])
    await consumer.seek_to_beginning(partition)
    found = [await consumer.getone() for _ in RECORDS]
    await consumer.stop()
    assert [(record.key, record.value) for record in found] == RECORDS
