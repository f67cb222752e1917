"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources."""

from collections.abc import Iterator
from typing import Any

from conformance.differential.scenario import Draw, Step, scenario
from conformance.differential.scenarios.base import COMPACT, DATA
from conformance.differential.scenarios.topics import create, new_topic

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def describe(kind: int, name: str, keys: list[str] | None = None, **more: Any) -> Step:
    asked = {"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": keys}
    return Step({"Resources": [asked], **more}, note=f"{kind} {name!r} {keys or ''} {more or ''}")


@scenario("DescribeConfigs")
def describe_topic(draw: Draw, version: int) -> Iterator[Step]:
    yield describe(TOPIC, DATA)
    yield describe(TOPIC, COMPACT, IncludeSynonyms=True)
    yield describe(TOPIC, DATA, ["retention.ms", "no.such.config", "cleanup.policy"], IncludeSynonyms=True)
    yield describe(TOPIC, DATA, [])
    if version >= 3:
        yield describe(TOPIC, DATA, ["retention.ms"], IncludeDocumentation=True)


@scenario("DescribeConfigs")
def describe_broker(draw: Draw, version: int) -> Iterator[Step]:
    yield describe(BROKER, "1")
    keys = [
        "log.retention.ms",
        "log.retention.hours",
        "message.max.bytes",
        "num.partitions",
        "auto.create.topics.enable",
    ]
    yield describe(BROKER, "1", keys, IncludeSynonyms=True)
    yield describe(BROKER, "")
    yield describe(BROKER, "", ["log.retention.ms"])


@scenario("DescribeConfigs")
def describe_wrong(draw: Draw, version: int) -> Iterator[Step]:
    yield describe(TOPIC, draw.fresh("absent"))
    yield describe(TOPIC, "bad name")
    yield describe(TOPIC, "")
    yield describe(BROKER, "77")
    yield describe(BROKER, "one")
    yield describe(LOGGER, "77")
    yield describe(0, "x")
    yield describe(99, "x")
    yield Step({"Resources": []})


@scenario("DescribeConfigs")
def describe_repeated(draw: Draw, version: int) -> Iterator[Step]:
    same = {"ResourceType": TOPIC, "ResourceName": DATA, "ConfigurationKeys": ["retention.ms"]}
    yield Step({"Resources": [same, same, {**same, "ResourceName": "bad name"}]})


def _alter(kind: int, name: str, **configs: str | None) -> dict[str, Any]:
    settings = [{"Name": key.replace("_", "."), "Value": value} for key, value in configs.items()]
    return {"ResourceType": kind, "ResourceName": name, "Configs": settings}


