"""aiokafka: one event loop a command, as a script would use it."""

import argparse
import asyncio
import time
from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from conformance.clients.aiokafka_transactions import AiokafkaTransactor, run_link
from conformance.clients.protocol import Program, Record, Share, serve
from conformance.clients.secured import Security, arguments
from conformance.clients.transactor import Link, Transactor
from conformance.clients.voice import (
    HEARTBEAT_INTERVAL_MS,
    POLL_MS,
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    STATIC_SESSION_TIMEOUT_MS,
    Voice,
)


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, security: Security) -> None:
        self.security = security

    async def token(self) -> str:
        return self.security.token()


class Aiokafka(Program):
    def __init__(self, bootstrap: str, security: Security) -> None:
        self.common: dict[str, Any] = {"bootstrap_servers": bootstrap, **security.python(Tokens)}

    def create(self, topic: str, partitions: int) -> None:
        asyncio.run(self._create(topic, partitions))

    async def _create(self, topic: str, partitions: int) -> None:
        admin = AIOKafkaAdminClient(**self.common)
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
            **self.common,
            compression_type=None if codec == "none" else codec,
            acks="all",
            linger_ms=50,
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

    def consume(
        self, topic: str, partition: int, offset: int, count: int, timeout_s: float, committed: bool = False
    ) -> list[Record]:
        return asyncio.run(self._consume(topic, partition, offset, count, timeout_s, committed))

    async def _consume(
        self, topic: str, partition: int, offset: int, count: int, timeout_s: float, committed: bool
    ) -> list[Record]:
        consumer = AIOKafkaConsumer(
            **self.common,
            group_id=None,
            auto_offset_reset="none",
            enable_auto_commit=False,
            isolation_level="read_committed" if committed else "read_uncommitted",
        )
        await consumer.start()
        try:
            assigned = TopicPartition(topic, partition)
            consumer.assign([assigned])
            consumer.seek(assigned, offset)
            return await self._poll(consumer, count, timeout_s)
        finally:
            await consumer.stop()

    def group(self, group: str, topic: str, share: Share, variant: str, timeout_s: float) -> None:
        asyncio.run(self._group(group, topic, share, variant, timeout_s))

    async def _group(self, group: str, topic: str, share: Share, variant: str, timeout_s: float) -> None:
        instance = f"{group}-one" if variant == "static" else None
        settings = self._group_settings(group, instance)
        if instance is not None:
            settings["session_timeout_ms"] = STATIC_SESSION_TIMEOUT_MS
        consumer = AIOKafkaConsumer(topic, **settings)
        await consumer.start()
        try:
            deadline = time.monotonic() + timeout_s
            while not share.complete and time.monotonic() < deadline:
                for record in _flat(await consumer.getmany(timeout_ms=500)):
                    share.offer(record)
            await consumer.commit(_to_commit(topic, share.next_offsets()))
        finally:
            await consumer.stop()

    def member(self, group: str, topic: str, variant: str, instance: str | None, voice: Voice) -> None:
        asyncio.run(self._member(group, topic, instance, voice))

    async def _member(self, group: str, topic: str, instance: str | None, voice: Voice) -> None:
        consumer = AIOKafkaConsumer(
            **self._group_settings(group, instance),
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            max_poll_interval_ms=REBALANCE_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            fetch_max_wait_ms=POLL_MS,
        )
        # Rebalances are a task of their own here: the lock keeps them out between a poll and its commit.
        processing = asyncio.Lock()
        consumer.subscribe([topic], listener=Listener(voice, processing))
        await consumer.start()
        try:
            while not voice.told_to_leave:
                polled = await consumer.getmany(timeout_ms=POLL_MS)
                async with processing:
                    for assigned, batch in polled.items():
                        if assigned not in consumer.assignment() or not voice.owns(assigned.partition):
                            continue  # taken away between the poll and the lock
                        voice.consumed(assigned.partition, [each.offset for each in batch])
                        await consumer.commit(_to_commit(topic, {assigned.partition: batch[-1].offset + 1}))
            voice.stopped()
        finally:
            await consumer.stop()

    def transactor(self) -> Transactor:
        return AiokafkaTransactor(self.common)

    def link(self, link: Link) -> None:
        asyncio.run(run_link(self.common, link))

    def _group_settings(self, group: str, instance: str | None) -> dict[str, Any]:
        return {
            **self.common,
            "group_id": group,
            "group_instance_id": instance,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "partition_assignment_strategy": (RangePartitionAssignor,),
        }

    async def _poll(self, consumer: Any, count: int, timeout_s: float) -> list[Record]:
        records: list[Record] = []
        deadline = time.monotonic() + timeout_s
        while len(records) < count and time.monotonic() < deadline:
            records += _flat(await consumer.getmany(timeout_ms=500, max_records=count - len(records)))
        return records


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, voice: Voice, processing: asyncio.Lock) -> None:
        self.voice = voice
        self.processing = processing

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        async with self.processing:
            self.voice.revoked(each.partition for each in revoked)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self.voice.assigned(each.partition for each in assigned)


def _flat(polled: dict[TopicPartition, list[Any]]) -> list[Record]:
    return [
        Record(each.key, each.value, tuple(each.headers), each.timestamp, each.offset, each.partition)
        for batch in polled.values()
        for each in batch
    ]


def _to_commit(topic: str, offsets: dict[int, int]) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, partition): offset for partition, offset in offsets.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    arguments(parser)
    options = parser.parse_args()
    serve(Aiokafka(options.bootstrap, Security.read(options.security)))


if __name__ == "__main__":
    main()
