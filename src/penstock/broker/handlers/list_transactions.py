"""ListTransactions 0-2: the transactional ids that this broker coordinates; a client asks every broker.

- Filters by state and producer id (KIP-664), from version 1 by how long the transaction has been open at
  least (KIP-994), and from version 2 by a regular expression in RE2's syntax that the whole id must match
  (KIP-1152). A bad expression is INVALID_REGULAR_EXPRESSION; an id with characters outside of ASCII is found
  by none. States that do not exist are listed in the answer, and find nothing.
- COORDINATOR_LOAD_IN_PROGRESS while a partition is being loaded: part of the list would look like all of it.
- States are those of storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.rights import DESCRIBE_TRANSACTION
from penstock.groups.consumer.regex import TopicPattern
from penstock.groups.consumer.regex_syntax import RegexError
from penstock.transactions.transaction import NAMES
from penstock.wire.api.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.transactions.transaction import Transaction
    from penstock.wire.exchange import Request

KNOWN_STATES = frozenset((*NAMES.values(), "Dead", "PrepareEpochFence"))
"""Kafka has two more, which are never stored."""


async def handle(
    broker: Broker, request: Request, message: ListTransactionsRequest, permit: Permit
) -> ListTransactionsResponse:
    shards = await broker.services.transactions.all_shards()
    if isinstance(shards, ErrorCode):
        return ListTransactionsResponse(error_code=shards)
    wanted = _filter(message, broker.clock.time_ms())
    found = {
        transactional_id: known
        for live in shards
        for transactional_id, known in live.shard.listed()
        if wanted(known) and permit.allows(DESCRIBE_TRANSACTION, transactional_id)
    }
    pattern = message.transactional_id_pattern
    if pattern:
        try:
            matching = TopicPattern(pattern).select(found)
        except RegexError:
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
        found = {name: known for name, known in found.items() if name in matching}
    return ListTransactionsResponse(
        unknown_state_filters=[name for name in message.state_filters if name not in KNOWN_STATES],
        transaction_states=[
            TransactionState(
                transactional_id=name,
                producer_id=known.producer_id,
                transaction_state=NAMES[known.state],
            )
            for name, known in found.items()
        ],
    )


def _filter(message: ListTransactionsRequest, now_ms: int) -> Callable[[Transaction], bool]:
    states, producers = frozenset(message.state_filters), frozenset(message.producer_id_filters)
    duration_ms = message.duration_filter

    def wanted(known: Transaction) -> bool:
        return (
            (not states or NAMES[known.state] in states)
            and (not producers or known.producer_id in producers)
            and (duration_ms < 0 or now_ms - known.start_ms > duration_ms)
        )

    return wanted
