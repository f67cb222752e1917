"""EndTxn: commit or abort a transaction. From version 5 the answer carries the producer's next epoch."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Bool, Int16, Int32, Int64, String


class EndTxnRequest(ApiMessage):
    api_key = 26
    min_version = 0
    max_version = 5
    flexible_from = 3

    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: Bool = False


class EndTxnResponse(ApiMessage):
    api_key = 26
    min_version = 0
    max_version = 5
    flexible_from = 3

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Annotated[Int64, "5+", "ignorable"] = -1
    producer_epoch: Annotated[Int16, "5+", "ignorable"] = -1
