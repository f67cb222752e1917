"""Who asks: users, and the access rules that each of them has. Most follow from the rights in the registry."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from penstock.broker.acl import CLUSTER_NAME, Operation, Resource
from penstock.broker.registry import APIS, Api
from penstock.broker.rights import Right
from penstock.security.words import ALL_OPERATIONS, EVERY_NAME, Pattern, Permission

PASSWORD = "the-same-for-all"
STRANGER, NOBODY = "stranger", "nobody"
"""Who does not log in; who has no rule at all, and logs in by SCRAM."""
FIRST, SECOND = "own-first", "own-second"
"""The names of two topics, two groups, two transactional ids and two users."""
ELSEWHERE, HERE = "10.9.9.9", "127.0.0.1"
IMPLYING = {
    Resource.TOPIC: Operation.WRITE,
    Resource.GROUP: Operation.READ,
    Resource.CLUSTER: Operation.ALTER,
    Resource.TRANSACTIONAL_ID: Operation.WRITE,
}
"""An operation that is enough for Describe."""


@dataclass(frozen=True, slots=True)
class Rule:
    operation: int
    resource: Resource
    name: str
    pattern: Pattern = Pattern.LITERAL
    permission: Permission = Permission.ALLOW
    host: str = EVERY_NAME

    def creation(self, user: str) -> dict[str, Any]:
        """As CreateAcls takes it."""
        return {
            "ResourceType": int(self.resource),
            "ResourceName": self.name,
            "ResourcePatternType": int(self.pattern),
            "Principal": f"User:{user}",
            "Host": self.host,
            "Operation": int(self.operation),
            "PermissionType": int(self.permission),
        }


Rules = tuple[Rule, ...]
ACTORS: dict[str, Rules] = {NOBODY: ()}
"""All users and their rules."""


def actor(name: str, *rules: Rule) -> str:
    """A user with these rules, there from the beginning."""
    assert name not in ACTORS, name
    ACTORS[name] = rules
    return name


def allowed(operation: int, resource: Resource, name: str, **more: Any) -> Rule:
    return Rule(operation, resource, name, **more)


def denied(operation: int, resource: Resource, name: str, **more: Any) -> Rule:
    return Rule(operation, resource, name, permission=Permission.DENY, **more)


def rights_of(row: Api) -> tuple[Right, ...]:
    return row.items if row.whole is None else (row.whole, *row.items)


def _names(resource: Resource) -> tuple[str, ...]:
    match resource:
        case Resource.CLUSTER:
            return (CLUSTER_NAME,)
        case Resource.USER:
            return (f"User:{FIRST}", f"User:{SECOND}")
        case Resource.DELEGATION_TOKEN:  # whose names nobody knows before
            return (EVERY_NAME,)
    return (FIRST, SECOND)


def _exactly(rights: tuple[Right, ...], **more: Any) -> Rules:
    return tuple(
        Rule(right.operation, right.resource, name, **more)
        for right in rights
        for name in _names(right.resource)
    )


def _everywhere(rights: tuple[Right, ...]) -> Rules:
    return tuple(
        Rule(
            right.operation,
            right.resource,
            CLUSTER_NAME if right.resource is Resource.CLUSTER else EVERY_NAME,
        )
        for right in rights
    )


def _prefixed(rights: tuple[Right, ...]) -> Rules:
    """By the beginning of the names, of what has more than one."""
    return tuple(
        rule
        if rule.name in (CLUSTER_NAME, EVERY_NAME)
        else replace(rule, name=rule.name[: -len("econd")], pattern=Pattern.PREFIXED)
        for rule in _exactly(rights)
    )


def _first_denied(rights: tuple[Right, ...], operation: int | None = None, **more: Any) -> Rules:
    """Of the cluster there is no second."""
    return tuple(
        denied(operation or right.operation, right.resource, _names(right.resource)[0], **more)
        for right in rights
        if right.resource is not Resource.CLUSTER
    )


def _implied(rights: tuple[Right, ...]) -> tuple[Right, ...]:
    return tuple(
        right._replace(operation=IMPLYING.get(right.resource, right.operation))
        if right.operation is Operation.DESCRIBE
        else right._replace(operation=Operation.ALTER_CONFIGS)
        if right.operation is Operation.DESCRIBE_CONFIGS
        else right
        for right in rights
    )


def cases(row: Api) -> Iterator[tuple[str, Rules]]:
    """What somebody may have who uses this API: a name for it, and the rules."""
    rights = rights_of(row)
    yield "exact", _exactly(rights)
    if not rights:
        return
    yield "first_only", tuple(rule for rule in _exactly(rights) if not rule.name.endswith(SECOND))
    for at, right in enumerate(rights):
        others = (*rights[:at], *rights[at + 1 :])
        word = f"{right.operation.name}_{right.resource.name}".lower()
        yield f"without_{word}", _exactly(others)
        if right.or_cluster is not None:
            instead = Rule(right.or_cluster, Resource.CLUSTER, CLUSTER_NAME)
            yield f"cluster_for_{word}", (*_exactly(others), instead)
        if right.or_any is not None:
            instead = Rule(right.or_any[0], right.or_any[1], "whatever")
            yield f"any_for_{word}", (*_exactly(others), instead)
    yield "wildcard_but_first", (*_everywhere(rights), *_first_denied(rights))
    yield "prefix_but_first", (*_prefixed(rights), *_first_denied(rights, pattern=Pattern.PREFIXED))
    yield "all_operations_denied", (*_everywhere(rights), *_first_denied(rights, ALL_OPERATIONS))
    yield (
        "everything_denied",
        (*_exactly(rights), *(replace(r, permission=Permission.DENY) for r in _everywhere(rights))),
    )
    yield "elsewhere", _exactly(rights, host=ELSEWHERE)
    yield "here", (*_exactly(rights, host=HERE), *_first_denied(rights, host=ELSEWHERE))
    if _implied(rights) != rights:
        yield "implied", _exactly(_implied(rights))


def derived_actor(row: Api, case: str) -> str:
    return f"{row.name}-{case.replace('_', '-')}"


for _row in APIS.values():
    for _case, _rules in cases(_row):
        actor(derived_actor(_row, _case), *_rules)
