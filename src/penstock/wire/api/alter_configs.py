"""AlterConfigs: replace all the settings of a resource; settings that are not named get their default."""

from penstock.wire.schema import ApiMessage, Bool, Int8, Int16, Int32, Message, String


class AlterableConfig(Message):
    name: String = ""
    value: String | None = ""


class AlterConfigsResource(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterableConfig] = []


class AlterConfigsRequest(ApiMessage):
    api_key = 33
    min_version = 0
    max_version = 2
    flexible_from = 2

    resources: list[AlterConfigsResource] = []
    validate_only: Bool = False


class AlterConfigsResourceResponse(Message):
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""


class AlterConfigsResponse(ApiMessage):
    api_key = 33
    min_version = 0
    max_version = 2
    flexible_from = 2

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []
