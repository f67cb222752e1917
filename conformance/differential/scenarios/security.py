"""SASL where no listener asks for it; quotas and credentials where there are none."""

from collections.abc import Iterator
from typing import Any

from conformance.differential.scenario import Draw, Step, scenario

EXACT, DEFAULT, SPECIFIED = 0, 1, 2


@scenario("SaslHandshake")
def sasl_begun(draw: Draw, version: int) -> Iterator[Step]:
    yield Step({"Mechanism": "PLAIN"}, note="a mechanism")
    yield Step({"Mechanism": ""}, note="none")


@scenario("SaslAuthenticate")
def sasl_continued(draw: Draw, version: int) -> Iterator[Step]:
    yield Step({"AuthBytes": b"\0user\0password"}, note="a password")
    yield Step({"AuthBytes": b""}, note="nothing")


def component(kind: str, match_type: int, match: str | None = None) -> dict[str, Any]:
    return {"EntityType": kind, "MatchType": match_type, "Match": match}


@scenario("DescribeClientQuotas")
def quotas_described(draw: Draw, version: int) -> Iterator[Step]:
    filters = {
        "all": [],
        "users": [component("user", SPECIFIED)],
        "one user": [component("user", EXACT, "somebody"), component("client-id", DEFAULT)],
        "an address": [component("ip", EXACT, "127.0.0.1")],
        "an address and a user": [component("ip", SPECIFIED), component("user", SPECIFIED)],
        "twice": [component("user", SPECIFIED), component("user", DEFAULT)],
        "no type": [component("", SPECIFIED)],
        "another type": [component("planet", SPECIFIED)],
        "exactly nothing": [component("user", EXACT)],
        "default with a name": [component("user", DEFAULT, "somebody")],
        "any with a name": [component("user", SPECIFIED, "somebody")],
        "another match": [component("user", 9)],
    }
    for note, components in filters.items():
        yield Step({"Components": components, "Strict": len(components) == 1}, note=note)


@scenario("DescribeUserScramCredentials")
def credentials_described(draw: Draw, version: int) -> Iterator[Step]:
    yield Step({"Users": None}, note="all")
    yield Step({"Users": []}, note="none named")
    yield Step({"Users": [{"Name": "nobody"}]}, note="one")
    yield Step({"Users": [{"Name": "nobody"}, {"Name": "nobody"}]}, note="one twice")
