"""The decision on access, rule by rule as Kafka's StandardAuthorizer decides.

A rule applies if its resource matches (the name itself, a prefix of it, or `*`), its principal (the same, or
`User:*`), its host (the same address, or `*`) and its operation (the same, or All).

- Super users may do everything.
- Any rule that applies and denies, refuses. Else any that applies and allows, allows. Else it is refused.
- For rules that allow: Read, Write, Delete and Alter are enough for Describe, AlterConfigs for
  DescribeConfigs. A rule that denies implies nothing.
- With `allow.everyone.if.no.acl.found`, a resource that no rule of anybody is for is open.

An `AccessRules` never changes, so its decisions are kept: the second request of a kind costs one look into a
dict. Where a few rules of many change, the next one is made from it (`changed`), and shares what stays.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from penstock.metadata.access import AccessRule
from penstock.security.addresses import canonical
from penstock.security.words import (
    ALL_OPERATIONS,
    EVERY_NAME,
    EVERYBODY,
    Operation,
    Pattern,
    Permission,
    Resource,
)

KEPT_MAX: Final = 20_000
"""So many decisions are kept. Names come from clients, so their number has no other bound."""

NAME_KEPT_MAX: Final = 249
"""No topic has a longer name. Decisions on longer names, which anybody can send, are made anew each time."""

_ENOUGH_FOR: Final = {
    Operation.DESCRIBE: frozenset(
        (Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)
    ),
    Operation.DESCRIBE_CONFIGS: frozenset((Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)),
}
_HARDCODED: Final = "hardcode"
"""The name by which Kafka asks whether somebody may do it to any resource: a super user may."""

_ByPrincipal = dict[str, list[AccessRule]]
_Place = tuple[int, int, str, str]
"""Where a rule stands: kind of resource, pattern, name, principal."""


class _Kind:
    """The rules for one kind of resource."""

    __slots__ = ("lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, _ByPrincipal] = {}
        self.prefixed: dict[str, _ByPrincipal] = {}
        self.lengths: list[int] = []

    def matching(self, name: str) -> Iterator[_ByPrincipal]:
        """The rules whose resource is this one."""
        found = self.literal.get(name)
        if found is not None:
            yield found
        if name != EVERY_NAME:
            found = self.literal.get(EVERY_NAME)
            if found is not None:
                yield found
        for length in self.lengths:
            if length > len(name):
                return
            found = self.prefixed.get(name[:length])
            if found is not None:
                yield found

    def copied(self) -> _Kind:
        """Another one with the same rules. The rules of a name are shared, and not to be written to."""
        copy = _Kind()
        copy.literal, copy.prefixed, copy.lengths = self.literal.copy(), self.prefixed.copy(), self.lengths
        return copy

    def names(self, pattern: int) -> dict[str, _ByPrincipal]:
        return self.prefixed if pattern == Pattern.PREFIXED else self.literal

    def measure(self) -> None:
        """Note how long the prefixes are."""
        self.lengths = sorted(set(map(len, self.prefixed)))


class Subject(NamedTuple):
    """Whom a decision is for."""

    principal: str
    host: str


class AccessRules:
    """Rules and the settings beside them, as an immutable value."""

    __slots__ = ("_everyone_if_none", "_kept", "_kinds", "_supers", "count")

    def __init__(
        self,
        rules: Iterable[AccessRule],
        super_users: frozenset[str] = frozenset(),
        *,
        allow_everyone_if_no_rule: bool = False,
    ) -> None:
        self._supers = super_users
        self._everyone_if_none = allow_everyone_if_no_rule
        self._kept: dict[tuple[str, str, int, int, str | None], bool] = {}
        """None for the name: on any resource of the kind."""
        self._kinds: dict[int, _Kind] = {}
        self.count = 0
        for rule in rules:
            names = self._kinds.setdefault(rule.resource_type, _Kind()).names(rule.pattern_type)
            of_principal = names.setdefault(rule.name, {}).setdefault(rule.principal, [])
            of_principal.append(_indexed(rule))
            self.count += 1
        for kind in self._kinds.values():
            kind.measure()

    def changed(self, added: Iterable[AccessRule], removed: Iterable[AccessRule]) -> AccessRules:
        """These rules, without those that are `removed`, which are among them, and with those that are
        `added`, which are not. It costs the names of those kinds, copied, and what changes."""
        after = AccessRules((), self._supers, allow_everyone_if_no_rule=self._everyone_if_none)
        after._kinds = {resource: kind.copied() for resource, kind in self._kinds.items()}
        after.count = self.count
        changes: defaultdict[_Place, tuple[list[AccessRule], Counter[AccessRule]]]
        changes = defaultdict(lambda: ([], Counter()))
        for rule in added:
            changes[_place(rule)][0].append(_indexed(rule))
            after.count += 1
        for rule in removed:
            changes[_place(rule)][1][_indexed(rule)] += 1
            after.count -= 1
        ours: set[tuple[int, int, str]] = set()
        for (resource, pattern, name, principal), (more, gone) in changes.items():
            names = after._kinds.setdefault(resource, _Kind()).names(pattern)
            if (resource, pattern, name) not in ours:
                ours.add((resource, pattern, name))
                names[name] = dict(names.get(name, {}))
            by_principal = names.setdefault(name, {})
            rules = [rule for rule in by_principal.pop(principal, ()) if not _taken(rule, gone)] + more
            if rules:
                by_principal[principal] = rules
            elif not by_principal:
                del names[name]
        for resource in {place[0] for place in changes}:
            after._kinds[resource].measure()
        return after

    def allow(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> bool:
        if len(name) > NAME_KEPT_MAX:
            return self._decide(Subject(principal, host), operation, resource, name)
        key = (principal, host, operation, resource, name)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._keep(key, self._decide(Subject(principal, host), operation, resource, name))
        return kept

    def _keep(self, key: tuple[str, str, int, int, str | None], decision: bool) -> bool:
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        self._kept[key] = decision
        return decision

    def _decide(self, subject: Subject, operation: Operation, resource: Resource, name: str) -> bool:
        if subject.principal in self._supers:
            return True
        kind = self._kinds.get(resource)
        allowed = found = False
        for by_principal in () if kind is None else kind.matching(name):
            found = True
            for rule in _for(subject, by_principal):
                if rule.permission == Permission.DENY:
                    if rule.operation in (operation, ALL_OPERATIONS):
                        return False
                elif not allowed:
                    enough = _ENOUGH_FOR.get(operation)
                    allowed = rule.operation == ALL_OPERATIONS or (
                        rule.operation == operation if enough is None else rule.operation in enough
                    )
        return allowed or (not found and self._everyone_if_none)

    def allow_any(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        """Is the operation allowed on at least one resource of the kind, whatever its name?

        As Kafka asks it: a denial of `*` refuses, else an allowance of `*` allows. Else an allowance counts
        unless a denial covers all of its names. What one operation implies of another does not count here.
        All rules of the kind are looked at, and whoever connects may ask as often as they like.
        """
        key = (principal, host, operation, resource, None)
        kept = self._kept.get(key)
        return self._keep(key, self._decide_any(*key[:4])) if kept is None else kept

    def _decide_any(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        if self.allow(principal, host, operation, resource, _HARDCODED):
            return True
        kind = self._kinds.get(resource)
        if kind is None:
            return False
        subject = Subject(principal, host)
        literal = _names(kind.literal, subject, operation)
        prefixed = _names(kind.prefixed, subject, operation)
        if EVERY_NAME in literal.denied:
            return False
        if EVERY_NAME in literal.allowed:
            return True
        single = (name for name in literal.allowed if name not in literal.denied)
        return any(not _covered(name, prefixed) for name in (*single, *prefixed.allowed))


class _Names(NamedTuple):
    """Names that somebody may, and may not, do an operation to."""

    allowed: set[str]
    denied: set[str]


def _names(patterns: dict[str, _ByPrincipal], subject: Subject, operation: Operation) -> _Names:
    found = _Names(set(), set())
    for name, by_principal in patterns.items():
        for rule in _for(subject, by_principal):
            if rule.operation in (operation, ALL_OPERATIONS):
                (found.denied if rule.permission == Permission.DENY else found.allowed).add(name)
    return found


def _covered(name: str, prefixed: _Names) -> bool:
    return any(name[:length] in prefixed.denied for length in range(1, len(name) + 1))


def _indexed(rule: AccessRule) -> AccessRule:
    """The rule as decisions compare it: its host in one way of writing."""
    return replace(rule, host=canonical(rule.host))


def _place(rule: AccessRule) -> _Place:
    return rule.resource_type, rule.pattern_type, rule.name, rule.principal


def _taken(rule: AccessRule, gone: Counter[AccessRule]) -> bool:
    """Whether the rule goes. Of two whose hosts are one, written differently, one may stay."""
    if gone[rule] <= 0:
        return False
    gone[rule] -= 1
    return True


def _for(subject: Subject, by_principal: _ByPrincipal) -> Iterator[AccessRule]:
    """The rules that are for this principal on this host."""
    for principal in (subject.principal, EVERYBODY):
        for rule in by_principal.get(principal, ()):
            if rule.host in (subject.host, EVERY_NAME):
                yield rule
        if subject.principal == EVERYBODY:
            return


def super_users(setting: str) -> frozenset[str]:
    """The principals of `super.users`: separated by semicolons, because names may hold commas."""
    return frozenset(name.strip() for name in setting.split(";") if name.strip())
