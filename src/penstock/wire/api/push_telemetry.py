"""PushTelemetry: client metrics."""

from penstock.wire.schema import ZERO_UUID, ApiMessage, Bool, Bytes, Int8, Int16, Int32, Uuid


class PushTelemetryRequest(ApiMessage):
    api_key = 72
    min_version = 0
    max_version = 0
    flexible_from = 0

    client_instance_id: Uuid = ZERO_UUID
    subscription_id: Int32 = 0
    terminating: Bool = False
    compression_type: Int8 = 0
    metrics: Bytes = b""


class PushTelemetryResponse(ApiMessage):
    api_key = 72
    min_version = 0
    max_version = 0
    flexible_from = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
