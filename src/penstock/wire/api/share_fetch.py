"""ShareFetch: acquire records for a member of a share group, and acknowledge earlier ones."""

from typing import Annotated

import msgspec

from penstock.wire.schema import (
    ZERO_UUID,
    ApiMessage,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    String,
    Uuid,
)


class AcknowledgementBatch(Message):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    acknowledge_types: list[Int8] = []


class FetchPartition(Message):
    partition_index: Int32 = 0
    partition_max_bytes: Annotated[Int32, "0"] = 0
    acknowledgement_batches: list[AcknowledgementBatch] = []


class FetchTopic(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[FetchPartition] = []


class ForgottenTopic(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


class ShareFetchRequest(ApiMessage):
    api_key = 78
    min_version = 0
    max_version = 2
    flexible_from = 0

    group_id: String | None = None
    member_id: String | None = ""
    share_session_epoch: Int32 = 0
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 0x7FFFFFFF
    max_records: Annotated[Int32, "1+"] = 0
    batch_size: Annotated[Int32, "1+"] = 0
    share_acquire_mode: Annotated[Int8, "2+", "ignorable"] = 0
    is_renew_ack: Annotated[Bool, "2+"] = False
    topics: list[FetchTopic] = []
    forgotten_topics_data: list[ForgottenTopic] = []


class LeaderIdAndEpoch(Message):
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class AcquiredRecords(Message):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_count: Int16 = 0


class PartitionData(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acknowledge_error_code: Int16 = 0
    acknowledge_error_message: String | None = None
    current_leader: LeaderIdAndEpoch = msgspec.field(default_factory=LeaderIdAndEpoch)
    records: Annotated[Records | None, "nullable 0"] = None
    acquired_records: list[AcquiredRecords] = []


class ShareFetchableTopicResponse(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = []


class NodeEndpoint(Message):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class ShareFetchResponse(ApiMessage):
    api_key = 78
    min_version = 0
    max_version = 2
    flexible_from = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acquisition_lock_timeout_ms: Annotated[Int32, "1+"] = 0
    responses: list[ShareFetchableTopicResponse] = []
    node_endpoints: list[NodeEndpoint] = []
