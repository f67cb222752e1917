"""DescribeAcls, CreateAcls, DeleteAcls: the answers of a broker without an authorizer."""

from collections.abc import Iterator
from typing import Any

from conformance.differential.scenario import Draw, Step, scenario
from conformance.differential.scenarios.base import DATA

ANY = 1
TOPIC, GROUP = 2, 3
LITERAL = 3
READ, ALLOW = 3, 3


def matching(kind: int, name: str | None, version: int, **more: Any) -> dict[str, Any]:
    found = {
        "ResourceTypeFilter": kind,
        "ResourceNameFilter": name,
        "PrincipalFilter": None,
        "HostFilter": None,
        "Operation": ANY,
        "PermissionType": ANY,
    }
    return found | ({"PatternTypeFilter": ANY} if version >= 1 else {}) | more


def rule(kind: int, name: str, version: int) -> dict[str, Any]:
    made = {
        "ResourceType": kind,
        "ResourceName": name,
        "Principal": "User:somebody",
        "Host": "*",
        "Operation": READ,
        "PermissionType": ALLOW,
    }
    return made | ({"ResourcePatternType": LITERAL} if version >= 1 else {})


@scenario("DescribeAcls")
def acls_described(draw: Draw, version: int) -> Iterator[Step]:
    yield Step(matching(ANY, None, version), note="all")
    yield Step(
        matching(TOPIC, DATA, version, PrincipalFilter="User:somebody", HostFilter="*"), note="one topic"
    )


@scenario("CreateAcls")
def acls_created(draw: Draw, version: int) -> Iterator[Step]:
    yield Step({"Creations": []}, note="none")
    yield Step(
        {"Creations": [rule(TOPIC, DATA, version), rule(GROUP, draw.fresh("group"), version)]}, note="two"
    )


@scenario("DeleteAcls")
def acls_deleted(draw: Draw, version: int) -> Iterator[Step]:
    yield Step({"Filters": []}, note="none")
    yield Step({"Filters": [matching(TOPIC, DATA, version), matching(ANY, None, version)]}, note="two")
