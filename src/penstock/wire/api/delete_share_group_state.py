"""DeleteShareGroupState: drop the persisted state of share partitions (between brokers)."""

from penstock.wire.schema import ZERO_UUID, ApiMessage, Int16, Int32, Message, String, Uuid


class PartitionData(Message):
    partition: Int32 = 0


class DeleteStateData(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = []


class DeleteShareGroupStateRequest(ApiMessage):
    api_key = 86
    min_version = 0
    max_version = 0
    flexible_from = 0

    group_id: String = ""
    topics: list[DeleteStateData] = []


class PartitionResult(Message):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class DeleteStateResult(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionResult] = []


class DeleteShareGroupStateResponse(ApiMessage):
    api_key = 86
    min_version = 0
    max_version = 0
    flexible_from = 0

    results: list[DeleteStateResult] = []
