"""DescribeTransactions 0: state, producer and partitions of transactional ids (KIP-664).

- Each id has a code of its own: INVALID_REQUEST if it is empty, TRANSACTIONAL_ID_NOT_FOUND if nobody used it,
  NOT_COORDINATOR and COORDINATOR_LOAD_IN_PROGRESS.
- The state is that of storage. Partitions of topics that the caller may not describe are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.rights import DESCRIBE_TOPIC, DESCRIBE_TRANSACTION
from penstock.transactions.transaction import NAMES
from penstock.wire.api.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.transactions.transaction import Transaction
    from penstock.wire.exchange import Request


async def handle(
    broker: Broker, request: Request, message: DescribeTransactionsRequest, permit: Permit
) -> DescribeTransactionsResponse:
    ids = message.transactional_ids
    states = {one: await _described(broker, permit, one) for one in dict.fromkeys(ids)}
    return DescribeTransactionsResponse(transaction_states=[states[one] for one in ids])


async def _described(broker: Broker, permit: Permit, transactional_id: str) -> TransactionState:
    refusal = permit.refusal(DESCRIBE_TRANSACTION, transactional_id)
    if refusal is not None:
        return _refused(transactional_id, refusal)
    if not transactional_id:
        return _refused(transactional_id, ErrorCode.INVALID_REQUEST)
    found = await broker.services.transactions.found(transactional_id)
    if isinstance(found, ErrorCode):
        return _refused(transactional_id, found)
    known = found.shard.described(transactional_id)
    if known is None:
        return _refused(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=NAMES[known.state],
        transaction_timeout_ms=known.timeout_ms,
        transaction_start_time_ms=known.start_ms,
        producer_id=known.producer_id,
        producer_epoch=known.epoch,
        topics=_topics(permit, known),
    )


def _topics(permit: Permit, known: Transaction) -> list[TopicData]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(known.places):
        by_topic.setdefault(topic, []).append(partition)
    return [
        TopicData(topic=topic, partitions=partitions)
        for topic, partitions in by_topic.items()
        if permit.allows(DESCRIBE_TOPIC, topic)
    ]


def _refused(transactional_id: str, code: ErrorCode) -> TransactionState:
    return TransactionState(transactional_id=transactional_id, error_code=code)


def refused(message: DescribeTransactionsRequest, code: ErrorCode) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[_refused(one, code) for one in message.transactional_ids]
    )
