"""DeleteShareGroupOffsets: forget the offsets of topics in an empty share group."""

from penstock.wire.schema import ZERO_UUID, ApiMessage, Int16, Int32, Message, String, Uuid


class DeleteShareGroupOffsetsRequestTopic(Message):
    topic_name: String = ""


class DeleteShareGroupOffsetsRequest(ApiMessage):
    api_key = 92
    min_version = 0
    max_version = 0
    flexible_from = 0

    group_id: String = ""
    topics: list[DeleteShareGroupOffsetsRequestTopic] = []


class DeleteShareGroupOffsetsResponseTopic(Message):
    topic_name: String = ""
    topic_id: Uuid = ZERO_UUID
    error_code: Int16 = 0
    error_message: String | None = None


class DeleteShareGroupOffsetsResponse(ApiMessage):
    api_key = 92
    min_version = 0
    max_version = 0
    flexible_from = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    responses: list[DeleteShareGroupOffsetsResponseTopic] = []
