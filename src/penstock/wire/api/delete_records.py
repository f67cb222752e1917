"""DeleteRecords: move the start of partitions up to an offset."""

from penstock.wire.schema import ApiMessage, Int16, Int32, Int64, Message, String


class DeleteRecordsPartition(Message):
    partition_index: Int32 = 0
    offset: Int64 = 0


class DeleteRecordsTopic(Message):
    name: String = ""
    partitions: list[DeleteRecordsPartition] = []


class DeleteRecordsRequest(ApiMessage):
    api_key = 21
    min_version = 0
    max_version = 2
    flexible_from = 2

    topics: list[DeleteRecordsTopic] = []
    timeout_ms: Int32 = 0


class DeleteRecordsPartitionResult(Message):
    partition_index: Int32 = 0
    low_watermark: Int64 = 0
    error_code: Int16 = 0


class DeleteRecordsTopicResult(Message):
    name: String = ""
    partitions: list[DeleteRecordsPartitionResult] = []


class DeleteRecordsResponse(ApiMessage):
    api_key = 21
    min_version = 0
    max_version = 2
    flexible_from = 2

    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult] = []
