"""ElectLeaders: elect the preferred replica, or any live one, as leader."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Int8, Int16, Int32, Message, String


class TopicPartitions(Message):
    topic: String = ""
    partitions: list[Int32] = []


class ElectLeadersRequest(ApiMessage):
    api_key = 43
    min_version = 0
    max_version = 2
    flexible_from = 2

    election_type: Annotated[Int8, "1+"] = 0
    topic_partitions: list[TopicPartitions] | None = []
    timeout_ms: Int32 = 60000


class PartitionResult(Message):
    partition_id: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""


class ReplicaElectionResult(Message):
    topic: String = ""
    partition_result: list[PartitionResult] = []


class ElectLeadersResponse(ApiMessage):
    api_key = 43
    min_version = 0
    max_version = 2
    flexible_from = 2

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, "1+"] = 0
    replica_election_results: list[ReplicaElectionResult] = []
