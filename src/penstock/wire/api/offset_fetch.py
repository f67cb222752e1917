"""OffsetFetch: committed offsets of a group; of several groups from version 8. Topic ids from version 10."""

from typing import Annotated

from penstock.wire.schema import ZERO_UUID, ApiMessage, Bool, Int16, Int32, Int64, Message, String, Uuid


class OffsetFetchRequestTopic(Message):
    name: String = ""
    partition_indexes: list[Int32] = []


class OffsetFetchRequestTopics(Message):
    name: Annotated[String, "8-9", "ignorable"] = ""
    topic_id: Annotated[Uuid, "10+", "ignorable"] = ZERO_UUID
    partition_indexes: list[Int32] = []


class OffsetFetchRequestGroup(Message):
    group_id: String = ""
    member_id: Annotated[String | None, "9+", "ignorable"] = None
    member_epoch: Annotated[Int32, "9+", "ignorable"] = -1
    topics: list[OffsetFetchRequestTopics] | None = []


class OffsetFetchRequest(ApiMessage):
    api_key = 9
    min_version = 0
    max_version = 10
    flexible_from = 6

    group_id: Annotated[String, "0-7"] = ""
    topics: Annotated[list[OffsetFetchRequestTopic] | None, "0-7", "nullable 2-7"] = []
    groups: Annotated[list[OffsetFetchRequestGroup], "8+"] = []
    require_stable: Annotated[Bool, "7+"] = False


class OffsetFetchResponsePartition(Message):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, "5-7", "ignorable"] = -1
    metadata: String | None = ""
    error_code: Int16 = 0


class OffsetFetchResponseTopic(Message):
    name: String = ""
    partitions: list[OffsetFetchResponsePartition] = []


class OffsetFetchResponsePartitions(Message):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = -1
    metadata: String | None = ""
    error_code: Int16 = 0


class OffsetFetchResponseTopics(Message):
    name: Annotated[String, "8-9", "ignorable"] = ""
    topic_id: Annotated[Uuid, "10+", "ignorable"] = ZERO_UUID
    partitions: list[OffsetFetchResponsePartitions] = []


class OffsetFetchResponseGroup(Message):
    group_id: String = ""
    topics: list[OffsetFetchResponseTopics] = []
    error_code: Int16 = 0


class OffsetFetchResponse(ApiMessage):
    api_key = 9
    min_version = 0
    max_version = 10
    flexible_from = 6

    throttle_time_ms: Annotated[Int32, "3+", "ignorable"] = 0
    topics: Annotated[list[OffsetFetchResponseTopic], "0-7"] = []
    error_code: Annotated[Int16, "2-7", "ignorable"] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], "8+"] = []
