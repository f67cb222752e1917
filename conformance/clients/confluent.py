"""confluent-kafka: librdkafka as Python programs use it."""

import argparse
import time
from dataclasses import replace
from functools import partial
from typing import Any

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from conformance.clients.confluent_transactions import ConfluentTransactor, run_link
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

VARIANTS: dict[str, dict[str, Any]] = {
    "classic": {"partition.assignment.strategy": "range"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "static": {"partition.assignment.strategy": "range"},
    "consumer": {"group.protocol": "consumer"},
}

# Comes back soon after the broker does; everything else is as users run it.
FLOOD: dict[str, Any] = {
    "enable.idempotence": True,
    "linger.ms": 2,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "log_level": 0,
}
FLOOD_TIMEOUT_S = 90.0
TOKEN_LIFE_S = 300.0
REFUSED_IN_REBALANCE = (
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.STALE_MEMBER_EPOCH,
)


class Confluent(Program):
    def __init__(self, bootstrap: str, security: Security) -> None:
        self.common: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "error_cb": self._noticed,
            **security.librdkafka(),
        }
        if security.tokens:
            self.common["oauth_cb"] = lambda _: (security.token(), time.time() + TOKEN_LIFE_S)
        self.refused: KafkaError | None = None
        self.flooder: Any = None

    def _noticed(self, error: KafkaError) -> None:
        """It goes on trying whatever happens; whether a refused login is the end, the application says. That a
        certificate is refused is said after the handshake in TLS 1.3, so it comes as what was received."""
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL) or "SSL routines" in error.str():
            self.refused = error

    def create(self, topic: str, partitions: int) -> None:
        admin = AdminClient(self.common)  # the futures fail when it is collected before they are done
        made = admin.create_topics([NewTopic(topic, partitions, 1)])[topic]
        deadline = time.monotonic() + 30
        while not made.done() and self.refused is None and time.monotonic() < deadline:
            admin.poll(0.1)
        if self.refused is not None:
            raise KafkaException(self.refused)
        made.result(0)

    def produce(self, topic: str, partition: int, codec: str, records: list[Record]) -> list[int]:
        producer = Producer({**self.common, "compression.type": codec, "acks": "all", "linger.ms": 50})
        return self._send(
            producer, topic, [replace(record, partition=partition) for record in records], timeout_s=30
        )

    def flood(self, topic: str, records: list[Record]) -> list[int]:
        if self.flooder is None:
            self.flooder = Producer({**self.common, **FLOOD})
        return self._send(self.flooder, topic, records, timeout_s=FLOOD_TIMEOUT_S)

    def _send(self, producer: Any, topic: str, records: list[Record], timeout_s: float) -> list[int]:
        """Offsets in the order of the records, once all are acknowledged; delivery comes in any order."""
        offsets: dict[int, int] = {}
        failures: list[str] = []

        def delivered(at: int, error: Any, message: Message) -> None:
            if error is not None:
                failures.append(str(error))
            offset = message.offset()
            offsets[at] = -1 if offset is None else offset

        for at, record in enumerate(records):
            stamp = {} if record.timestamp is None else {"timestamp": record.timestamp}
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                on_delivery=partial(delivered, at),
                headers=list(record.headers),
                **stamp,
            )
        producer.flush(timeout_s)
        if failures or len(offsets) != len(records):
            raise RuntimeError(f"{len(records) - len(offsets)} records without an answer; {failures[:3]}")
        return [offsets[at] for at in range(len(records))]

    def consume(
        self, topic: str, partition: int, offset: int, count: int, timeout_s: float, committed: bool = False
    ) -> list[Record]:
        consumer = Consumer(
            {
                **self.common,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
            }
        )
        consumer.assign([TopicPartition(topic, partition, offset)])
        records = self._poll(consumer, count, timeout_s)
        consumer.close()
        return records

    def group(self, group: str, topic: str, share: Share, variant: str, timeout_s: float) -> None:
        instance = f"{group}-one" if variant == "static" else None
        settings = self._group_settings(group, variant, instance)
        if instance is not None:
            settings["session.timeout.ms"] = STATIC_SESSION_TIMEOUT_MS
        consumer = Consumer(settings)
        consumer.subscribe([topic])
        deadline = time.monotonic() + timeout_s
        while not share.complete and time.monotonic() < deadline:
            for message in _checked(consumer.consume(500, 0.5)):
                share.offer(_record(message))
        consumer.commit(offsets=_to_commit(topic, share.next_offsets()), asynchronous=False)
        consumer.close()

    def member(self, group: str, topic: str, variant: str, instance: str | None, voice: Voice) -> None:
        settings = self._group_settings(group, variant, instance)
        settings["max.poll.interval.ms"] = REBALANCE_TIMEOUT_MS
        settings["fetch.wait.max.ms"] = POLL_MS
        if variant != "consumer":  # with that protocol the broker's settings decide
            settings["session.timeout.ms"] = SESSION_TIMEOUT_MS
            settings["heartbeat.interval.ms"] = HEARTBEAT_INTERVAL_MS
        consumer = Consumer(settings)
        pending: dict[int, int] = {}

        def commit() -> None:
            """What the broker refuses while the group rebalances is committed after the next poll."""
            try:
                consumer.commit(offsets=_to_commit(topic, pending), asynchronous=False)
            except KafkaException as refused:
                if refused.args[0].code() not in REFUSED_IN_REBALANCE:
                    raise
            else:
                pending.clear()

        # Rebalances happen inside consume().
        def revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
            if pending:
                commit()
            given_up = [each.partition for each in partitions]
            for partition in given_up:
                pending.pop(partition, None)
            voice.revoked(given_up)

        consumer.subscribe(
            [topic],
            on_assign=lambda _, partitions: voice.assigned(each.partition for each in partitions),
            on_revoke=revoked,
            on_lost=lambda _, partitions: voice.lost(each.partition for each in partitions),
        )
        while not voice.told_to_leave:
            by_partition: dict[int, list[int]] = {}
            for message in _checked(consumer.consume(500, POLL_MS / 1000)):
                by_partition.setdefault(message.partition() or 0, []).append(message.offset() or 0)
            for partition, offsets in by_partition.items():
                voice.consumed(partition, offsets)
                pending[partition] = offsets[-1] + 1
            if pending:
                commit()
        voice.stopped()
        consumer.close()

    def transactor(self) -> Transactor:
        return ConfluentTransactor(self.common)

    def link(self, link: Link) -> None:
        run_link(self.common, link)

    def kind_of(self, error: Exception) -> str:
        if isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError):
            return error.args[0].name()
        return super().kind_of(error)

    def _group_settings(self, group: str, variant: str, instance: str | None) -> dict[str, Any]:
        settings = {
            **self.common,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **VARIANTS[variant],
        }
        if instance is not None:
            settings["group.instance.id"] = instance
        return settings

    def _poll(self, consumer: Any, count: int, timeout_s: float) -> list[Record]:
        records: list[Record] = []
        deadline = time.monotonic() + timeout_s
        while len(records) < count and time.monotonic() < deadline:
            records += [_record(message) for message in _checked(consumer.consume(count - len(records), 0.5))]
        return records


def _checked(messages: list[Message]) -> list[Message]:
    for message in messages:
        if message.error():
            raise KafkaException(message.error())
    return messages


def _to_commit(topic: str, offsets: dict[int, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]


def _record(message: Message) -> Record:
    kind, stamp = message.timestamp()
    headers: Any = message.headers() or ()  # a list of pairs of bytes, whatever the stub allows besides
    return Record(
        key=message.key(),
        value=message.value(),
        headers=tuple(headers),
        timestamp=None if kind == TIMESTAMP_NOT_AVAILABLE else stamp,
        offset=message.offset() or 0,
        partition=message.partition() or 0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    arguments(parser)
    options = parser.parse_args()
    serve(Confluent(options.bootstrap, Security.read(options.security)))


if __name__ == "__main__":
    main()
