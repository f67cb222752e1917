"""TxnOffsetCommit: store the offsets of a group as part of a transaction."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Int16, Int32, Int64, Message, String


class TxnOffsetCommitRequestPartition(Message):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, "2+", "ignorable"] = -1
    committed_metadata: String | None = ""


class TxnOffsetCommitRequestTopic(Message):
    name: String = ""
    partitions: list[TxnOffsetCommitRequestPartition] = []


class TxnOffsetCommitRequest(ApiMessage):
    api_key = 28
    min_version = 0
    max_version = 5
    flexible_from = 3

    transactional_id: String = ""
    group_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    generation_id: Annotated[Int32, "3+"] = -1
    member_id: Annotated[String, "3+"] = ""
    group_instance_id: Annotated[String | None, "3+"] = None
    topics: list[TxnOffsetCommitRequestTopic] = []


class TxnOffsetCommitResponsePartition(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class TxnOffsetCommitResponseTopic(Message):
    name: String = ""
    partitions: list[TxnOffsetCommitResponsePartition] = []


class TxnOffsetCommitResponse(ApiMessage):
    api_key = 28
    min_version = 0
    max_version = 5
    flexible_from = 3

    throttle_time_ms: Int32 = 0
    topics: list[TxnOffsetCommitResponseTopic] = []
