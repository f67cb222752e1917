"""CreateAcls: add access rules."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Int8, Int16, Int32, Message, String


class AclCreation(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    resource_pattern_type: Annotated[Int8, "1+"] = 3
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class CreateAclsRequest(ApiMessage):
    api_key = 30
    min_version = 0
    max_version = 3
    flexible_from = 2

    creations: list[AclCreation] = []


class AclCreationResult(Message):
    error_code: Int16 = 0
    error_message: String | None = ""


class CreateAclsResponse(ApiMessage):
    api_key = 30
    min_version = 0
    max_version = 3
    flexible_from = 2

    throttle_time_ms: Int32 = 0
    results: list[AclCreationResult] = []
