"""ListGroups: groups that this broker coordinates, by state and type."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Int16, Int32, Message, String


class ListGroupsRequest(ApiMessage):
    api_key = 16
    min_version = 0
    max_version = 5
    flexible_from = 3

    states_filter: Annotated[list[String], "4+"] = []
    types_filter: Annotated[list[String], "5+"] = []


class ListedGroup(Message):
    group_id: String = ""
    protocol_type: String = ""
    group_state: Annotated[String, "4+", "ignorable"] = ""
    group_type: Annotated[String, "5+", "ignorable"] = ""


class ListGroupsResponse(ApiMessage):
    api_key = 16
    min_version = 0
    max_version = 5
    flexible_from = 3

    throttle_time_ms: Annotated[Int32, "1+", "ignorable"] = 0
    error_code: Int16 = 0
    groups: list[ListedGroup] = []
