"""DescribeLogDirs, AlterReplicaLogDirs."""

from collections.abc import Iterator

from conformance.differential.scenario import Draw, Step, scenario
from conformance.differential.scenarios.base import DATA, EMPTY


@scenario("DescribeLogDirs")
def log_dirs(draw: Draw, version: int) -> Iterator[Step]:
    yield Step({"Topics": [{"Topic": DATA, "Partitions": [0, 1]}]})
    yield Step(
        {
            "Topics": [
                {"Topic": EMPTY, "Partitions": [0, 9]},
                {"Topic": draw.fresh("absent"), "Partitions": [0]},
            ]
        }
    )
    yield Step({"Topics": [{"Topic": DATA, "Partitions": []}]}, note="no partitions")
    yield Step({"Topics": []}, note="no topics")
    yield Step(
        {"Topics": [{"Topic": DATA, "Partitions": [0]}, {"Topic": DATA, "Partitions": [0]}]}, note="repeated"
    )


@scenario("AlterReplicaLogDirs")
def other_log_dirs(draw: Draw, version: int) -> Iterator[Step]:
    topics = [{"Name": DATA, "Partitions": [0, 9]}, {"Name": draw.fresh("absent"), "Partitions": [0]}]
    yield Step({"Dirs": [{"Path": "/nowhere", "Topics": topics}]}, note="no such directory")
    yield Step({"Dirs": [{"Path": "/nowhere", "Topics": topics}] * 2}, note="repeated")
    yield Step({"Dirs": [{"Path": "/nowhere", "Topics": []}]}, note="no topics")
    yield Step({"Dirs": []}, note="no directories")
