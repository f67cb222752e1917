"""AlterClientQuotas: change quotas."""

from penstock.wire.schema import ApiMessage, Bool, Float64, Int16, Int32, Message, String


class EntityData(Message):
    entity_type: String = ""
    entity_name: String | None = ""


class OpData(Message):
    key: String = ""
    value: Float64 = 0.0
    remove: Bool = False


class EntryData(Message):
    entity: list[EntityData] = []
    ops: list[OpData] = []


class AlterClientQuotasRequest(ApiMessage):
    api_key = 49
    min_version = 0
    max_version = 1
    flexible_from = 1

    entries: list[EntryData] = []
    validate_only: Bool = False


class AlteredEntry(Message):
    error_code: Int16 = 0
    error_message: String | None = ""
    entity: list[EntityData] = []


class AlterClientQuotasResponse(ApiMessage):
    api_key = 49
    min_version = 0
    max_version = 1
    flexible_from = 1

    throttle_time_ms: Int32 = 0
    entries: list[AlteredEntry] = []
