"""ApiVersions: which APIs and versions are served. Too new a version is answered in the form of version 0."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Bool, Int16, Int32, Int64, Message, String


class ApiVersionsRequest(ApiMessage):
    api_key = 18
    min_version = 0
    max_version = 4
    flexible_from = 3

    client_software_name: Annotated[String, "3+", "ignorable"] = ""
    client_software_version: Annotated[String, "3+", "ignorable"] = ""


class ApiVersion(Message):
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


class SupportedFeatureKey(Message):
    name: String = ""
    min_version: Int16 = 0
    max_version: Int16 = 0


class FinalizedFeatureKey(Message):
    name: String = ""
    max_version_level: Int16 = 0
    min_version_level: Int16 = 0


class ApiVersionsResponse(ApiMessage):
    api_key = 18
    min_version = 0
    max_version = 4
    flexible_from = 3

    error_code: Int16 = 0
    api_keys: list[ApiVersion] = []
    throttle_time_ms: Annotated[Int32, "1+", "ignorable"] = 0
    supported_features: Annotated[list[SupportedFeatureKey], "3+", "tag 0", "ignorable"] = []
    finalized_features_epoch: Annotated[Int64, "3+", "tag 1", "ignorable"] = -1
    finalized_features: Annotated[list[FinalizedFeatureKey], "3+", "tag 2", "ignorable"] = []
    zk_migration_ready: Annotated[Bool, "3+", "tag 3", "ignorable"] = False
