"""DeleteTopics: delete topics, by name up to version 5, by name or id from version 6."""

from typing import Annotated

from penstock.wire.schema import ZERO_UUID, ApiMessage, Int16, Int32, Message, String, Uuid


class DeleteTopicState(Message):
    name: String | None = None
    topic_id: Uuid = ZERO_UUID


class DeleteTopicsRequest(ApiMessage):
    api_key = 20
    min_version = 0
    max_version = 6
    flexible_from = 4

    topics: Annotated[list[DeleteTopicState], "6+"] = []
    topic_names: Annotated[list[String], "0-5", "ignorable"] = []
    timeout_ms: Int32 = 0


class DeletableTopicResult(Message):
    name: Annotated[String | None, "nullable 6+"] = ""
    topic_id: Annotated[Uuid, "6+", "ignorable"] = ZERO_UUID
    error_code: Int16 = 0
    error_message: Annotated[String | None, "5+", "ignorable"] = None


class DeleteTopicsResponse(ApiMessage):
    api_key = 20
    min_version = 0
    max_version = 6
    flexible_from = 4

    throttle_time_ms: Annotated[Int32, "1+", "ignorable"] = 0
    responses: list[DeletableTopicResult] = []
