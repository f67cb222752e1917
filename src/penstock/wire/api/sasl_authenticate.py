"""SaslAuthenticate: one step of a SASL exchange.

Its bytes may be a password or a bearer token, so they do not show where a message is printed.
"""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Bytes, Int16, Int64, String


class SaslAuthenticateRequest(ApiMessage):
    api_key = 36
    min_version = 0
    max_version = 2
    flexible_from = 2

    auth_bytes: Bytes = b""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(of {len(self.auth_bytes)} bytes)"


class SaslAuthenticateResponse(ApiMessage):
    api_key = 36
    min_version = 0
    max_version = 2
    flexible_from = 2

    error_code: Int16 = 0
    error_message: String | None = ""
    auth_bytes: Bytes = b""
    session_lifetime_ms: Annotated[Int64, "1+", "ignorable"] = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(error_code={self.error_code}, of {len(self.auth_bytes)} bytes)"