@scenario("AlterConfigs")
def alter_topic(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh()
    yield create(new_topic(name, retention_ms="5000"))
    yield Step({"Resources": [_alter(TOPIC, name, cleanup_policy="compact,delete", segment_bytes="1048576")]})
    yield _look(TOPIC, name)
    yield Step({"Resources": [_alter(TOPIC, name)]}, note="nothing set: all go back")
    yield _look(TOPIC, name)


@scenario("AlterConfigs")
def alter_wrong(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh()
    yield create(new_topic(name))
    for configs in ({"no_such": "1"}, {"retention_ms": "x"}, {"retention_ms": None}, {"cleanup_policy": "x"}):
        yield Step({"Resources": [_alter(TOPIC, name, **configs)]}, note=str(configs))
    yield Step({"Resources": [_alter(TOPIC, draw.fresh("absent"), retention_ms="1000")]}, note="absent")
    yield Step({"Resources": [_alter(TOPIC, "bad name", retention_ms="1000")]}, note="bad name")
    yield Step({"Resources": [_alter(BROKER, "77", log_retention_ms="1000")]}, note="no such broker")
    yield Step({"Resources": [_alter(BROKER, "x", log_retention_ms="1000")]}, note="broker x")
    yield Step({"Resources": [_alter(0, "x", a="1")]}, note="unknown type")
    if version == 2:  # Kafka never answers it, and waiting for nothing once is enough
        yield Step({"Resources": [_alter(TOPIC, name, retention_ms="1")] * 2}, note="repeated")
    yield Step(
        {"Resources": [_alter(TOPIC, name, retention_ms="1")], "ValidateOnly": True}, note="validate only"
    )
    yield _look(TOPIC, name)
    yield Step({"Resources": []})


def _change(kind: int, name: str, *changes: tuple[str, int, str | None]) -> dict[str, Any]:
    settings = [
        {"Name": key, "ConfigOperation": operation, "Value": value} for key, operation, value in changes
    ]
    return {"ResourceType": kind, "ResourceName": name, "Configs": settings}


def _look(kind: int, name: str) -> Step:
    asked = {"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": None}
    return Step({"Resources": [asked], "IncludeSynonyms": True}, api="DescribeConfigs", version=2)


@scenario("IncrementalAlterConfigs")
def increment_topic(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh()
    yield create(new_topic(name))
    for changes in (
        [("retention.ms", SET, "7000")],
        [("cleanup.policy", APPEND, "compact")],
        [("cleanup.policy", APPEND, "compact")],
        [("cleanup.policy", SUBTRACT, "delete")],
        [("retention.ms", DELETE, None), ("max.message.bytes", SET, "5000")],
        [("retention.ms", DELETE, None)],
        [("cleanup.policy", SUBTRACT, "compact")],
        [("cleanup.policy", DELETE, "ignored")],
    ):
        yield Step({"Resources": [_change(TOPIC, name, *changes)]}, note=str(changes))
        yield _look(TOPIC, name)


@scenario("IncrementalAlterConfigs")
def increment_wrong(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh()
    yield create(new_topic(name))
    for changes in (
        [("retention.ms", 9, "1")],
        [("retention.ms", APPEND, "1")],
        [("retention.ms", SUBTRACT, "1")],
        [("no.such.config", SET, "1")],
        [("no.such.config", DELETE, None)],
        [("retention.ms", SET, None)],
        [("retention.ms", SET, "x")],
        [("retention.ms", SET, "1"), ("retention.ms", SET, "2")],
        [("retention.ms", SET, "1"), ("no.such", SET, "2")],
        [("", SET, "1")],
    ):
        yield Step({"Resources": [_change(TOPIC, name, *changes)]}, note=str(changes))
    yield _look(TOPIC, name)
    good = _change(TOPIC, name, ("retention.ms", SET, "9000"))
    yield Step({"Resources": [good, good]}, note="repeated resource")
    yield Step({"Resources": [good], "ValidateOnly": True}, note="validate only")
    yield Step(
        {"Resources": [good, _change(TOPIC, "absent-one", ("retention.ms", SET, "1"))]}, note="one absent"
    )
    yield _look(TOPIC, name)
    yield Step({"Resources": []})


@scenario("IncrementalAlterConfigs")
def increment_broker(draw: Draw, version: int) -> Iterator[Step]:
    for name, key, value in (
        ("1", "log.retention.ms", "86400000"),
        ("", "log.retention.ms", "172800000"),
        ("", "num.partitions", "4"),
        ("1", "log.cleaner.threads", "many"),
        ("1", "listeners", "PLAINTEXT://:1"),
        ("77", "log.retention.ms", "1"),
        ("x", "log.retention.ms", "1"),
    ):
        yield Step(
            {"Resources": [_change(BROKER, name, (key, SET, value))]}, note=f"broker {name!r} {key}={value}"
        )
    asked = {
        "ResourceType": BROKER,
        "ResourceName": "1",
        "ConfigurationKeys": ["log.retention.ms", "num.partitions"],
    }
    yield Step({"Resources": [asked], "IncludeSynonyms": True}, api="DescribeConfigs", version=2)
    yield Step({"Resources": [_change(BROKER, "1", ("log.retention.ms", DELETE, None))]})
    yield Step({"Resources": [_change(BROKER, "", ("log.retention.ms", DELETE, None))]})


@scenario("IncrementalAlterConfigs")
def increment_broker_others(draw: Draw, version: int) -> Iterator[Step]:
    """Settings that the broker does not define may be for a plugin of it: they are kept."""
    own = f"{draw.fresh('plugin')}.limit"
    for name in ("1", ""):
        for key in (
            own,
            "cleanup.policy",
            "replica.socket.timeout.ms",
            "sasl.kerberos.min.time.before.relogin",
        ):
            change = _change(BROKER, name, (key, SET, "60000"))
            yield Step({"Resources": [change]}, note=f"broker {name!r} {key}")
        for keys in ([own], ["cleanup.policy"]):
            asked = {"ResourceType": BROKER, "ResourceName": name, "ConfigurationKeys": keys}
            look = {"Resources": [asked], "IncludeSynonyms": True, "IncludeDocumentation": True}
            yield Step(look, api="DescribeConfigs", version=4, note=f"broker {name!r} {keys}")
    for name in ("1", ""):
        for key in (own, "cleanup.policy", "sasl.kerberos.min.time.before.relogin"):
            change = _change(BROKER, name, (key, DELETE, None))
            yield Step({"Resources": [change]}, note=f"broker {name!r} without {key}")


@scenario("IncrementalAlterConfigs")
def increment_others(draw: Draw, version: int) -> Iterator[Step]:
    for kind, name, key in (
        (0, "x", "a"),
        (99, "x", "a"),
        (LOGGER, "77", "root"),
        (METRICS, "m", "no.such"),
        (GROUP, "", "a"),
    ):
        yield Step({"Resources": [_change(kind, name, (key, SET, "1"))]}, note=f"type {kind}")


@scenario("ListConfigResources")
def list_resources(draw: Draw, version: int) -> Iterator[Step]:
    yield Step({})
    if version >= 1:
        for kinds in ([TOPIC], [BROKER], [LOGGER], [GROUP], [99], [TOPIC, BROKER]):
            yield Step({"ResourceTypes": kinds}, note=str(kinds))
