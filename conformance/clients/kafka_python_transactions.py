"""Transactions of kafka-python."""

from typing import Any

from kafka import KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from conformance.clients.transactor import Transactor

STEP_TIMEOUT_S = 60.0


class KafkaPythonTransactor(Transactor):
    def __init__(self, common: dict[str, Any]) -> None:
        self.common = common
        self.producer: Any = None

    def open(self, id: str, timeout_ms: int) -> None:
        self.producer = KafkaProducer(
            **self.common, transactional_id=id, transaction_timeout_ms=timeout_ms, linger_ms=5
        )
        self.producer.init_transactions()

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, records: list[tuple[int, bytes]]) -> list[int]:
        waiting = [self.producer.send(topic, value, partition=where) for where, value in records]
        self.producer.flush(STEP_TIMEOUT_S)
        return [future.get(STEP_TIMEOUT_S).offset for future in waiting]

    def offsets(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        committed = {
            TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in offsets.items()
        }
        self.producer.send_offsets_to_transaction(committed, group)

    def commit(self) -> None:
        self.producer.commit_transaction()

    def abort(self) -> None:
        self.producer.abort_transaction()

    def close(self) -> None:
        self.producer.close(timeout=5)
