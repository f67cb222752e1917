"""AddOffsetsToTxn: a transaction will commit offsets of this group, so their log joins it."""

from penstock.wire.schema import ApiMessage, Int16, Int32, Int64, String


class AddOffsetsToTxnRequest(ApiMessage):
    api_key = 25
    min_version = 0
    max_version = 4
    flexible_from = 3

    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: String = ""


class AddOffsetsToTxnResponse(ApiMessage):
    api_key = 25
    min_version = 0
    max_version = 4
    flexible_from = 3

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
