"""RenewDelegationToken: let a token live longer."""

from penstock.wire.schema import ApiMessage, Bytes, Int16, Int32, Int64


class RenewDelegationTokenRequest(ApiMessage):
    api_key = 39
    min_version = 1
    max_version = 2
    flexible_from = 2

    hmac: Bytes = b""
    renew_period_ms: Int64 = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(renew_period_ms={self.renew_period_ms})"


class RenewDelegationTokenResponse(ApiMessage):
    api_key = 39
    min_version = 1
    max_version = 2
    flexible_from = 2

    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0
