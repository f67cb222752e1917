"""AlterPartitionReassignments: begin moving partitions to other replicas, or cancel that."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Bool, Int16, Int32, Message, String


class ReassignablePartition(Message):
    partition_index: Int32 = 0
    replicas: list[Int32] | None = None


class ReassignableTopic(Message):
    name: String = ""
    partitions: list[ReassignablePartition] = []


class AlterPartitionReassignmentsRequest(ApiMessage):
    api_key = 45
    min_version = 0
    max_version = 1
    flexible_from = 0

    timeout_ms: Int32 = 60000
    allow_replication_factor_change: Annotated[Bool, "1+"] = True
    topics: list[ReassignableTopic] = []


class ReassignablePartitionResponse(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""


class ReassignableTopicResponse(Message):
    name: String = ""
    partitions: list[ReassignablePartitionResponse] = []


class AlterPartitionReassignmentsResponse(ApiMessage):
    api_key = 45
    min_version = 0
    max_version = 1
    flexible_from = 0

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[Bool, "1+", "ignorable"] = True
    error_code: Int16 = 0
    error_message: String | None = ""
    responses: list[ReassignableTopicResponse] = []
