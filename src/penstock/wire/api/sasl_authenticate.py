"""SaslAuthenticate: one step of a SASL exchange."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Bytes, Int16, Int64, String


class SaslAuthenticateRequest(ApiMessage):
    api_key = 36
    min_version = 0
    max_version = 2
    flexible_from = 2

    auth_bytes: Bytes = b""


class SaslAuthenticateResponse(ApiMessage):
    api_key = 36
    min_version = 0
    max_version = 2
    flexible_from = 2

    error_code: Int16 = 0
    error_message: String | None = ""
    auth_bytes: Bytes = b""
    session_lifetime_ms: Annotated[Int64, "1+", "ignorable"] = 0
