"""Changes of who may do what: proposed to the metadata log, and told to the audit once they are true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.audit import Asked
from penstock.broker.registry import APIS
from penstock.cluster.metadata_log import MetadataUnavailableError
from penstock.metadata.refusal import Refusal
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.broker.context import Broker
    from penstock.metadata.proposing import Decide
    from penstock.wire.exchange import Request

UNAVAILABLE = "The metadata log did not take the change in time. It may still happen."


async def carry_out(broker: Broker, decide: Decide) -> Refusal | None:
    """Change the cluster: why not, if not."""
    try:
        outcome = await broker.metadata.propose(decide)
    except MetadataUnavailableError:
        return Refusal(ErrorCode.REQUEST_TIMED_OUT, UNAVAILABLE)
    return outcome if isinstance(outcome, Refusal) else None


def tell(broker: Broker, request: Request, changes: Iterable[str]) -> None:
    """Tell the audit what was changed, and by whom."""
    asked = Asked(APIS[request.api_key].name, request.correlation_id, request.client_id)
    for change in changes:
        broker.audit.changed(request.session.principal, request.session.peer_host, change, asked)
