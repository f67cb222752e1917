"""DescribeClientQuotas: list quotas that match a filter."""

from penstock.wire.schema import ApiMessage, Bool, Float64, Int8, Int16, Int32, Message, String


class ComponentData(Message):
    entity_type: String = ""
    match_type: Int8 = 0
    match: String | None = ""


class DescribeClientQuotasRequest(ApiMessage):
    api_key = 48
    min_version = 0
    max_version = 1
    flexible_from = 1

    components: list[ComponentData] = []
    strict: Bool = False


class EntityData(Message):
    entity_type: String = ""
    entity_name: String | None = ""


class ValueData(Message):
    key: String = ""
    value: Float64 = 0.0


class EntryData(Message):
    entity: list[EntityData] = []
    values: list[ValueData] = []


class DescribeClientQuotasResponse(ApiMessage):
    api_key = 48
    min_version = 0
    max_version = 1
    flexible_from = 1

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    entries: list[EntryData] | None = []
