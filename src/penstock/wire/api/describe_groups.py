"""DescribeGroups: state, members and assignments of classic groups."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Bool, Bytes, Int16, Int32, Message, String


class DescribeGroupsRequest(ApiMessage):
    api_key = 15
    min_version = 0
    max_version = 6
    flexible_from = 5

    groups: list[String] = []
    include_authorized_operations: Annotated[Bool, "3+"] = False


class DescribedGroupMember(Message):
    member_id: String = ""
    group_instance_id: Annotated[String | None, "4+", "ignorable"] = None
    client_id: String = ""
    client_host: String = ""
    member_metadata: Bytes = b""
    member_assignment: Bytes = b""


class DescribedGroup(Message):
    error_code: Int16 = 0
    error_message: Annotated[String | None, "6+"] = None
    group_id: String = ""
    group_state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: list[DescribedGroupMember] = []
    authorized_operations: Annotated[Int32, "3+"] = -0x80000000


class DescribeGroupsResponse(ApiMessage):
    api_key = 15
    min_version = 0
    max_version = 6
    flexible_from = 5

    throttle_time_ms: Annotated[Int32, "1+", "ignorable"] = 0
    groups: list[DescribedGroup] = []
