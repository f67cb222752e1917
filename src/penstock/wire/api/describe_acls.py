"""DescribeAcls: list the access rules that match a filter."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Int8, Int16, Int32, Message, String


class DescribeAclsRequest(ApiMessage):
    api_key = 29
    min_version = 0
    max_version = 3
    flexible_from = 2

    resource_type_filter: Int8 = 0
    resource_name_filter: String | None = ""
    pattern_type_filter: Annotated[Int8, "1+"] = 3
    principal_filter: String | None = ""
    host_filter: String | None = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class AclDescription(Message):
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DescribeAclsResource(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Annotated[Int8, "1+"] = 3
    acls: list[AclDescription] = []


class DescribeAclsResponse(ApiMessage):
    api_key = 29
    min_version = 0
    max_version = 3
    flexible_from = 2

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    resources: list[DescribeAclsResource] = []
