"""CreateTopics: create topics, or with validate_only say whether they could be."""

from typing import Annotated

from penstock.wire.schema import ZERO_UUID, ApiMessage, Bool, Int8, Int16, Int32, Message, String, Uuid


class CreatableReplicaAssignment(Message):
    partition_index: Int32 = 0
    broker_ids: list[Int32] = []


class CreatableTopicConfig(Message):
    name: String = ""
    value: String | None = ""


class CreatableTopic(Message):
    name: String = ""
    num_partitions: Int32 = 0
    replication_factor: Int16 = 0
    assignments: list[CreatableReplicaAssignment] = []
    configs: list[CreatableTopicConfig] = []


class CreateTopicsRequest(ApiMessage):
    api_key = 19
    min_version = 0
    max_version = 7
    flexible_from = 5

    topics: list[CreatableTopic] = []
    timeout_ms: Int32 = 60000
    validate_only: Annotated[Bool, "1+"] = False


class CreatableTopicConfigs(Message):
    name: String = ""
    value: String | None = ""
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False


class CreatableTopicResult(Message):
    name: String = ""
    topic_id: Annotated[Uuid, "7+", "ignorable"] = ZERO_UUID
    error_code: Int16 = 0
    error_message: Annotated[String | None, "1+", "ignorable"] = ""
    topic_config_error_code: Annotated[Int16, "5+", "tag 0", "ignorable"] = 0
    num_partitions: Annotated[Int32, "5+", "ignorable"] = -1
    replication_factor: Annotated[Int16, "5+", "ignorable"] = -1
    configs: Annotated[list[CreatableTopicConfigs] | None, "5+", "ignorable"] = []


class CreateTopicsResponse(ApiMessage):
    api_key = 19
    min_version = 0
    max_version = 7
    flexible_from = 5

    throttle_time_ms: Annotated[Int32, "2+", "ignorable"] = 0
    topics: list[CreatableTopicResult] = []
