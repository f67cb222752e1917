"""DescribeQuorum: the state of the KRaft quorum."""

from typing import Annotated

from penstock.wire.schema import ZERO_UUID, ApiMessage, Int16, Int32, Int64, Message, String, UInt16, Uuid


class PartitionData(Message):
    partition_index: Int32 = 0


class TopicData(Message):
    topic_name: String = ""
    partitions: list[PartitionData] = []


class DescribeQuorumRequest(ApiMessage):
    api_key = 55
    min_version = 0
    max_version = 2
    flexible_from = 0

    topics: list[TopicData] = []


class ReplicaState(Message):
    replica_id: Int32 = 0
    replica_directory_id: Annotated[Uuid, "2+"] = ZERO_UUID
    log_end_offset: Int64 = 0
    last_fetch_timestamp: Annotated[Int64, "1+", "ignorable"] = -1
    last_caught_up_timestamp: Annotated[Int64, "1+", "ignorable"] = -1


class ResponsePartitionData(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[String | None, "2+", "ignorable"] = ""
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    high_watermark: Int64 = 0
    current_voters: list[ReplicaState] = []
    observers: list[ReplicaState] = []


class ResponseTopicData(Message):
    topic_name: String = ""
    partitions: list[ResponsePartitionData] = []


class Listener(Message):
    name: String = ""
    host: String = ""
    port: UInt16 = 0


class Node(Message):
    node_id: Int32 = 0
    listeners: list[Listener] = []


class DescribeQuorumResponse(ApiMessage):
    api_key = 55
    min_version = 0
    max_version = 2
    flexible_from = 0

    error_code: Int16 = 0
    error_message: Annotated[String | None, "2+", "ignorable"] = ""
    topics: list[ResponseTopicData] = []
    nodes: Annotated[list[Node], "2+"] = []
