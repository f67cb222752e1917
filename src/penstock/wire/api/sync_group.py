"""SyncGroup: the leader of a classic group hands out assignments, the others wait for theirs."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Bytes, Int16, Int32, Message, String


class SyncGroupRequestAssignment(Message):
    member_id: String = ""
    assignment: Bytes = b""


class SyncGroupRequest(ApiMessage):
    api_key = 14
    min_version = 0
    max_version = 5
    flexible_from = 4

    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[String | None, "3+"] = None
    protocol_type: Annotated[String | None, "5+", "ignorable"] = None
    protocol_name: Annotated[String | None, "5+", "ignorable"] = None
    assignments: list[SyncGroupRequestAssignment] = []


class SyncGroupResponse(ApiMessage):
    api_key = 14
    min_version = 0
    max_version = 5
    flexible_from = 4

    throttle_time_ms: Annotated[Int32, "1+", "ignorable"] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[String | None, "5+", "ignorable"] = None
    protocol_name: Annotated[String | None, "5+", "ignorable"] = None
    assignment: Bytes = b""
