"""Produce: append records. Message sets of magic 0 and 1 up to version 2, topic ids from version 13."""

from typing import Annotated

import msgspec

from penstock.wire.schema import ZERO_UUID, ApiMessage, Int16, Int32, Int64, Message, Records, String, Uuid


class PartitionProduceData(Message):
    index: Int32 = 0
    records: Records | None = None


class TopicProduceData(Message):
    name: Annotated[String, "0-12", "ignorable"] = ""
    topic_id: Annotated[Uuid, "13+", "ignorable"] = ZERO_UUID
    partition_data: list[PartitionProduceData] = []


class ProduceRequest(ApiMessage):
    api_key = 0
    min_version = 0
    max_version = 13
    flexible_from = 9

    transactional_id: Annotated[String | None, "3+"] = None
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: list[TopicProduceData] = []


class BatchIndexAndErrorMessage(Message):
    batch_index: Int32 = 0
    batch_index_error_message: String | None = None


class LeaderIdAndEpoch(Message):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class PartitionProduceResponse(Message):
    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = 0
    log_append_time_ms: Annotated[Int64, "2+", "ignorable"] = -1
    log_start_offset: Annotated[Int64, "5+", "ignorable"] = -1
    record_errors: Annotated[list[BatchIndexAndErrorMessage], "8+", "ignorable"] = []
    error_message: Annotated[String | None, "8+", "ignorable"] = None
    current_leader: Annotated[LeaderIdAndEpoch, "10+", "tag 0"] = msgspec.field(
        default_factory=LeaderIdAndEpoch
    )


class TopicProduceResponse(Message):
    name: Annotated[String, "0-12", "ignorable"] = ""
    topic_id: Annotated[Uuid, "13+", "ignorable"] = ZERO_UUID
    partition_responses: list[PartitionProduceResponse] = []


class NodeEndpoint(Message):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class ProduceResponse(ApiMessage):
    api_key = 0
    min_version = 0
    max_version = 13
    flexible_from = 9

    responses: list[TopicProduceResponse] = []
    throttle_time_ms: Annotated[Int32, "1+", "ignorable"] = 0
    node_endpoints: Annotated[list[NodeEndpoint], "10+", "tag 0"] = []
