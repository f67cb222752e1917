"""ListConfigResources: names of resources that have settings. Version 0 lists client metrics only."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Int8, Int16, Int32, Message, String


class ListConfigResourcesRequest(ApiMessage):
    api_key = 74
    min_version = 0
    max_version = 1
    flexible_from = 0

    resource_types: Annotated[list[Int8], "1+"] = []


class ConfigResource(Message):
    resource_name: String = ""
    resource_type: Annotated[Int8, "1+", "ignorable"] = 16


class ListConfigResourcesResponse(ApiMessage):
    api_key = 74
    min_version = 0
    max_version = 1
    flexible_from = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ConfigResource] = []
