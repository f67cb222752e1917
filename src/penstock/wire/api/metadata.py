"""Metadata: brokers, controller, topics, partitions and their leaders."""

from typing import Annotated

from penstock.wire.schema import ZERO_UUID, ApiMessage, Bool, Int16, Int32, Message, String, Uuid


class MetadataRequestTopic(Message):
    topic_id: Annotated[Uuid, "10+", "ignorable"] = ZERO_UUID
    name: Annotated[String | None, "nullable 10+"] = ""


class MetadataRequest(ApiMessage):
    api_key = 3
    min_version = 0
    max_version = 13
    flexible_from = 9

    topics: Annotated[list[MetadataRequestTopic] | None, "nullable 1+"] = []
    allow_auto_topic_creation: Annotated[Bool, "4+"] = True
    include_cluster_authorized_operations: Annotated[Bool, "8-10"] = False
    include_topic_authorized_operations: Annotated[Bool, "8+"] = False


class MetadataResponseBroker(Message):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: Annotated[String | None, "1+", "ignorable"] = None


class MetadataResponsePartition(Message):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Annotated[Int32, "7+", "ignorable"] = -1
    replica_nodes: list[Int32] = []
    isr_nodes: list[Int32] = []
    offline_replicas: Annotated[list[Int32], "5+", "ignorable"] = []


class MetadataResponseTopic(Message):
    error_code: Int16 = 0
    name: Annotated[String | None, "nullable 12+"] = ""
    topic_id: Annotated[Uuid, "10+", "ignorable"] = ZERO_UUID
    is_internal: Annotated[Bool, "1+", "ignorable"] = False
    partitions: list[MetadataResponsePartition] = []
    topic_authorized_operations: Annotated[Int32, "8+"] = -0x80000000


class MetadataResponse(ApiMessage):
    api_key = 3
    min_version = 0
    max_version = 13
    flexible_from = 9

    throttle_time_ms: Annotated[Int32, "3+", "ignorable"] = 0
    brokers: list[MetadataResponseBroker] = []
    cluster_id: Annotated[String | None, "2+", "ignorable"] = None
    controller_id: Annotated[Int32, "1+", "ignorable"] = -1
    topics: list[MetadataResponseTopic] = []
    cluster_authorized_operations: Annotated[Int32, "8-10"] = -0x80000000
    error_code: Annotated[Int16, "13+", "ignorable"] = 0
