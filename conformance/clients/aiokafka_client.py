"""aiokafka: one event loop a command, as a script would use it."""

import argparse
import asyncio
import time
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from conformance.clients.protocol import Program, Record, serve


class Aiokafka(Program):
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def create(self, topic: str, partitions: int) -> None:
        asyncio.run(self._create(topic, partitions))

    async def _create(self, topic: str, partitions: int) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            answer = await admin.create_topics([NewTopic(topic, partitions, 1)])
            failed = [error for error in answer.topic_errors if error[1] != 0]
            if failed:
                raise RuntimeError(f"create_topics answered {failed}")
        finally:
            await admin.close()

    def produce(self, topic: str, partition: int, codec: str, records: list[Record]) -> list[int]:
        return asyncio.run(self._produce(topic, partition, codec, records))

    async def _produce(self, topic: str, partition: int, codec: str, records: list[Record]) -> list[int]:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap, compression_type=None if codec == "none" else codec, acks="all", linger_ms=50
        )
        await producer.start()
        try:
            waiting = [
                await producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=partition,
                    timestamp_ms=record.timestamp,
                    headers=list(record.headers),
                )
                for record in records
            ]
            return [(await future).offset for future in waiting]
        finally:
            await producer.stop()

    def consume(self, topic: str, partition: int, offset: int, count: int, timeout_s: float) -> list[Record]:
        return asyncio.run(self._consume(topic, partition, offset, count, timeout_s))

    async def _consume(self, topic: str, partition: int, offset: int, count: int, timeout_s: float) -> list[Record]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap, group_id=None, auto_offset_reset="none", enable_auto_commit=False
        )
        await consumer.start()
        try:
            assigned = TopicPartition(topic, partition)
            consumer.assign([assigned])
            consumer.seek(assigned, offset)
            return await self._poll(consumer, count, timeout_s)
        finally:
            await consumer.stop()

    def group(
        self, group: str, topic: str, count: int, variant: str, timeout_s: float
    ) -> tuple[list[Record], dict[int, int]]:
        return asyncio.run(self._group(group, topic, count, variant, timeout_s))

    async def _group(
        self, group: str, topic: str, count: int, variant: str, timeout_s: float
    ) -> tuple[list[Record], dict[int, int]]:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=self.bootstrap,
            group_id=group,
            group_instance_id=f"{group}-one" if variant == "static" else None,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            records = await self._poll(consumer, count, timeout_s)
            committed = {record.partition: record.offset + 1 for record in records}
            await consumer.commit({TopicPartition(topic, part): offset for part, offset in committed.items()})
            return records, committed
        finally:
            await consumer.stop()

    async def _poll(self, consumer: Any, count: int, timeout_s: float) -> list[Record]:
        records: list[Record] = []
        deadline = time.monotonic() + timeout_s
        while len(records) < count and time.monotonic() < deadline:
            for batch in (await consumer.getmany(timeout_ms=500, max_records=count - len(records))).values():
                records += [
                    Record(each.key, each.value, tuple(each.headers), each.timestamp, each.offset, each.partition)
                    for each in batch
                ]
        return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    serve(Aiokafka(parser.parse_args().bootstrap))


if __name__ == "__main__":
    main()
