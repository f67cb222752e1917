"""WriteShareGroupState: persist the state of share partitions (between brokers)."""

from typing import Annotated

from penstock.wire.schema import ZERO_UUID, ApiMessage, Int8, Int16, Int32, Int64, Message, String, Uuid


class StateBatch(Message):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_state: Int8 = 0
    delivery_count: Int16 = 0


class PartitionData(Message):
    partition: Int32 = 0
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Annotated[Int32, "1+", "ignorable"] = -1
    state_batches: list[StateBatch] = []


class WriteStateData(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = []


class WriteShareGroupStateRequest(ApiMessage):
    api_key = 85
    min_version = 0
    max_version = 1
    flexible_from = 0

    group_id: String = ""
    topics: list[WriteStateData] = []


class PartitionResult(Message):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class WriteStateResult(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionResult] = []


class WriteShareGroupStateResponse(ApiMessage):
    api_key = 85
    min_version = 0
    max_version = 1
    flexible_from = 0

    results: list[WriteStateResult] = []
