"""ConsumerGroupHeartbeat: join, stay in, reconcile and leave a group by the KIP-848 protocol."""

from typing import Annotated

from penstock.wire.schema import ZERO_UUID, ApiMessage, Int16, Int32, Message, String, Uuid


class TopicPartitions(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


class ConsumerGroupHeartbeatRequest(ApiMessage):
    api_key = 68
    min_version = 0
    max_version = 1
    flexible_from = 0

    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[String] | None = None
    subscribed_topic_regex: Annotated[String | None, "1+"] = None
    server_assignor: String | None = None
    topic_partitions: list[TopicPartitions] | None = None


class Assignment(Message):
    topic_partitions: list[TopicPartitions] = []


class ConsumerGroupHeartbeatResponse(ApiMessage):
    api_key = 68
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
