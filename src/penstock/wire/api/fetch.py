"""Fetch: read records of many partitions at once. Sessions from version 7, topic ids from version 13."""

from typing import Annotated

import msgspec

from penstock.wire.schema import (
    ZERO_UUID,
    ApiMessage,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    String,
    Uuid,
)


class ReplicaState(Message):
    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchPartition(Message):
    partition: Int32 = 0
    current_leader_epoch: Annotated[Int32, "9+", "ignorable"] = -1
    fetch_offset: Int64 = 0
    last_fetched_epoch: Annotated[Int32, "12+"] = -1
    log_start_offset: Annotated[Int64, "5+", "ignorable"] = -1
    partition_max_bytes: Int32 = 0
    replica_directory_id: Annotated[Uuid, "17+", "tag 0", "ignorable"] = ZERO_UUID
    high_watermark: Annotated[Int64, "18+", "tag 1", "ignorable"] = 0x7FFFFFFFFFFFFFFF


class FetchTopic(Message):
    topic: Annotated[String, "0-12", "ignorable"] = ""
    topic_id: Annotated[Uuid, "13+", "ignorable"] = ZERO_UUID
    partitions: list[FetchPartition] = []


class ForgottenTopic(Message):
    topic: Annotated[String, "7-12", "ignorable"] = ""
    topic_id: Annotated[Uuid, "13+", "ignorable"] = ZERO_UUID
    partitions: list[Int32] = []


class FetchRequest(ApiMessage):
    api_key = 1
    min_version = 0
    max_version = 18
    flexible_from = 12

    cluster_id: Annotated[String | None, "12+", "tag 0", "ignorable"] = None
    replica_id: Annotated[Int32, "0-14"] = -1
    replica_state: Annotated[ReplicaState, "15+", "tag 1"] = msgspec.field(default_factory=ReplicaState)
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Annotated[Int32, "3+", "ignorable"] = 0x7FFFFFFF
    isolation_level: Annotated[Int8, "4+", "ignorable"] = 0
    session_id: Annotated[Int32, "7+", "ignorable"] = 0
    session_epoch: Annotated[Int32, "7+", "ignorable"] = -1
    topics: list[FetchTopic] = []
    forgotten_topics_data: Annotated[list[ForgottenTopic], "7+"] = []
    rack_id: Annotated[String, "11+", "ignorable"] = ""


class EpochEndOffset(Message):
    epoch: Int32 = -1
    end_offset: Int64 = -1


class LeaderIdAndEpoch(Message):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class SnapshotId(Message):
    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(Message):
    producer_id: Int64 = 0
    first_offset: Int64 = 0


class PartitionData(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Annotated[Int64, "4+", "ignorable"] = -1
    log_start_offset: Annotated[Int64, "5+", "ignorable"] = -1
    diverging_epoch: Annotated[EpochEndOffset, "12+", "tag 0"] = msgspec.field(default_factory=EpochEndOffset)
    current_leader: Annotated[LeaderIdAndEpoch, "12+", "tag 1"] = msgspec.field(
        default_factory=LeaderIdAndEpoch
    )
    snapshot_id: Annotated[SnapshotId, "12+", "tag 2"] = msgspec.field(default_factory=SnapshotId)
    aborted_transactions: Annotated[list[AbortedTransaction] | None, "4+", "ignorable"] = []
    preferred_read_replica: Annotated[Int32, "11+"] = -1
    records: Records | None = None


class FetchableTopicResponse(Message):
    topic: Annotated[String, "0-12", "ignorable"] = ""
    topic_id: Annotated[Uuid, "13+", "ignorable"] = ZERO_UUID
    partitions: list[PartitionData] = []


class NodeEndpoint(Message):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class FetchResponse(ApiMessage):
    api_key = 1
    min_version = 0
    max_version = 18
    flexible_from = 12

    throttle_time_ms: Annotated[Int32, "1+", "ignorable"] = 0
    error_code: Annotated[Int16, "7+", "ignorable"] = 0
    session_id: Annotated[Int32, "7+"] = 0
    responses: list[FetchableTopicResponse] = []
    node_endpoints: Annotated[list[NodeEndpoint], "16+", "tag 0"] = []
