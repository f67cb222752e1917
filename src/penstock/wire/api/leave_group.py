"""LeaveGroup: leave a classic group; several members at once from version 3."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Int16, Int32, Message, String


class MemberIdentity(Message):
    member_id: String = ""
    group_instance_id: String | None = None
    reason: Annotated[String | None, "5+", "ignorable"] = None


class LeaveGroupRequest(ApiMessage):
    api_key = 13
    min_version = 0
    max_version = 5
    flexible_from = 4

    group_id: String = ""
    member_id: Annotated[String, "0-2"] = ""
    members: Annotated[list[MemberIdentity], "3+"] = []


class MemberResponse(Message):
    member_id: String = ""
    group_instance_id: String | None = ""
    error_code: Int16 = 0


class LeaveGroupResponse(ApiMessage):
    api_key = 13
    min_version = 0
    max_version = 5
    flexible_from = 4

    throttle_time_ms: Annotated[Int32, "1+", "ignorable"] = 0
    error_code: Int16 = 0
    members: Annotated[list[MemberResponse], "3+"] = []
