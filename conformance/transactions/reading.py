"""All that a topic holds, at either level, by librdkafka."""

import time
from collections import defaultdict
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from conformance.cluster.streams import QUIET
from conformance.transactions.places import Place
from penstock.testing.waiting import Late

READ_WITHIN_S = 60.0


def read_topic(
    place: Place, topic: str, partitions: int, committed: bool = True
) -> dict[int, list[tuple[int, bytes]]]:
    """By partition, offsets and values up to the end that a reader of this level is told."""
    found: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for message in messages(place, topic, partitions, committed):
        found[message.partition() or 0].append((message.offset() or 0, message.value() or b""))
    return found


def messages(place: Place, topic: str, partitions: int, committed: bool = True) -> Iterator[Message]:
    """All of them, up to that end of each partition. `Late` if it is not reached."""
    consumer = Consumer(
        {
            "bootstrap.servers": place.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            **QUIET,
        }
    )
    ended: set[int] = set()
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        deadline = time.monotonic() + READ_WITHIN_S
        while len(ended) < partitions and time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.5):
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition() or 0)
    finally:
        consumer.close()
    if len(ended) < partitions:
        raise Late(f"the end of {topic} was not reached within {READ_WITHIN_S:.0f} s")
