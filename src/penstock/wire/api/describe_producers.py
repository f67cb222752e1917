"""DescribeProducers: the idempotent producers that a partition remembers."""

from penstock.wire.schema import ApiMessage, Int16, Int32, Int64, Message, String


class TopicRequest(Message):
    name: String = ""
    partition_indexes: list[Int32] = []


class DescribeProducersRequest(ApiMessage):
    api_key = 61
    min_version = 0
    max_version = 0
    flexible_from = 0

    topics: list[TopicRequest] = []


class ProducerState(Message):
    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


class PartitionResponse(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    active_producers: list[ProducerState] = []


class TopicResponse(Message):
    name: String = ""
    partitions: list[PartitionResponse] = []


class DescribeProducersResponse(ApiMessage):
    api_key = 61
    min_version = 0
    max_version = 0
    flexible_from = 0

    throttle_time_ms: Int32 = 0
    topics: list[TopicResponse] = []
