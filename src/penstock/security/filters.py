"""Filters of access rules: what DescribeAcls and DeleteAcls ask for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
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

    @property
    def only(self) -> AccessRule | None:
        """The one rule that it matches, if there is only one that it could match."""
        if self.name is None or self.principal is None or self.host is None:
            return None
        if ANY in (self.resource_type, self.operation, self.permission):
            return None
        if self.pattern_type not in (Pattern.LITERAL, Pattern.PREFIXED):
            return None
        return AccessRule(
            self.resource_type,
            self.name,
            self.pattern_type,
            self.principal,
            self.host,
            self.operation,
            self.permission,
        )


class RuleSearch:
    """Finds what many filters match among the same rules.

    Who removes a thousand rules sends a thousand filters. A walk over ten thousand rules for each would take
    seconds, so only rules that have the name or the principal of a filter are looked at.
    """

    def __init__(self, rules: Mapping[AccessRule, AccessRule]) -> None:
        self._rules = rules

    def matching(self, wanted: RuleFilter) -> list[AccessRule]:
        only = wanted.only
        if only is not None:
            found = self._rules.get(only)
            return [] if found is None else [found]
        return [rule for rule in self._candidates(wanted) if wanted.matches(rule)]

    def _candidates(self, wanted: RuleFilter) -> Iterable[AccessRule]:
        """All that it matches are among these."""
        name, principal = wanted.name, wanted.principal
        of_principal = None if principal is None else self._by_principal.get(principal, [])
        if name is None:
            return self._rules if of_principal is None else of_principal
        names = {name}
        if wanted.pattern_type == Pattern.MATCH:
            prefixes = (name[:size] for size in self._name_sizes if size < len(name))
            names.update((EVERY_NAME, *(one for one in prefixes if one in self._by_name)))
        of_names = [rule for one in sorted(names) for rule in self._by_name.get(one, ())]
        return of_names if of_principal is None or len(of_names) < len(of_principal) else of_principal

    @cached_property
    def _by_name(self) -> dict[str, list[AccessRule]]:
        found = defaultdict(list)
        for rule in self._rules:
            found[rule.name].append(rule)
        return found

    @cached_property
    def _name_sizes(self) -> set[int]:
        return set(map(len, self._by_name))

    @cached_property
    def _by_principal(self) -> dict[str, list[AccessRule]]:
        found = defaultdict(list)
        for rule in self._rules:
            found[rule.principal].append(rule)
        return found
