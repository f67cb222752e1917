"""DeleteGroups: delete empty groups with their offsets."""

from penstock.wire.schema import ApiMessage, Int16, Int32, Message, String


class DeleteGroupsRequest(ApiMessage):
    api_key = 42
    min_version = 0
    max_version = 2
    flexible_from = 2

    groups_names: list[String] = []


class DeletableGroupResult(Message):
    group_id: String = ""
    error_code: Int16 = 0


class DeleteGroupsResponse(ApiMessage):
    api_key = 42
    min_version = 0
    max_version = 2
    flexible_from = 2

    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = []
