"""OffsetForLeaderEpoch: where a leader epoch ended, by which readers detect truncation."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Int16, Int32, Int64, Message, String


class OffsetForLeaderPartition(Message):
    partition: Int32 = 0
    current_leader_epoch: Annotated[Int32, "2+", "ignorable"] = -1
    leader_epoch: Int32 = 0


class OffsetForLeaderTopic(Message):
    topic: String = ""
    partitions: list[OffsetForLeaderPartition] = []


class OffsetForLeaderEpochRequest(ApiMessage):
    api_key = 23
    min_version = 0
    max_version = 4
    flexible_from = 4

    replica_id: Annotated[Int32, "3+", "ignorable"] = -2
    topics: list[OffsetForLeaderTopic] = []


class EpochEndOffset(Message):
    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Annotated[Int32, "1+", "ignorable"] = -1
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(Message):
    topic: String = ""
    partitions: list[EpochEndOffset] = []


class OffsetForLeaderEpochResponse(ApiMessage):
    api_key = 23
    min_version = 0
    max_version = 4
    flexible_from = 4

    throttle_time_ms: Annotated[Int32, "2+", "ignorable"] = 0
    topics: list[OffsetForLeaderTopicResult] = []
