"""ExpireDelegationToken: let a token live less long, or end it."""

from penstock.wire.schema import ApiMessage, Bytes, Int16, Int32, Int64


class ExpireDelegationTokenRequest(ApiMessage):
    api_key = 40
    min_version = 1
    max_version = 2
    flexible_from = 2

    hmac: Bytes = b""
    expiry_time_period_ms: Int64 = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(expiry_time_period_ms={self.expiry_time_period_ms})"


class ExpireDelegationTokenResponse(ApiMessage):
    api_key = 40
    min_version = 1
    max_version = 2
    flexible_from = 2

    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0
