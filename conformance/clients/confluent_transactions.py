"""Transactions of confluent-kafka."""

from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from conformance.clients.transactor import ABORTED, COMMITTED, UNKNOWN, Consumed, Link, Transactor, Work
from conformance.clients.voice import HEARTBEAT_INTERVAL_MS, POLL_MS, SESSION_TIMEOUT_MS

STEP_TIMEOUT_S = 60.0
LINK_TIMEOUT_S = 5.0
TRIES = 2
"""So often a link tries a step again that the library calls retriable; then it ends, and another takes over."""
# Comes back soon after a broker does; everything else is as users run it.
RESTLESS: dict[str, Any] = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 250,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 250,
    "socket.timeout.ms": 5_000,
    "log_level": 0,
}


class ConfluentTransactor(Transactor):
    def __init__(self, common: dict[str, Any]) -> None:
        self.common = common
        self.producer: Any = None

    def open(self, id: str, timeout_ms: int) -> None:
        self.producer = Producer(
            {
                **self.common,
                "transactional.id": id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
                "linger.ms": 5,
                "log_level": 0,
            }
        )
        self.producer.init_transactions(STEP_TIMEOUT_S)

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, records: list[tuple[int, bytes]]) -> list[int]:
        offsets: dict[int, int] = {}
        errors: list[KafkaError] = []

        def delivered(at: int, error: KafkaError | None, message: Message) -> None:
            if error is not None:
                errors.append(error)
            offset = message.offset()
            offsets[at] = -1 if offset is None else offset

        for at, (partition, value) in enumerate(records):
            self.producer.produce(topic, value, partition=partition, on_delivery=partial(delivered, at))
        self.producer.flush(STEP_TIMEOUT_S)
        if errors:
            raise KafkaException(errors[0])
        return [offsets[at] for at in range(len(records))]

    def offsets(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        consumer = Consumer({**self.common, "group.id": group})
        try:
            committed = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
            metadata = consumer.consumer_group_metadata()
            self.producer.send_offsets_to_transaction(committed, metadata, STEP_TIMEOUT_S)
        finally:
            consumer.close()

    def commit(self) -> None:
        self.producer.commit_transaction(STEP_TIMEOUT_S)

    def abort(self) -> None:
        self.producer.abort_transaction(STEP_TIMEOUT_S)

    def close(self) -> None:
        self.producer = None


def run_link(common: dict[str, Any], link: Link) -> None:
    """Until told to leave. A fatal error ends it: whoever runs it starts another."""
    producer = Producer(
        {
            **common,
            **RESTLESS,
            "transactional.id": link.id,
            "transaction.timeout.ms": link.timeout_ms,
            "message.timeout.ms": link.timeout_ms,
            "linger.ms": 0,
        }
    )
    producer.init_transactions(STEP_TIMEOUT_S)
    consumer = Consumer(
        {
            **common,
            **RESTLESS,
            "group.id": link.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "partition.assignment.strategy": "range",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
            "fetch.wait.max.ms": POLL_MS,
        }
    )
    if link.assigned is None:
        consumer.subscribe([link.input])
    else:
        consumer.assign([TopicPartition(link.input, partition) for partition in link.assigned])
    link.ready()
    try:
        while not link.told_to_leave:
            taken = [
                Consumed(message.partition() or 0, message.offset() or 0, (message.value() or b"").decode())
                for message in consumer.consume(link.batch, POLL_MS / 1000)
                if message.error() is None
            ]
            if taken:
                _transact(producer, consumer, link, link.work(taken))
    finally:
        consumer.close()


def _transact(producer: Any, consumer: Consumer, link: Link, work: Work) -> None:
    """One transaction; after an abort the same records are consumed again."""
    asked = False
    try:
        producer.begin_transaction()
        for topic, partition, value in work.appends:
            producer.produce(topic, value.encode(), partition=partition)
        ends = [TopicPartition(link.input, partition, offset) for partition, offset in work.ends.items()]
        metadata = consumer.consumer_group_metadata()
        _again(lambda: producer.send_offsets_to_transaction(ends, metadata, LINK_TIMEOUT_S))
        if work.to_abort:
            _again(lambda: producer.abort_transaction(LINK_TIMEOUT_S))
        else:
            producer.flush(LINK_TIMEOUT_S)
            link.asked(work)
            asked = True
            _again(lambda: producer.commit_transaction(LINK_TIMEOUT_S))
    except KafkaException as refused:
        if not refused.args[0].txn_requires_abort():
            link.ended(work, UNKNOWN if asked else ABORTED, str(refused))
            raise
        _again(lambda: producer.abort_transaction(LINK_TIMEOUT_S))
        link.ended(work, ABORTED, str(refused))
    else:
        link.ended(work, ABORTED if work.to_abort else COMMITTED)
        if not work.to_abort:
            return
    mine = {one.partition for one in consumer.assignment()}
    for partition, offset in work.starts.items():
        if partition in mine:
            consumer.seek(TopicPartition(link.input, partition, offset))


def _again(step: Any) -> None:
    """What the library calls retriable is tried again."""
    for left in reversed(range(TRIES)):
        try:
            step()
            return
        except KafkaException as refused:
            if not left or not refused.args[0].retriable():
                raise
