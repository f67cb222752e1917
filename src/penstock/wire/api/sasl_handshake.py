"""SaslHandshake: choose a SASL mechanism. After version 0 the exchange is raw, else in SaslAuthenticate."""

from penstock.wire.schema import NEVER_FLEXIBLE, ApiMessage, Int16, String


class SaslHandshakeRequest(ApiMessage):
    api_key = 17
    min_version = 0
    max_version = 1
    flexible_from = NEVER_FLEXIBLE

    mechanism: String = ""


class SaslHandshakeResponse(ApiMessage):
    api_key = 17
    min_version = 0
    max_version = 1
    flexible_from = NEVER_FLEXIBLE

    error_code: Int16 = 0
    mechanisms: list[String] = []
