"""AlterClientQuotas 0-1: change the quotas of users, client ids and addresses (KIP-546, KIP-612).

- An entity is a user, a client id, both, or an address alone. A null name is the default of its kind.
- INVALID_REQUEST for an entity or key that is none, a value that is not positive, and a fraction where bytes
  or connections are counted. Kafka looks addresses up by name; here they are addresses.
- Each entity is answered. Those that make sense take effect by one entry of the metadata log, on all brokers.
- With `validate_only` nothing is changed.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from penstock.audit import literal
from penstock.broker.security.changing import carry_out, tell
from penstock.metadata.access import DEFAULT_NAME, QuotaEntity
from penstock.metadata.commands import SetQuota
from penstock.metadata.refusal import Refusal
from penstock.security.quotas import CLIENT_KEYS, CONNECTIONS, INTEGRAL
from penstock.wire.api.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntry,
    EntityData,
    EntryData,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.context import Broker
    from penstock.metadata.image import ClusterImage
    from penstock.wire.exchange import Request

KINDS = ("user", "client-id", "ip")
_FRACTION = 1e-6


class _Asked(NamedTuple):
    entry: EntryData
    change: SetQuota | Refusal


async def handle(
    broker: Broker, request: Request, message: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    seen: set[QuotaEntity] = set()
    asked = []
    for entry in message.entries:
        change = _change(entry)
        if isinstance(change, SetQuota):
            entity = (change.user, change.client_id, change.address)
            if entity in seen:
                change = _wrong("Ignoring duplicate entity")
            seen.add(entity)
        asked.append(_Asked(entry, change))
    changes = [one.change for one in asked if isinstance(one.change, SetQuota)]
    refusal = None
    if not message.validate_only:

        def decide(image: ClusterImage) -> Sequence[SetQuota]:
            return [change for change in changes if change.changes]

        refusal = await carry_out(broker, decide)
        if refusal is None:
            tell(broker, request, (f"set quotas: {_told(change)}" for change in changes))
    return AlterClientQuotasResponse(
        entries=[
            _answer(one.entry, one.change if isinstance(one.change, Refusal) else refusal) for one in asked
        ]
    )


def _change(entry: EntryData) -> SetQuota | Refusal:
    names = _entity(entry.entity)
    if isinstance(names, Refusal):
        return names
    keys = (CONNECTIONS,) if "ip" in names else CLIENT_KEYS
    changes: dict[str, float | None] = {}
    for op in entry.ops:
        if op.key in changes:
            return _wrong(f"Duplicate quota key {op.key}")
        if op.key not in keys and not op.remove:
            return _wrong(f"Invalid configuration key {op.key}")
        if not op.remove:
            why = _value_fault(op.key, op.value)
            if why:
                return _wrong(why)
        if op.key in keys:
            changes[op.key] = None if op.remove else op.value
    return SetQuota(names.get("user"), names.get("client-id"), names.get("ip"), changes)


def _entity(parts: list[EntityData]) -> dict[str, str] | Refusal:
    names: dict[str, str] = {}
    for part in parts:
        if part.entity_type not in KINDS:
            return _wrong(f"Unhandled client quota entity type: {part.entity_type}")
        if part.entity_type in names:
            return _wrong(f"Invalid client quota entity, duplicate entity entry {part.entity_type}")
        if part.entity_name == "":
            return _wrong(f"Empty {part.entity_type} not supported")
        names[part.entity_type] = DEFAULT_NAME if part.entity_name is None else part.entity_name
    if not names:
        return _wrong("Invalid empty client quota entity")
    address = names.get("ip")
    if address is not None:
        if len(names) > 1:
            return _wrong(
                "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
            )
        if address != DEFAULT_NAME and not _is_address(address):
            return _wrong(f"{address} is not a valid IP or resolvable host.")
    return names


def _value_fault(key: str, value: float) -> str:
    if not value > 0:
        return f"Quota {key} must be greater than 0"
    most = INTEGRAL.get(key)
    if most is not None:
        if value > most:
            return f"Proposed value for {key} is too large for a {'INT' if key == CONNECTIONS else 'LONG'}."
        if value % 1 > _FRACTION:
            return f"{key} cannot be a fractional value."
    elif value == float("inf"):
        return f"Quota {key} must be finite"
    return ""


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _wrong(why: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, why)


def _told(change: SetQuota) -> str:
    entity = zip(KINDS, (change.user, change.client_id, change.address), strict=True)
    whose = " ".join(f"{kind}={literal(name or 'default')}" for kind, name in entity if name is not None)
    values = " ".join(f"{key}={'none' if value is None else value}" for key, value in change.changes.items())
    return f"{whose} {values}"


def _answer(entry: EntryData, refusal: Refusal | None) -> AlteredEntry:
    return AlteredEntry(
        error_code=ErrorCode.NONE if refusal is None else refusal.code,
        error_message=None if refusal is None else refusal.message,
        entity=entry.entity,
    )


def refused(message: AlterClientQuotasRequest, code: ErrorCode) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[
            AlteredEntry(error_code=code, error_message=code.name, entity=entry.entity)
            for entry in message.entries
        ]
    )
