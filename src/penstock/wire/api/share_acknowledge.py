"""ShareAcknowledge: accept, release or reject records acquired by a share fetch."""

from typing import Annotated

import msgspec

from penstock.wire.schema import ZERO_UUID, ApiMessage, Bool, Int8, Int16, Int32, Int64, Message, String, Uuid


class AcknowledgementBatch(Message):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    acknowledge_types: list[Int8] = []


class AcknowledgePartition(Message):
    partition_index: Int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = []


class AcknowledgeTopic(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[AcknowledgePartition] = []


class ShareAcknowledgeRequest(ApiMessage):
    api_key = 79
    min_version = 0
    max_version = 2
    flexible_from = 0

    group_id: String | None = None
    member_id: String | None = ""
    share_session_epoch: Int32 = 0
    is_renew_ack: Annotated[Bool, "2+"] = False
    topics: list[AcknowledgeTopic] = []


class LeaderIdAndEpoch(Message):
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class PartitionData(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    current_leader: LeaderIdAndEpoch = msgspec.field(default_factory=LeaderIdAndEpoch)


class ShareAcknowledgeTopicResponse(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = []


class NodeEndpoint(Message):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class ShareAcknowledgeResponse(ApiMessage):
    api_key = 79
    min_version = 0
    max_version = 2
    flexible_from = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acquisition_lock_timeout_ms: Annotated[Int32, "2+", "ignorable"] = 0
    responses: list[ShareAcknowledgeTopicResponse] = []
    node_endpoints: list[NodeEndpoint] = []
