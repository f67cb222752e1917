"""DescribeTransactions: state, producer and partitions of transactions by id."""

from penstock.wire.schema import ApiMessage, Int16, Int32, Int64, Message, String


class DescribeTransactionsRequest(ApiMessage):
    api_key = 65
    min_version = 0
    max_version = 0
    flexible_from = 0

    transactional_ids: list[String] = []


class TopicData(Message):
    topic: String = ""
    partitions: list[Int32] = []


class TransactionState(Message):
    error_code: Int16 = 0
    transactional_id: String = ""
    transaction_state: String = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: list[TopicData] = []


class DescribeTransactionsResponse(ApiMessage):
    api_key = 65
    min_version = 0
    max_version = 0
    flexible_from = 0

    throttle_time_ms: Int32 = 0
    transaction_states: list[TransactionState] = []
