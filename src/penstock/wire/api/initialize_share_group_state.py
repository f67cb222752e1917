"""InitializeShareGroupState: set the start of share partitions (between brokers)."""

from penstock.wire.schema import ZERO_UUID, ApiMessage, Int16, Int32, Int64, Message, String, Uuid


class PartitionData(Message):
    partition: Int32 = 0
    state_epoch: Int32 = 0
    start_offset: Int64 = 0


class InitializeStateData(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = []


class InitializeShareGroupStateRequest(ApiMessage):
    api_key = 83
    min_version = 0
    max_version = 0
    flexible_from = 0

    group_id: String = ""
    topics: list[InitializeStateData] = []


class PartitionResult(Message):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class InitializeStateResult(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionResult] = []


class InitializeShareGroupStateResponse(ApiMessage):
    api_key = 83
    min_version = 0
    max_version = 0
    flexible_from = 0

    results: list[InitializeStateResult] = []
