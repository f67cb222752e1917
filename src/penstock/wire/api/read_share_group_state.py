"""ReadShareGroupState: the persisted state of share partitions (between brokers)."""

from penstock.wire.schema import ZERO_UUID, ApiMessage, Int8, Int16, Int32, Int64, Message, String, Uuid


class PartitionData(Message):
    partition: Int32 = 0
    leader_epoch: Int32 = 0


class ReadStateData(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = []


class ReadShareGroupStateRequest(ApiMessage):
    api_key = 84
    min_version = 0
    max_version = 0
    flexible_from = 0

    group_id: String = ""
    topics: list[ReadStateData] = []


class StateBatch(Message):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_state: Int8 = 0
    delivery_count: Int16 = 0


class PartitionResult(Message):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    state_epoch: Int32 = 0
    start_offset: Int64 = 0
    state_batches: list[StateBatch] = []


class ReadStateResult(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionResult] = []


class ReadShareGroupStateResponse(ApiMessage):
    api_key = 84
    min_version = 0
    max_version = 0
    flexible_from = 0

    results: list[ReadStateResult] = []
