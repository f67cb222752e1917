"""UpdateFeatures: change the finalized levels of features."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Bool, Int8, Int16, Int32, Message, String


class FeatureUpdateKey(Message):
    feature: String = ""
    max_version_level: Int16 = 0
    allow_downgrade: Annotated[Bool, "0"] = False
    upgrade_type: Annotated[Int8, "1+"] = 1


class UpdateFeaturesRequest(ApiMessage):
    api_key = 57
    min_version = 0
    max_version = 2
    flexible_from = 0

    timeout_ms: Int32 = 60000
    feature_updates: list[FeatureUpdateKey] = []
    validate_only: Annotated[Bool, "1+"] = False


class UpdatableFeatureResult(Message):
    feature: String = ""
    error_code: Int16 = 0
    error_message: String | None = ""


class UpdateFeaturesResponse(ApiMessage):
    api_key = 57
    min_version = 0
    max_version = 2
    flexible_from = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    results: Annotated[list[UpdatableFeatureResult], "0-1", "ignorable"] = []
