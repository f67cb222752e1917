"""All that a topic holds, at either level, by librdkafka."""

import time
from collections import defaultdict

from confluent_kafka import Consumer, KafkaError, TopicPartition

from conformance.cluster.streams import QUIET
from conformance.transactions.places import Place

READ_WITHIN_S = 60.0


def read_topic(
    place: Place, topic: str, partitions: int, committed: bool = True
) -> dict[int, list[tuple[int, bytes]]]:
    """By partition, offsets and values up to the end that a reader of this level is told."""
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
    found: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    ended: set[int] = set()
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        deadline = time.monotonic() + READ_WITHIN_S
        while len(ended) < partitions and time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.5):
                error, partition = message.error(), message.partition() or 0
                if error is None:
                    found[partition].append((message.offset() or 0, message.value() or b""))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(partition)
    finally:
        consumer.close()
    assert len(ended) == partitions, f"the end of {topic} was not reached within {READ_WITHIN_S:.0f} s"
    return found
