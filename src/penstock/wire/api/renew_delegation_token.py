"""RenewDelegationToken: prolong a delegation token."""

from penstock.wire.schema import ApiMessage, Bytes, Int16, Int32, Int64


class RenewDelegationTokenRequest(ApiMessage):
    api_key = 39
    min_version = 0
    max_version = 2
    flexible_from = 2

    hmac: Bytes = b""
    renew_period_ms: Int64 = 0


class RenewDelegationTokenResponse(ApiMessage):
    api_key = 39
    min_version = 0
    max_version = 2
    flexible_from = 2

    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0
