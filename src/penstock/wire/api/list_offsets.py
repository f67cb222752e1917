"""ListOffsets: offsets by timestamp, and the first and last. Version 0 answers with lists of offsets."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Int8, Int16, Int32, Int64, Message, String


class ListOffsetsPartition(Message):
    partition_index: Int32 = 0
    current_leader_epoch: Annotated[Int32, "4+", "ignorable"] = -1
    timestamp: Int64 = 0
    max_num_offsets: Annotated[Int32, "0"] = 1


class ListOffsetsTopic(Message):
    name: String = ""
    partitions: list[ListOffsetsPartition] = []


class ListOffsetsRequest(ApiMessage):
    api_key = 2
    min_version = 0
    max_version = 11
    flexible_from = 6

    replica_id: Int32 = 0
    isolation_level: Annotated[Int8, "2+"] = 0
    topics: list[ListOffsetsTopic] = []
    timeout_ms: Annotated[Int32, "10+", "ignorable"] = 0


class ListOffsetsPartitionResponse(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    old_style_offsets: Annotated[list[Int64], "0"] = []
    timestamp: Annotated[Int64, "1+"] = -1
    offset: Annotated[Int64, "1+"] = -1
    leader_epoch: Annotated[Int32, "4+"] = -1


class ListOffsetsTopicResponse(Message):
    name: String = ""
    partitions: list[ListOffsetsPartitionResponse] = []


class ListOffsetsResponse(ApiMessage):
    api_key = 2
    min_version = 0
    max_version = 11
    flexible_from = 6

    throttle_time_ms: Annotated[Int32, "2+", "ignorable"] = 0
    topics: list[ListOffsetsTopicResponse] = []
