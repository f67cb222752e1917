"""The records of `__transaction_state`, in Kafka's formats, so that Kafka's own tools can read the topic.

A key is two bytes of version and the transactional id. A value is two bytes of version and what is to be
known of that id; a null value is a tombstone. Version 0 is read, for a log that Kafka wrote; version 1 is
written. What the last epoch of a producer was is not stored: a retry of InitProducerId that comes after a new
coordinator took over is refused, in Kafka too.
"""
# ruff: noqa: RUF012 - msgspec gives each struct its own copy of an empty list

from struct import Struct
from typing import Annotated

from penstock.transactions.transaction import NO_PRODUCER, Place, State, Transaction
from penstock.wire.buffers import Buffer
from penstock.wire.codec import decode, encode
from penstock.wire.errors import WireError
from penstock.wire.schema import NEVER_FLEXIBLE, Int8, Int16, Int32, Int64, Message, String, TopMessage

VALUE_VERSION = 1
_VERSION = Struct(">h")


class TransactionLogKey(TopMessage):
    min_version = 0
    max_version = 0
    flexible_from = NEVER_FLEXIBLE

    transactional_id: String = ""


class PartitionsSchema(Message):
    topic: String = ""
    partition_ids: list[Int32] = []


class TransactionLogValue(TopMessage):
    min_version = 0
    max_version = 1
    flexible_from = 1

    producer_id: Int64 = 0
    previous_producer_id: Annotated[Int64, "1+", "tag 0", "ignorable"] = NO_PRODUCER
    next_producer_id: Annotated[Int64, "1+", "tag 1", "ignorable"] = NO_PRODUCER
    producer_epoch: Int16 = 0
    transaction_timeout_ms: Int32 = 0
    transaction_status: Int8 = 0
    transaction_partitions: list[PartitionsSchema] | None = []
    transaction_last_update_timestamp_ms: Int64 = 0
    transaction_start_timestamp_ms: Int64 = 0
    client_transaction_version: Annotated[Int16, "1+", "tag 2", "ignorable"] = 0


def to_key(transactional_id: str) -> bytes:
    return _VERSION.pack(0) + encode(TransactionLogKey(transactional_id=transactional_id), 0)


def to_value(transaction: Transaction) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.places):
        by_topic.setdefault(topic, []).append(partition)
    partitions = [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in by_topic.items()]
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=None if transaction.state is State.EMPTY else partitions,
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        client_transaction_version=transaction.client_version,
    )
    return _VERSION.pack(VALUE_VERSION) + encode(value, VALUE_VERSION)


def read_record(key: Buffer, value: Buffer | None) -> tuple[str, Transaction | None] | None:
    """The id and what is known of it (None: a tombstone). None for a key of a version from the future. Raises
    WireError for what does not parse."""
    if _version(key) != 0:
        return None
    named, _end = decode(TransactionLogKey, 0, key, _VERSION.size)
    transactional_id = named.transactional_id
    if value is None:
        return transactional_id, None
    version = _version(value)
    if not TransactionLogValue.min_version <= version <= TransactionLogValue.max_version:
        raise WireError(f"a record of version {version} of transactional id {transactional_id!r}")
    found, _end = decode(TransactionLogValue, version, value, _VERSION.size)
    try:
        state = State(found.transaction_status)
    except ValueError:
        raise WireError(
            f"transactional id {transactional_id!r} in state {found.transaction_status}"
        ) from None
    places = frozenset(
        Place(topic.topic, partition)
        for topic in found.transaction_partitions or ()
        for partition in topic.partition_ids
    )
    return transactional_id, Transaction(
        producer_id=found.producer_id,
        previous_producer_id=found.previous_producer_id,
        next_producer_id=found.next_producer_id,
        epoch=found.producer_epoch,
        timeout_ms=found.transaction_timeout_ms,
        state=state,
        places=places,
        start_ms=found.transaction_start_timestamp_ms,
        updated_ms=found.transaction_last_update_timestamp_ms,
        client_version=found.client_transaction_version,
    )


def _version(data: Buffer) -> int:
    if len(data) < _VERSION.size:
        raise WireError("a record of less than two bytes")
    version: int = _VERSION.unpack_from(data)[0]
    return version
