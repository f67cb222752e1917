"""InitProducerId 0-5: an id and an epoch for an idempotent or transactional producer (KIP-98).

- Without a transactional id the producer gets a new id with epoch 0, whatever id it says it had: an
  idempotent producer starts again under a new one. The id is unique in the cluster for ever.
- From version 3 a producer may say which id and epoch it had (KIP-360): one without the other is
  INVALID_REQUEST.
- With a transactional id: INVALID_REQUEST if it is empty, INVALID_TRANSACTION_TIMEOUT unless 0 < timeout <=
  `transaction.max.timeout.ms`. Its coordinator then gives the id its next epoch, which fences whoever had the
  one before. An open transaction is aborted first: CONCURRENT_TRANSACTIONS, and the client comes again. Who
  names an id and epoch that are past is PRODUCER_FENCED, INVALID_PRODUCER_EPOCH below version 4.
- Version 6, two-phase commit (KIP-939), is unstable in Kafka too and is not served.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from penstock.broker.produce.producer_ids import ProducerIds
from penstock.broker.rights import WRITE_IDEMPOTENTLY, WRITE_TRANSACTION
from penstock.metadata.refusal import Refusal
from penstock.transactions.transaction import Given
from penstock.wire.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.wire.exchange import Request

NO_PRODUCER_ID = -1
NO_EPOCH = -1
FENCED_SINCE = 4


def handle(
    broker: Broker, request: Request, message: InitProducerIdRequest, permit: Permit
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    code = _fault(broker, message, permit)
    if code is not None:
        return refused(message, code)
    ids = broker.services.producer_ids
    if message.transactional_id is not None:
        return _begin(broker, message, request.api_version)
    taken = ids.take()
    return _wait(ids, message) if taken is None else _granted(taken)


def refused(message: InitProducerIdRequest, code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)


def _granted(producer_id: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _wait(ids: ProducerIds, message: InitProducerIdRequest) -> InitProducerIdResponse:
    taken = await ids.wait()
    if isinstance(taken, Refusal):
        # The metadata log cannot be written, or this broker was fenced: the client is to try again.
        return refused(message, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return _granted(taken)


async def _begin(broker: Broker, message: InitProducerIdRequest, version: int) -> InitProducerIdResponse:
    """Have the coordinator of the transactional id begin a producer, after those who asked before."""
    assert message.transactional_id is not None
    given = None
    if message.producer_id != NO_PRODUCER_ID:
        given = Given(message.producer_id, message.producer_epoch)
    coordinator = broker.services.transactions
    async with coordinator.beginnings.of(message.transactional_id):
        if await broker.services.producer_ids.filled() is not None:
            return refused(message, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        begun = coordinator.init_producer_id(message.transactional_id, message.transaction_timeout_ms, given)
        code, (producer_id, epoch) = await begun if isinstance(begun, Awaitable) else begun
    if code is ErrorCode.PRODUCER_FENCED and version < FENCED_SINCE:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return InitProducerIdResponse(error_code=code, producer_id=producer_id, producer_epoch=epoch)


def _fault(broker: Broker, message: InitProducerIdRequest, permit: Permit) -> ErrorCode | None:
    transactional_id = message.transactional_id
    if transactional_id is not None:
        refusal = permit.refusal(WRITE_TRANSACTION, transactional_id)
    else:
        refusal = permit.refusal(WRITE_IDEMPOTENTLY)
    if refusal is not None:
        return refusal
    if (message.producer_id == NO_PRODUCER_ID) != (message.producer_epoch == NO_EPOCH):
        return ErrorCode.INVALID_REQUEST
    if transactional_id is None:
        return None
    if not transactional_id:
        return ErrorCode.INVALID_REQUEST
    if not 0 < message.transaction_timeout_ms <= broker.settings.transaction_max_timeout_ms:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return None
