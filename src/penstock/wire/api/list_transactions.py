"""ListTransactions: transactions that this broker coordinates."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Int16, Int32, Int64, Message, String


class ListTransactionsRequest(ApiMessage):
    api_key = 66
    min_version = 0
    max_version = 2
    flexible_from = 0

    state_filters: list[String] = []
    producer_id_filters: list[Int64] = []
    duration_filter: Annotated[Int64, "1+"] = -1
    transactional_id_pattern: Annotated[String | None, "2+"] = None


class TransactionState(Message):
    transactional_id: String = ""
    producer_id: Int64 = 0
    transaction_state: String = ""


class ListTransactionsResponse(ApiMessage):
    api_key = 66
    min_version = 0
    max_version = 2
    flexible_from = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: list[String] = []
    transaction_states: list[TransactionState] = []
