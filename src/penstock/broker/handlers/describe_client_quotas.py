"""DescribeClientQuotas 0-1: the quotas that match a filter (KIP-546).

- A component asks for one name, for the default of a kind, or for whatever name there is. `strict` leaves out
  entities that have other kinds besides.
- A filter that makes no sense is INVALID_REQUEST, an entity that is neither user, client-id nor ip is
  UNSUPPORTED_VERSION, in Kafka's words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.metadata.access import DEFAULT_NAME
from penstock.wire.api.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.context import Broker
    from penstock.metadata.access import QuotaEntity
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
    return DescribeClientQuotasResponse(
        error_message="",  # As Kafka says it.
        entries=[
            _entry(names, values)
            for entity, values in broker.image.quotas.items()
            if _matches(names := _names(entity), message)
        ],
    )


def _names(entity: QuotaEntity) -> dict[str, str]:
    """The names of an entity by their kinds."""
    return {kind: name for kind, name in zip(ENTITY_TYPES, entity, strict=True) if name is not None}


def _matches(names: dict[str, str], message: DescribeClientQuotasRequest) -> bool:
    if message.strict and len(names) != len(message.components):
        return False
    for component in message.components:
        name = names.get(component.entity_type)
        if name is None:
            return False
        if component.match_type == DEFAULT and name != DEFAULT_NAME:
            return False
        if component.match_type == EXACT and (name != component.match or name == DEFAULT_NAME):
            return False
    return True


def _entry(names: dict[str, str], values: Mapping[str, float]) -> EntryData:
    return EntryData(
        entity=[
            EntityData(entity_type=kind, entity_name=None if name == DEFAULT_NAME else name)
            for kind, name in names.items()
        ],
        values=[ValueData(key=key, value=value) for key, value in values.items()],
    )


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
