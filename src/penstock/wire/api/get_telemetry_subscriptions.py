"""GetTelemetrySubscriptions: which client metrics the broker wants."""

from penstock.wire.schema import ZERO_UUID, ApiMessage, Bool, Int8, Int16, Int32, String, Uuid


class GetTelemetrySubscriptionsRequest(ApiMessage):
    api_key = 71
    min_version = 0
    max_version = 0
    flexible_from = 0

    client_instance_id: Uuid = ZERO_UUID


class GetTelemetrySubscriptionsResponse(ApiMessage):
    api_key = 71
    min_version = 0
    max_version = 0
    flexible_from = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    client_instance_id: Uuid = ZERO_UUID
    subscription_id: Int32 = 0
    accepted_compression_types: list[Int8] = []
    push_interval_ms: Int32 = 0
    telemetry_max_bytes: Int32 = 0
    delta_temporality: Bool = False
    requested_metrics: list[String] = []
