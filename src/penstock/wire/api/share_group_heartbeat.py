"""ShareGroupHeartbeat: join, stay in and leave a share group."""

from penstock.wire.schema import ZERO_UUID, ApiMessage, Int16, Int32, Message, String, Uuid


class ShareGroupHeartbeatRequest(ApiMessage):
    api_key = 76
    min_version = 0
    max_version = 1
    flexible_from = 0

    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    rack_id: String | None = None
    subscribed_topic_names: list[String] | None = None


class TopicPartitions(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


class Assignment(Message):
    topic_partitions: list[TopicPartitions] = []


class ShareGroupHeartbeatResponse(ApiMessage):
    api_key = 76
    min_version = 0
    max_version = 1
    flexible_from = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None
