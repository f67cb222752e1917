"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments, UnregisterBroker on one node."""

from collections.abc import Iterator
from typing import Any

from conformance.differential.scenario import Draw, Step, scenario
from conformance.differential.scenarios.base import DATA, EMPTY
from conformance.differential.scenarios.topics import create, new_topic

PREFERRED, UNCLEAN = 0, 1
NOBODY = 7
"""A broker that does not exist. The one that does is 1."""


def election(kind: int, wanted: list[dict[str, Any]] | None, **more: Any) -> dict[str, Any]:
    return {"ElectionType": kind, "TopicPartitions": wanted, "TimeoutMs": 10_000, **more}


def places(name: str, *partitions: int) -> dict[str, Any]:
    return {"Topic": name, "Partitions": list(partitions)}


@scenario("ElectLeaders")
def elect_not_needed(draw: Draw, version: int) -> Iterator[Step]:
    kinds = (PREFERRED, UNCLEAN) if version >= 1 else (PREFERRED,)
    for kind in kinds:
        yield Step(election(kind, [places(DATA, 0, 2), places(EMPTY, 1)]), note=f"kind {kind}")


@scenario("ElectLeaders")
def elect_unknown(draw: Draw, version: int) -> Iterator[Step]:
    absent = draw.fresh("absent")
    yield Step(election(PREFERRED, [places(absent, 0), places(DATA, 3, -1, 0)]))
    yield Step(election(PREFERRED, [places("", 0), places("has space", 0)]))
    yield Step(election(PREFERRED, []), note="nothing")
    yield Step(election(PREFERRED, [places(DATA)]), note="no partition")


@scenario("ElectLeaders")
def elect_repeated(draw: Draw, version: int) -> Iterator[Step]:
    yield Step(election(PREFERRED, [places(DATA, 0, 0)]), note="a partition twice")
    yield Step(election(PREFERRED, [places(DATA, 0), places(DATA, 1)]), note="a topic twice")


@scenario("ElectLeaders")
def elect_everything(draw: Draw, version: int) -> Iterator[Step]:
    yield Step(election(PREFERRED, None))


@scenario("ElectLeaders")
def elect_kind(draw: Draw, version: int) -> Iterator[Step]:
    if version >= 1:
        for kind in (2, -1, 127):
            yield Step(election(kind, [places(DATA, 0)]), note=f"kind {kind}")
        yield Step(election(9, None), note="kind 9, everything")


def reassignment(name: str, partition: int, brokers: list[int] | None, **more: Any) -> dict[str, Any]:
    wanted = {"Name": name, "Partitions": [{"PartitionIndex": partition, "Replicas": brokers}]}
    return {"TimeoutMs": 10_000, "Topics": [wanted], **more}


@scenario("AlterPartitionReassignments")
def reassign_odd(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh()
    yield create(new_topic(name, 2))
    for brokers in ([1], [NOBODY], [1, NOBODY], [1, 1], [], [-1], None):
        yield Step(reassignment(name, 0, brokers), note=str(brokers))
    for partition in (2, -1):
        yield Step(reassignment(name, partition, [1]), note=f"partition {partition}")
        yield Step(reassignment(name, partition, None), note=f"partition {partition}, cancelled")
    yield Step(reassignment(draw.fresh("absent"), 0, [1]), note="no such topic")
    yield Step(reassignment("", 0, None), note="no name")
    yield Step({"TimeoutMs": 10_000, "Topics": []}, note="nothing")
    yield Step({"TimeoutMs": 10_000, "Topics": [{"Name": name, "Partitions": []}]}, note="no partition")


@scenario("AlterPartitionReassignments")
def reassign_factor(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh()
    yield create(new_topic(name))
    if version >= 1:
        for brokers in ([1], [1, NOBODY], [], None):
            asked = reassignment(name, 0, brokers, AllowReplicationFactorChange=False)
            yield Step(asked, note=f"{brokers}, factor fixed")


@scenario("AlterPartitionReassignments")
def reassign_mixed(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh()
    yield create(new_topic(name, 3))
    partitions = [{"PartitionIndex": at, "Replicas": one} for at, one in enumerate(([1], [NOBODY], None))]
    yield Step({"TimeoutMs": 10_000, "Topics": [{"Name": name, "Partitions": partitions}]})


@scenario("ListPartitionReassignments")
def list_reassignments(draw: Draw, version: int) -> Iterator[Step]:
    absent = draw.fresh("absent")
    for wanted in (
        None,
        [],
        [{"Name": DATA, "PartitionIndexes": [0, 1, 9, -1]}],
        [{"Name": absent, "PartitionIndexes": [0]}, {"Name": DATA, "PartitionIndexes": []}],
    ):
        yield Step({"TimeoutMs": 10_000, "Topics": wanted}, note=str(wanted))


@scenario("UnregisterBroker")
def unregister_unknown(draw: Draw, version: int) -> Iterator[Step]:
    for broker in (NOBODY, -1, 2**31 - 1):
        yield Step({"BrokerId": broker}, note=str(broker))
