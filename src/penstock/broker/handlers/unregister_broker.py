"""UnregisterBroker 0: forget a broker (KIP-631, KIP-1073).

- What the broker led is given to others and its write-ahead log is sealed, in the same step; nothing that it
  acknowledged is lost, because its log is in the shared store.
- A broker that is alive is removed too: it can acknowledge nothing any more, learns of its removal and stops.
  Asked to remove itself, a broker hands over and leaves as on a controlled stop, and answers before it ends.
  A process that is started again with that id registers again.
- BROKER_ID_NOT_REGISTERED for a broker that nobody knows. REQUEST_TIMED_OUT if the store did not take the
  change in time; then it may still happen.
- Any broker serves it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cluster.metadata_log import MetadataUnavailableError
from penstock.storage.stores.objects import StoreError
from penstock.wire.api.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.wire.exchange import Request


async def handle(
    broker: Broker, request: Request, message: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    assert broker.membership is not None
    try:
        refusal = await broker.membership.unregister(message.broker_id)
    except (MetadataUnavailableError, StoreError) as error:
        return UnregisterBrokerResponse(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=str(error))
    if refusal is not None:
        return UnregisterBrokerResponse(error_code=refusal.code, error_message=refusal.message)
    return UnregisterBrokerResponse(error_message=None)
