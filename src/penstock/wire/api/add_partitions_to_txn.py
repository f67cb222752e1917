"""AddPartitionsToTxn: partitions join a transaction. From version 4 batched, for brokers."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Bool, Int16, Int32, Int64, Message, String


class AddPartitionsToTxnTopic(Message):
    name: String = ""
    partitions: list[Int32] = []


class AddPartitionsToTxnTransaction(Message):
    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    verify_only: Bool = False
    topics: list[AddPartitionsToTxnTopic] = []


class AddPartitionsToTxnRequest(ApiMessage):
    api_key = 24
    min_version = 0
    max_version = 5
    flexible_from = 3

    transactions: Annotated[list[AddPartitionsToTxnTransaction], "4+"] = []
    v3_and_below_transactional_id: Annotated[String, "0-3"] = ""
    v3_and_below_producer_id: Annotated[Int64, "0-3"] = 0
    v3_and_below_producer_epoch: Annotated[Int16, "0-3"] = 0
    v3_and_below_topics: Annotated[list[AddPartitionsToTxnTopic], "0-3"] = []


class AddPartitionsToTxnPartitionResult(Message):
    partition_index: Int32 = 0
    partition_error_code: Int16 = 0


class AddPartitionsToTxnTopicResult(Message):
    name: String = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = []


class AddPartitionsToTxnResult(Message):
    transactional_id: String = ""
    topic_results: list[AddPartitionsToTxnTopicResult] = []


class AddPartitionsToTxnResponse(ApiMessage):
    api_key = 24
    min_version = 0
    max_version = 5
    flexible_from = 3

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, "4+", "ignorable"] = 0
    results_by_transaction: Annotated[list[AddPartitionsToTxnResult], "4+"] = []
    results_by_topic_v3_and_below: Annotated[list[AddPartitionsToTxnTopicResult], "0-3"] = []
