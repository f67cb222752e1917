"""StreamsGroupDescribe: topology, members and tasks of streams groups."""

import msgspec

from penstock.wire.schema import ApiMessage, Bool, Int16, Int32, Int64, Message, String, UInt16


class StreamsGroupDescribeRequest(ApiMessage):
    api_key = 89
    min_version = 0
    max_version = 0
    flexible_from = 0

    group_ids: list[String] = []
    include_authorized_operations: Bool = False


class KeyValue(Message):
    key: String = ""
    value: String = ""


class TopicInfo(Message):
    name: String = ""
    partitions: Int32 = 0
    replication_factor: Int16 = 0
    topic_configs: list[KeyValue] = []


class Subtopology(Message):
    subtopology_id: String = ""
    source_topics: list[String] = []
    repartition_sink_topics: list[String] = []
    state_changelog_topics: list[TopicInfo] = []
    repartition_source_topics: list[TopicInfo] = []


class Topology(Message):
    epoch: Int32 = 0
    subtopologies: list[Subtopology] | None = None


class Endpoint(Message):
    host: String = ""
    port: UInt16 = 0


class TaskOffset(Message):
    subtopology_id: String = ""
    partition: Int32 = 0
    offset: Int64 = 0


class TaskIds(Message):
    subtopology_id: String = ""
    partitions: list[Int32] = []


class Assignment(Message):
    active_tasks: list[TaskIds] = []
    standby_tasks: list[TaskIds] = []
    warmup_tasks: list[TaskIds] = []


class Member(Message):
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    client_id: String = ""
    client_host: String = ""
    topology_epoch: Int32 = 0
    process_id: String = ""
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] = []
    task_offsets: list[TaskOffset] = []
    task_end_offsets: list[TaskOffset] = []
    assignment: Assignment = msgspec.field(default_factory=Assignment)
    target_assignment: Assignment = msgspec.field(default_factory=Assignment)
    is_classic: Bool = False


class DescribedGroup(Message):
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    topology: Topology | None = None
    members: list[Member] = []
    authorized_operations: Int32 = -0x80000000


class StreamsGroupDescribeResponse(ApiMessage):
    api_key = 89
    min_version = 0
    max_version = 0
    flexible_from = 0

    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = []
