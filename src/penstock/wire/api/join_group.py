"""JoinGroup: join a classic group; answered when the generation is complete."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Bool, Bytes, Int16, Int32, Message, String


class JoinGroupRequestProtocol(Message):
    name: String = ""
    metadata: Bytes = b""


class JoinGroupRequest(ApiMessage):
    api_key = 11
    min_version = 0
    max_version = 9
    flexible_from = 6

    group_id: String = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Annotated[Int32, "1+", "ignorable"] = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, "5+"] = None
    protocol_type: String = ""
    protocols: list[JoinGroupRequestProtocol] = []
    reason: Annotated[String | None, "8+", "ignorable"] = None


class JoinGroupResponseMember(Message):
    member_id: String = ""
    group_instance_id: Annotated[String | None, "5+", "ignorable"] = None
    metadata: Bytes = b""


class JoinGroupResponse(ApiMessage):
    api_key = 11
    min_version = 0
    max_version = 9
    flexible_from = 6

    throttle_time_ms: Annotated[Int32, "2+", "ignorable"] = 0
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: Annotated[String | None, "7+", "ignorable"] = None
    protocol_name: Annotated[String | None, "nullable 7+"] = ""
    leader: String = ""
    skip_assignment: Annotated[Bool, "9+"] = False
    member_id: String = ""
    members: list[JoinGroupResponseMember] = []
