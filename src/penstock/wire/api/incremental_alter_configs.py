"""IncrementalAlterConfigs: set, delete, append to or subtract from single settings."""

from penstock.wire.schema import ApiMessage, Bool, Int8, Int16, Int32, Message, String


class AlterableConfig(Message):
    name: String = ""
    config_operation: Int8 = 0
    value: String | None = ""


class AlterConfigsResource(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterableConfig] = []


class IncrementalAlterConfigsRequest(ApiMessage):
    api_key = 44
    min_version = 0
    max_version = 1
    flexible_from = 1

    resources: list[AlterConfigsResource] = []
    validate_only: Bool = False


class AlterConfigsResourceResponse(Message):
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""


class IncrementalAlterConfigsResponse(ApiMessage):
    api_key = 44
    min_version = 0
    max_version = 1
    flexible_from = 1

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []
