"""UnregisterBroker: remove a broker that will not come back."""

from penstock.wire.schema import ApiMessage, Int16, Int32, String


class UnregisterBrokerRequest(ApiMessage):
    api_key = 64
    min_version = 0
    max_version = 0
    flexible_from = 0

    broker_id: Int32 = 0


class UnregisterBrokerResponse(ApiMessage):
    api_key = 64
    min_version = 0
    max_version = 0
    flexible_from = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
