"""The same few words for different clients: read some records of a topic as a group, commit them, leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

Position = tuple[int, int]
"""Partition and offset."""
Consume = Callable[[str, str, str, int], list[Position]]
"""(bootstrap, group, topic, count) -> what was read and committed: at least `count`."""

SECONDS_MAX = 120.0


def next_offsets(read: list[Position]) -> dict[int, int]:
    """Where a consumer that has processed these goes on."""
    return {partition: max(o for p, o in read if p == partition) + 1 for partition in {p for p, _ in read}}


def kafka_python(bootstrap: str, group: str, topic: str, count: int, **options: Any) -> list[Position]:
    from kafka import KafkaConsumer, TopicPartition
    from kafka.errors import RebalanceInProgressError
    from kafka.structs import OffsetAndMetadata

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **options,
    )
    # Not before it knows the topic: an answer to its first, general question that arrives after that about
    # the topic makes it forget the partitions for a moment. A leader that assigns just then assigns nothing,
    # and does not notice. A group that is formed at once makes such moments likely.
    assert consumer.partitions_for_topic(topic)
    consumer.subscribe([topic])
    read: list[Position] = []
    deadline = time.monotonic() + SECONDS_MAX
    try:
        while len(read) < count:
            assert time.monotonic() < deadline, f"{read} and no more came; it owns {consumer.assignment()}"
            for records in consumer.poll(200, max_records=7).values():
                read.extend((record.partition, record.offset) for record in records)
        wanted = {
            TopicPartition(topic, partition): OffsetAndMetadata(offset, "by kafka-python", -1)
            for partition, offset in next_offsets(read).items()
        }
        while True:
            try:
                consumer.commit(wanted)
                break
            except RebalanceInProgressError:
                # A broker that was killed may know a member still that was about to leave.
                assert time.monotonic() < deadline, "it could not commit"
                consumer.poll(200)  # What comes again was read before.
    finally:
        consumer.close()
    return read


def kafka_python_0_10(bootstrap: str, group: str, topic: str, count: int) -> list[Position]:
    return kafka_python(bootstrap, group, topic, count, api_version=(0, 10, 0))


def aiokafka(bootstrap: str, group: str, topic: str, count: int) -> list[Position]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def consume() -> list[Position]:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        read: list[Position] = []
        try:
            async with asyncio.timeout(SECONDS_MAX):
                while len(read) < count:
                    for records in (await consumer.getmany(timeout_ms=200, max_records=7)).values():
                        read.extend((record.partition, record.offset) for record in records)
            await consumer.commit(
                {TopicPartition(topic, p): offset for p, offset in next_offsets(read).items()}
            )
        finally:
            await consumer.stop()
        return read

    return asyncio.run(consume())


def confluent(bootstrap: str, group: str, topic: str, count: int, **options: Any) -> list[Position]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
            **options,
        }
    )
    consumer.subscribe([topic])
    read: list[Position] = []
    deadline = time.monotonic() + SECONDS_MAX
    try:
        while len(read) < count:
            assert time.monotonic() < deadline, f"{read} and no more came; it owns {consumer.assignment()}"
            message = consumer.poll(0.2)
            if message is None:
                continue
            assert message.error() is None, message.error()
            read.append((message.partition() or 0, message.offset() or 0))
        offsets = [TopicPartition(topic, p, offset) for p, offset in next_offsets(read).items()]
        consumer.commit(offsets=offsets, asynchronous=False)
    finally:
        consumer.close()
    return read


def confluent_consumer_protocol(bootstrap: str, group: str, topic: str, count: int) -> list[Position]:
    return confluent(bootstrap, group, topic, count, **{"group.protocol": "consumer"})


CLIENTS: dict[str, Consume] = {
    "kafka-python": kafka_python,
    "kafka-python-0.10.0": kafka_python_0_10,
    "aiokafka": aiokafka,
    "confluent": confluent,
    "confluent-consumer-protocol": confluent_consumer_protocol,
}


def produce(bootstrap: str, topic: str, partitions: int, count: int) -> None:
    """Create the topic and write `count` records, evenly over its partitions."""
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for created in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        created.result()
    produce_more(bootstrap, topic, partitions, count)


def produce_more(bootstrap: str, topic: str, partitions: int, count: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    assert producer.flush(SECONDS_MAX) == 0


def committed(bootstrap: str, group: str, topic: str, partitions: int) -> dict[int, int]:
    """What a client that joins nothing is told; partitions without an offset are left out."""
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, p) for p in range(partitions)])
    (answer,) = admin.list_consumer_group_offsets([asked]).values()
    found = answer.result().topic_partitions
    assert [tp.partition for tp in found] == list(range(partitions)), "every partition asked for is answered"
    return {tp.partition: tp.offset for tp in found if tp.offset >= 0}
