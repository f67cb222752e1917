"""Records that were written and acknowledged, and whether a broker still has them."""

import threading
import time
from collections import defaultdict
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition

QUIET: dict[str, Any] = {"log_level": 0, "log.connection.close": False}
"""librdkafka does not tell of each broker that goes away."""
RECORDS_PER_SECOND = 25
READ_WITHIN_S = 30.0
Values = dict[int, dict[int, bytes]]
"""By partition and offset."""


class Written:
    """What one topic has acknowledged, and what it has refused."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.values: Values = defaultdict(dict)
        self.failures: list[str] = []

    def __len__(self) -> int:
        return sum(map(len, self.values.values()))

    def delivered(self, error: Any, message: Message) -> None:
        """A producer's callback."""
        if error is not None:
            self.failures.append(str(error))
            return
        _keep(self.values, message)

    def lacking(self, address: str, within_s: float = READ_WITHIN_S) -> list[str]:
        """What was acknowledged and cannot be read through these brokers, or is read and was not acknowledged."""
        found = self._read(address, within_s)
        return [
            f"partition {partition} offset {offset} is {found[partition].get(offset)!r}, not "
            f"{values.get(offset)!r}"
            for partition, values in self.values.items()
            for offset in sorted(values.keys() | found[partition].keys())
            if found[partition].get(offset) != values.get(offset)
        ]

    def _read(self, address: str, within_s: float) -> Values:
        consumer = Consumer({"bootstrap.servers": address, "group.id": "unused", "log_level": 0})
        found: Values = defaultdict(dict)
        try:
            consumer.assign([TopicPartition(self.topic, partition, 0) for partition in self.values])
            deadline = time.monotonic() + within_s
            while sum(map(len, found.values())) < len(self) and time.monotonic() < deadline:
                for message in consumer.consume(1000, 0.2):
                    if message.error() is None:
                        _keep(found, message)
        finally:
            consumer.close()
        return found


def _keep(values: Values, message: Message) -> None:
    partition, offset = message.partition(), message.offset()
    assert partition is not None and offset is not None
    values[partition][offset] = message.value() or b""


class Stream(threading.Thread):
    """Writes numbered records to a topic at an even pace until it is told to end."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(name=f"stream to {topic}", daemon=True)
        self.written = Written(topic)
        self._partitions = partitions
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, **QUIET}
        )
        self._end = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._end.wait(1 / RECORDS_PER_SECOND):
            self._producer.produce(
                self.written.topic,
                b"%d" % number,
                partition=number % self._partitions,
                on_delivery=self.written.delivered,
            )
            self._producer.poll(0)
            number += 1
        left = self._producer.flush(30)
        if left:
            self.written.failures.append(f"{left} records were never answered")

    def end(self) -> None:
        self._end.set()
        self.join()
