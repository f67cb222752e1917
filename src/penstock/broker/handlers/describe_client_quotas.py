"""DescribeClientQuotas 0-1: the quotas that match a filter (KIP-546).

- There are no quotas here and no request sets any, so a filter that makes sense matches none. Tools that list
  the settings of users or clients ask for quotas first and would fail if the API were missing.
- A filter that makes no sense is INVALID_REQUEST, an entity that is neither user, client-id nor ip is
  UNSUPPORTED_VERSION, in Kafka's words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.wire.api.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.wire.exchange import Request

IP = "ip"
ENTITY_TYPES = ("user", "client-id", IP)
EXACT, DEFAULT, SPECIFIED = 0, 1, 2
_IP_AND_OTHERS = (
    "Invalid entity filter component combination. "
    "IP filter component should not be used with user or clientId filter component."
)


def handle(
    broker: Broker, request: Request, message: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    seen: set[str] = set()
    for component in message.components:
        code, why = _fault(component, seen)
        if code is not ErrorCode.NONE:
            return refused(message, code, why)
        seen.add(component.entity_type)
    if IP in seen and len(seen) > 1:
        return refused(message, ErrorCode.INVALID_REQUEST, _IP_AND_OTHERS)
    return DescribeClientQuotasResponse(entries=[])


def _fault(component: ComponentData, seen: set[str]) -> tuple[ErrorCode, str]:
    kind = component.entity_type
    if kind and kind not in seen and kind not in ENTITY_TYPES:
        return ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}"
    why = ""
    if not kind:
        why = "Invalid empty entity type."
    elif kind in seen:
        why = f"Entity type {kind} cannot appear more than once in the filter."
    elif component.match_type not in (EXACT, DEFAULT, SPECIFIED):
        why = f"Unknown match type {component.match_type}"
    elif component.match_type == EXACT and component.match is None:
        why = "Request specified MATCH_TYPE_EXACT, but set match string to null."
    elif component.match_type != EXACT and component.match is not None:
        name = "DEFAULT" if component.match_type == DEFAULT else "SPECIFIED"
        why = f"Request specified MATCH_TYPE_{name}, but also specified a match string."
    return (ErrorCode.INVALID_REQUEST if why else ErrorCode.NONE), why


def refused(
    message: DescribeClientQuotasRequest, code: ErrorCode, why: str | None = None
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=code, error_message=why, entries=None)
