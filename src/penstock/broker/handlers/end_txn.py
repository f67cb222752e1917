"""EndTxn 0-5: commit or abort a transaction (KIP-98, KIP-890).

- Answered when the decision is durable, before the partitions have their markers. Until they have them the
  id is busy: CONCURRENT_TRANSACTIONS to whoever goes on too early.
- Versions 0-4: the epoch stays. A repeated request is NONE when the transaction is complete and of the same
  kind. A fenced epoch is INVALID_PRODUCER_EPOCH in versions 0 and 1, PRODUCER_FENCED later.
- Version 5: the answer names the producer id and epoch of the next transaction. A repeated request is told by
  its epoch, the one before the present. An abort without a transaction is fine, and takes an epoch too.
- `transactions/transaction.py` holds the rules, state by state.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from penstock.broker.rights import WRITE_TRANSACTION
from penstock.transactions.transaction import Given
from penstock.wire.api.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.wire.exchange import Request

FENCED_SINCE = 2
BUMPS_SINCE = 5


async def handle(broker: Broker, request: Request, message: EndTxnRequest, permit: Permit) -> EndTxnResponse:
    refusal = permit.refusal(WRITE_TRANSACTION, message.transactional_id)
    if refusal is not None:
        return EndTxnResponse(error_code=refusal)
    version = request.api_version
    ended = broker.services.transactions.end(
        message.transactional_id,
        Given(message.producer_id, message.producer_epoch),
        commit=message.committed,
        bump=version >= BUMPS_SINCE,
    )
    code, (producer_id, epoch) = await ended if isinstance(ended, Awaitable) else ended
    if code is ErrorCode.PRODUCER_FENCED and version < FENCED_SINCE:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return EndTxnResponse(error_code=code, producer_id=producer_id, producer_epoch=epoch)
