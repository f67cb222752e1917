"""InitProducerId: a producer id and epoch, for an idempotent producer or a transactional id."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Bool, Int16, Int32, Int64, String


class InitProducerIdRequest(ApiMessage):
    api_key = 22
    min_version = 0
    max_version = 6
    flexible_from = 2

    transactional_id: String | None = ""
    transaction_timeout_ms: Int32 = 0
    producer_id: Annotated[Int64, "3+"] = -1
    producer_epoch: Annotated[Int16, "3+"] = -1
    enable2_pc: Annotated[Bool, "6+"] = False
    keep_prepared_txn: Annotated[Bool, "6+"] = False


class InitProducerIdResponse(ApiMessage):
    api_key = 22
    min_version = 0
    max_version = 6
    flexible_from = 2

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
    ongoing_txn_producer_id: Annotated[Int64, "6+"] = -1
    ongoing_txn_producer_epoch: Annotated[Int16, "6+"] = -1
