"""Filters of access rules: what DescribeAcls and DeleteAcls ask for."""

from __future__ import annotations

from typing import NamedTuple

from penstock.metadata.access import AccessRule
from penstock.security.words import ALL_OPERATIONS, ANY, EVERY_NAME, Operation, Pattern, Permission, Resource


class RuleFilter(NamedTuple):
    """None and ANY match whatever there is."""

    resource_type: int = ANY
    name: str | None = None
    pattern_type: int = Pattern.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = ANY
    permission: int = ANY

    def matches(self, rule: AccessRule) -> bool:
        return (
            self.resource_type in (ANY, rule.resource_type)
            and self._names(rule)
            and (self.principal is None or self.principal == rule.principal)
            and (self.host is None or self.host == rule.host)
            and self.operation in (ANY, rule.operation)
            and self.permission in (ANY, rule.permission)
        )

    def _names(self, rule: AccessRule) -> bool:
        pattern = self.pattern_type
        if pattern not in (Pattern.ANY, Pattern.MATCH, rule.pattern_type):
            return False
        name = self.name
        if name is None or rule.name == name:
            return True
        if pattern != Pattern.MATCH:
            return False
        if rule.pattern_type == Pattern.PREFIXED:
            return name.startswith(rule.name)
        return rule.name == EVERY_NAME

    @property
    def is_known(self) -> bool:
        """Whether all of its words are ours."""
        return (
            self.resource_type in (ANY, *Resource)
            and self.pattern_type in tuple(Pattern)
            and self.operation in (ANY, ALL_OPERATIONS, *Operation)
            and self.permission in (ANY, *Permission)
        )
