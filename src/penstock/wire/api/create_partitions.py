"""CreatePartitions: raise the partition count of topics."""

from penstock.wire.schema import ApiMessage, Bool, Int16, Int32, Message, String


class CreatePartitionsAssignment(Message):
    broker_ids: list[Int32] = []


class CreatePartitionsTopic(Message):
    name: String = ""
    count: Int32 = 0
    assignments: list[CreatePartitionsAssignment] | None = []


class CreatePartitionsRequest(ApiMessage):
    api_key = 37
    min_version = 0
    max_version = 3
    flexible_from = 2

    topics: list[CreatePartitionsTopic] = []
    timeout_ms: Int32 = 0
    validate_only: Bool = False


class CreatePartitionsTopicResult(Message):
    name: String = ""
    error_code: Int16 = 0
    error_message: String | None = None


class CreatePartitionsResponse(ApiMessage):
    api_key = 37
    min_version = 0
    max_version = 3
    flexible_from = 2

    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult] = []
