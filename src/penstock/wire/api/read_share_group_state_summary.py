"""ReadShareGroupStateSummary: start offset and epochs of share partitions (between brokers)."""

from typing import Annotated

from penstock.wire.schema import ZERO_UUID, ApiMessage, Int16, Int32, Int64, Message, String, Uuid


class PartitionData(Message):
    partition: Int32 = 0
    leader_epoch: Int32 = 0


class ReadStateSummaryData(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = []


class ReadShareGroupStateSummaryRequest(ApiMessage):
    api_key = 87
    min_version = 0
    max_version = 1
    flexible_from = 0

    group_id: String = ""
    topics: list[ReadStateSummaryData] = []


class PartitionResult(Message):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Annotated[Int32, "1+", "ignorable"] = -1


class ReadStateSummaryResult(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionResult] = []


class ReadShareGroupStateSummaryResponse(ApiMessage):
    api_key = 87
    min_version = 0
    max_version = 1
    flexible_from = 0

    results: list[ReadStateSummaryResult] = []
