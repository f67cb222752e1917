"""confluent-kafka: librdkafka as Python programs use it."""

import argparse
import time
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from conformance.clients.protocol import Program, Record, serve

VARIANTS: dict[str, dict[str, Any]] = {
    "classic": {},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "static": {},
    "consumer": {"group.protocol": "consumer"},
}


class Confluent(Program):
    def __init__(self, bootstrap: str) -> None:
        self.common = {"bootstrap.servers": bootstrap}

    def create(self, topic: str, partitions: int) -> None:
        admin = AdminClient(self.common)  # the futures fail when it is collected before they are done
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)

    def produce(self, topic: str, partition: int, codec: str, records: list[Record]) -> list[int]:
        producer = Producer({**self.common, "compression.type": codec, "acks": "all", "linger.ms": 50})
        offsets: list[int] = []
        failures: list[str] = []

        def delivered(error: Any, message: Message) -> None:
            if error is not None:
                failures.append(str(error))
            offsets.append(message.offset() or 0)

        for record in records:
            stamp = {} if record.timestamp is None else {"timestamp": record.timestamp}
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=partition,
                on_delivery=delivered,
                headers=list(record.headers),
                **stamp,
            )
        producer.flush(30)
        if failures or len(offsets) != len(records):
            raise RuntimeError(f"{len(records) - len(offsets)} records without an answer; {failures[:3]}")
        return offsets

    def consume(self, topic: str, partition: int, offset: int, count: int, timeout_s: float) -> list[Record]:
        consumer = Consumer(
            {**self.common, "group.id": "unused", "enable.auto.commit": False, "auto.offset.reset": "error"}
        )
        consumer.assign([TopicPartition(topic, partition, offset)])
        records = self._poll(consumer, count, timeout_s)
        consumer.close()
        return records

    def group(
        self, group: str, topic: str, count: int, variant: str, timeout_s: float
    ) -> tuple[list[Record], dict[int, int]]:
        settings = {
            **self.common,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **VARIANTS[variant],
        }
        if variant == "static":
            settings["group.instance.id"] = f"{group}-one"
        consumer = Consumer(settings)
        consumer.subscribe([topic])
        records = self._poll(consumer, count, timeout_s)
        committed = {record.partition: record.offset + 1 for record in records}
        consumer.commit(
            offsets=[TopicPartition(topic, part, offset) for part, offset in committed.items()], asynchronous=False
        )
        consumer.close()
        return records, committed

    def _poll(self, consumer: Any, count: int, timeout_s: float) -> list[Record]:
        records: list[Record] = []
        deadline = time.monotonic() + timeout_s
        while len(records) < count and time.monotonic() < deadline:
            for message in consumer.consume(count - len(records), 0.5):
                if message.error():
                    raise KafkaException(message.error())
                records.append(_record(message))
        return records


def _record(message: Message) -> Record:
    kind, stamp = message.timestamp()
    return Record(
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
        timestamp=None if kind == TIMESTAMP_NOT_AVAILABLE else stamp,
        offset=message.offset() or 0,
        partition=message.partition() or 0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    serve(Confluent(parser.parse_args().bootstrap))


if __name__ == "__main__":
    main()
