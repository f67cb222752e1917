"""Records of `__transaction_state`: what transaction coordinators remember, each after a two-byte version."""

from typing import Annotated

from penstock.wire.schema import NEVER_FLEXIBLE, Int8, Int16, Int32, Int64, Message, String, TopMessage


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
    previous_producer_id: Annotated[Int64, "1+", "tag 0", "ignorable"] = -1
    next_producer_id: Annotated[Int64, "1+", "tag 1", "ignorable"] = -1
    producer_epoch: Int16 = 0
    transaction_timeout_ms: Int32 = 0
    transaction_status: Int8 = 0
    transaction_partitions: list[PartitionsSchema] | None = []
    transaction_last_update_timestamp_ms: Int64 = 0
    transaction_start_timestamp_ms: Int64 = 0
    client_transaction_version: Annotated[Int16, "1+", "tag 2", "ignorable"] = 0
