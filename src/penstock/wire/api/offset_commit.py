"""OffsetCommit: store the offsets of a group. Topic ids instead of names from version 10."""

from typing import Annotated

from penstock.wire.schema import ZERO_UUID, ApiMessage, Int16, Int32, Int64, Message, String, Uuid


class OffsetCommitRequestPartition(Message):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, "6+", "ignorable"] = -1
    commit_timestamp: Annotated[Int64, "1"] = -1
    committed_metadata: String | None = ""


class OffsetCommitRequestTopic(Message):
    name: Annotated[String, "0-9", "ignorable"] = ""
    topic_id: Annotated[Uuid, "10+", "ignorable"] = ZERO_UUID
    partitions: list[OffsetCommitRequestPartition] = []


class OffsetCommitRequest(ApiMessage):
    api_key = 8
    min_version = 0
    max_version = 10
    flexible_from = 8

    group_id: String = ""
    generation_id_or_member_epoch: Annotated[Int32, "1+", "ignorable"] = -1
    member_id: Annotated[String, "1+", "ignorable"] = ""
    group_instance_id: Annotated[String | None, "7+"] = None
    retention_time_ms: Annotated[Int64, "2-4", "ignorable"] = -1
    topics: list[OffsetCommitRequestTopic] = []


class OffsetCommitResponsePartition(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetCommitResponseTopic(Message):
    name: Annotated[String, "0-9", "ignorable"] = ""
    topic_id: Annotated[Uuid, "10+", "ignorable"] = ZERO_UUID
    partitions: list[OffsetCommitResponsePartition] = []


class OffsetCommitResponse(ApiMessage):
    api_key = 8
    min_version = 0
    max_version = 10
    flexible_from = 8

    throttle_time_ms: Annotated[Int32, "3+", "ignorable"] = 0
    topics: list[OffsetCommitResponseTopic] = []
