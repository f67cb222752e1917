"""kafka-python, negotiating versions or pinned to a broker of 2016 (`--api-version 0.10.0`)."""

import argparse
import time
from collections.abc import Iterable
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import CommitFailedError, RebalanceInProgressError
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.structs import OffsetAndMetadata

from conformance.clients.kafka_python_transactions import KafkaPythonTransactor
from conformance.clients.protocol import Program, Record, Share, serve
from conformance.clients.secured import Security, arguments
from conformance.clients.transactor import Transactor
from conformance.clients.voice import (
    HEARTBEAT_INTERVAL_MS,
    POLL_MS,
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    STATIC_SESSION_TIMEOUT_MS,
    Voice,
)

# It goes on trying for as long, although its login was refused.
BOOTSTRAP_TIMEOUT_MS = 5_000
# Version 3.0.12 loses its assignment if the time of a poll is over just when SyncGroup is answered: it takes itself for
# joined and never fetches.
JOIN_POLL_MS = 3_000


class KafkaPython(Program):
    def __init__(self, bootstrap: str, security: Security, api_version: tuple[int, ...] | None) -> None:
        self.common: dict[str, Any] = {"bootstrap_servers": bootstrap, **security.python(Tokens)}
        if security.protocol != "PLAINTEXT":
            self.common["bootstrap_timeout_ms"] = BOOTSTRAP_TIMEOUT_MS
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

    def consume(
        self, topic: str, partition: int, offset: int, count: int, timeout_s: float, committed: bool = False
    ) -> list[Record]:
        isolation = {"isolation_level": "read_committed"} if committed else {}
        consumer = KafkaConsumer(**self.common, **isolation, group_id=None, auto_offset_reset="none")
        assigned = TopicPartition(topic, partition)
        consumer.assign([assigned])
        consumer.seek(assigned, offset)
        records = self._poll(consumer, count, timeout_s)
        consumer.close()
        return records

    def group(self, group: str, topic: str, share: Share, variant: str, timeout_s: float) -> None:
        instance = f"{group}-one" if variant == "static" else None
        settings = self._group_settings(group, variant, instance)
        if instance is not None:
            settings["session_timeout_ms"] = STATIC_SESSION_TIMEOUT_MS
        consumer = KafkaConsumer(topic, **settings)
        deadline = time.monotonic() + timeout_s
        while not share.complete and time.monotonic() < deadline:
            for record in _flat(consumer.poll(timeout_ms=500)):
                share.offer(record)
        consumer.commit(_to_commit(topic, share.next_offsets()))
        consumer.close()

    def member(self, group: str, topic: str, variant: str, instance: str | None, voice: Voice) -> None:
        timing = {
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS,
            # A broker of 0.10.0 knows one time-out for both.
            "max_poll_interval_ms": SESSION_TIMEOUT_MS if self.pinned else REBALANCE_TIMEOUT_MS,
            "fetch_max_wait_ms": POLL_MS,
        }
        consumer = KafkaConsumer(**self._group_settings(group, variant, instance), **timing)
        consumer.subscribe([topic], listener=Listener(voice))
        pending: dict[int, int] = {}
        patience_ms = JOIN_POLL_MS
        while not voice.told_to_leave:
            polled, patience_ms = consumer.poll(timeout_ms=patience_ms), POLL_MS
            for assigned, batch in polled.items():
                voice.consumed(assigned.partition, [each.offset for each in batch])
                pending[assigned.partition] = batch[-1].offset + 1
            # What the broker refuses while the group rebalances is committed after the next poll.
            mine = {partition: offset for partition, offset in pending.items() if voice.owns(partition)}
            try:
                consumer.commit(_to_commit(topic, mine))
            except (CommitFailedError, RebalanceInProgressError):
                continue
            pending.clear()
        voice.stopped()
        consumer.close()

    def transactor(self) -> Transactor:
        return KafkaPythonTransactor(self.common)

    def _group_settings(self, group: str, variant: str, instance: str | None) -> dict[str, Any]:
        assignor = CooperativeStickyAssignor if variant == "cooperative" else RangePartitionAssignor
        settings = {
            **self.common,
            "group_id": group,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "partition_assignment_strategy": (assignor,),
        }
        if instance is not None:
            settings["group_instance_id"] = instance
        return settings

    def _poll(self, consumer: Any, count: int, timeout_s: float) -> list[Record]:
        records: list[Record] = []
        deadline = time.monotonic() + timeout_s
        while len(records) < count and time.monotonic() < deadline:
            records += _flat(consumer.poll(timeout_ms=500, max_records=count - len(records)))
        return records


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, security: Security) -> None:
        super().__init__()
        self.security = security

    def token(self) -> str:
        return self.security.token()


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Rebalances happen inside poll()."""

    def __init__(self, voice: Voice) -> None:
        self.voice = voice

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self.voice.assigned(each.partition for each in assigned)

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self.voice.revoked(each.partition for each in revoked)

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self.voice.lost(each.partition for each in lost)


def _flat(polled: dict[TopicPartition, list[Any]]) -> list[Record]:
    return [
        Record(each.key, each.value, tuple(each.headers), each.timestamp, each.offset, each.partition)
        for batch in polled.values()
        for each in batch
    ]


def _to_commit(topic: str, offsets: dict[int, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)
        for partition, offset in offsets.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    arguments(parser)
    parser.add_argument("--api-version")
    options = parser.parse_args()
    pinned = tuple(int(part) for part in options.api_version.split(".")) if options.api_version else None
    serve(KafkaPython(options.bootstrap, Security.read(options.security), pinned))


if __name__ == "__main__":
    main()
