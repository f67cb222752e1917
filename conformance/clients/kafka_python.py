"""kafka-python, negotiating versions or pinned to a broker of 2016 (`--api-version 0.10.0`)."""

import argparse
import time
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.structs import OffsetAndMetadata

from conformance.clients.protocol import Program, Record, serve


class KafkaPython(Program):
    def __init__(self, bootstrap: str, api_version: tuple[int, ...] | None) -> None:
        self.common: dict[str, Any] = {"bootstrap_servers": bootstrap}
        if api_version is not None:
            self.common["api_version"] = api_version
        self.pinned = api_version is not None

    def create(self, topic: str, partitions: int) -> None:
        if self.pinned:  # 0.10.0 has no CreateTopics: asking a producer for the topic creates it
            producer = KafkaProducer(**self.common)
            producer.partitions_for(topic)
            producer.close()
            return
        admin = KafkaAdminClient(**self.common)
        admin.create_topics([NewTopic(topic, partitions, 1)])
        admin.close()

    def produce(self, topic: str, partition: int, codec: str, records: list[Record]) -> list[int]:
        producer = KafkaProducer(
            **self.common, compression_type=None if codec == "none" else codec, acks="all", linger_ms=50
        )
        waiting = [
            producer.send(
                topic,
                value=record.value,
                key=record.key,
                partition=partition,
                timestamp_ms=record.timestamp,
                headers=list(record.headers) if not self.pinned else None,
            )
            for record in records
        ]
        offsets = [future.get(30).offset for future in waiting]
        producer.close()
        return offsets

    def consume(self, topic: str, partition: int, offset: int, count: int, timeout_s: float) -> list[Record]:
        consumer = KafkaConsumer(**self.common, group_id=None, auto_offset_reset="none")
        assigned = TopicPartition(topic, partition)
        consumer.assign([assigned])
        consumer.seek(assigned, offset)
        records = self._poll(consumer, count, timeout_s)
        consumer.close()
        return records

    def group(
        self, group: str, topic: str, count: int, variant: str, timeout_s: float
    ) -> tuple[list[Record], dict[int, int]]:
        settings: dict[str, Any] = {}
        if variant == "static":
            settings["group_instance_id"] = f"{group}-one"
        consumer = KafkaConsumer(
            topic, **self.common, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest", **settings
        )
        records = self._poll(consumer, count, timeout_s)
        committed = {record.partition: record.offset + 1 for record in records}
        consumer.commit(
            {TopicPartition(topic, part): OffsetAndMetadata(offset, "", -1) for part, offset in committed.items()}
        )
        consumer.close()
        return records, committed

    def _poll(self, consumer: Any, count: int, timeout_s: float) -> list[Record]:
        records: list[Record] = []
        deadline = time.monotonic() + timeout_s
        while len(records) < count and time.monotonic() < deadline:
            for batch in consumer.poll(timeout_ms=500, max_records=count - len(records)).values():
                records += [
                    Record(each.key, each.value, tuple(each.headers), each.timestamp, each.offset, each.partition)
                    for each in batch
                ]
        return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--api-version")
    options = parser.parse_args()
    pinned = tuple(int(part) for part in options.api_version.split(".")) if options.api_version else None
    serve(KafkaPython(options.bootstrap, pinned))


if __name__ == "__main__":
    main()
