"""OffsetDelete: forget offsets of topics to which no member of the group is subscribed."""

from penstock.wire.schema import NEVER_FLEXIBLE, ApiMessage, Int16, Int32, Message, String


class OffsetDeleteRequestPartition(Message):
    partition_index: Int32 = 0


class OffsetDeleteRequestTopic(Message):
    name: String = ""
    partitions: list[OffsetDeleteRequestPartition] = []


class OffsetDeleteRequest(ApiMessage):
    api_key = 47
    min_version = 0
    max_version = 0
    flexible_from = NEVER_FLEXIBLE

    group_id: String = ""
    topics: list[OffsetDeleteRequestTopic] = []


class OffsetDeleteResponsePartition(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetDeleteResponseTopic(Message):
    name: String = ""
    partitions: list[OffsetDeleteResponsePartition] = []


class OffsetDeleteResponse(ApiMessage):
    api_key = 47
    min_version = 0
    max_version = 0
    flexible_from = NEVER_FLEXIBLE

    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic] = []
