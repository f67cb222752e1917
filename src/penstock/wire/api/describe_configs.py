"""DescribeConfigs: effective settings of resources, where each comes from, and its synonyms."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Bool, Int8, Int16, Int32, Message, String


class DescribeConfigsResource(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    configuration_keys: list[String] | None = []


class DescribeConfigsRequest(ApiMessage):
    api_key = 32
    min_version = 0
    max_version = 4
    flexible_from = 4

    resources: list[DescribeConfigsResource] = []
    include_synonyms: Annotated[Bool, "1+"] = False
    include_documentation: Annotated[Bool, "3+"] = False


class DescribeConfigsSynonym(Message):
    name: String = ""
    value: String | None = ""
    source: Int8 = 0


class DescribeConfigsResourceResult(Message):
    name: String = ""
    value: String | None = ""
    read_only: Bool = False
    is_default: Annotated[Bool, "0", "ignorable"] = False
    config_source: Annotated[Int8, "1+", "ignorable"] = -1
    is_sensitive: Bool = False
    synonyms: Annotated[list[DescribeConfigsSynonym], "1+", "ignorable"] = []
    config_type: Annotated[Int8, "3+", "ignorable"] = 0
    documentation: Annotated[String | None, "3+", "ignorable"] = ""


class DescribeConfigsResult(Message):
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[DescribeConfigsResourceResult] = []


class DescribeConfigsResponse(ApiMessage):
    api_key = 32
    min_version = 0
    max_version = 4
    flexible_from = 4

    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = []
