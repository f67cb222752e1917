"""Access rules as messages carry them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.audit import literal
from penstock.metadata.access import AccessRule
from penstock.security.filters import RuleFilter
from penstock.security.words import ALL_OPERATIONS, ANY, Operation, Pattern, Permission, Resource

if TYPE_CHECKING:
    from penstock.broker.context import Broker

RULES_PER_REQUEST_MAX = 10_000
"""As in Kafka: so many rules change in one request at most."""


class FilterMessage(Protocol):
    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def rule_filter(message: FilterMessage, version: int) -> RuleFilter:
    """The filter of a message. Version 0 knows literal names only, and its "any" means those."""
    return RuleFilter(
        message.resource_type_filter,
        message.resource_name_filter,
        Pattern.LITERAL if version == 0 else message.pattern_type_filter,
        message.principal_filter,
        message.host_filter,
        message.operation,
        message.permission_type,
    )


def has_authorizer(broker: Broker) -> bool:
    return bool(broker.settings.authorizer_class_name)


def shown(rule: AccessRule) -> str:
    """A rule, for the audit."""
    kind = _word(Resource, rule.resource_type)
    pattern = _word(Pattern, rule.pattern_type)
    verb = _word(Permission, rule.permission)
    operation = "all" if rule.operation == ALL_OPERATIONS else _word(Operation, rule.operation)
    return (
        f"{verb} {operation} {kind}={literal(rule.name)} pattern={pattern} "
        f"to={literal(rule.principal)} from={literal(rule.host)}"
    )


def _word(words: type[Resource | Pattern | Permission | Operation], number: int) -> str:
    return words(number).name.lower() if number in tuple(words) else str(number)


__all__ = ["ANY", "RULES_PER_REQUEST_MAX", "FilterMessage", "has_authorizer", "rule_filter", "shown"]
