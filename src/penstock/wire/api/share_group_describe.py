"""ShareGroupDescribe: members and assignments of share groups."""

import msgspec

from penstock.wire.schema import ZERO_UUID, ApiMessage, Bool, Int16, Int32, Message, String, Uuid


class ShareGroupDescribeRequest(ApiMessage):
    api_key = 77
    min_version = 0
    max_version = 1
    flexible_from = 0

    group_ids: list[String] = []
    include_authorized_operations: Bool = False


class TopicPartitions(Message):
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""
    partitions: list[Int32] = []


class Assignment(Message):
    topic_partitions: list[TopicPartitions] = []


class Member(Message):
    member_id: String = ""
    rack_id: String | None = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = []
    assignment: Assignment = msgspec.field(default_factory=Assignment)


class DescribedGroup(Message):
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: list[Member] = []
    authorized_operations: Int32 = -0x80000000


class ShareGroupDescribeResponse(ApiMessage):
    api_key = 77
    min_version = 0
    max_version = 1
    flexible_from = 0

    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = []
