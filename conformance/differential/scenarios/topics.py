"""Metadata, CreateTopics, DeleteTopics, CreatePartitions, DescribeTopicPartitions."""

from collections.abc import Iterator
from typing import Any

from conformance.differential.scenario import UNKNOWN_ID, Draw, Step, scenario, topic_id
from conformance.differential.scenarios.base import DATA, EMPTY
from conformance.differential.world import CREATE_TOPICS

BAD_NAMES = (
    "",
    ".",
    "..",
    "has space",
    "slash/inside",
    "../escape",
    "naïve",
    "a" * 249,
    "a" * 250,
    "tab\tbed",
)
TIMEOUT: dict[str, Any] = {"TimeoutMs": 10_000}


def new_topic(name: str, partitions: int = 1, replication: int = 1, **configs: Any) -> dict[str, Any]:
    settings = [{"Name": key.replace("_", "."), "Value": value} for key, value in configs.items()]
    return {"Name": name, "NumPartitions": partitions, "ReplicationFactor": replication, "Configs": settings}


def create(*wanted: dict[str, Any]) -> Step:
    """Prepare topics by a fixed version, whatever is under test."""
    return Step({"Topics": list(wanted), **TIMEOUT}, api="CreateTopics", version=CREATE_TOPICS)


# Metadata -----------------------------------------------------------------------------------------


@scenario("Metadata")
def metadata_known(draw: Draw, version: int) -> Iterator[Step]:
    asked = {"Topics": [{"Name": DATA}, {"Name": EMPTY}], "AllowAutoTopicCreation": False}
    yield Step(
        {**asked, "IncludeTopicAuthorizedOperations": True, "IncludeClusterAuthorizedOperations": True}
    )
    yield Step(asked)


@scenario("Metadata")
def metadata_all(draw: Draw, version: int) -> Iterator[Step]:
    yield Step({"Topics": None if version >= 1 else []})


@scenario("Metadata")
def metadata_none(draw: Draw, version: int) -> Iterator[Step]:
    if version >= 1:
        yield Step({"Topics": []})


@scenario("Metadata")
def metadata_unknown(draw: Draw, version: int) -> Iterator[Step]:
    if version >= 4:  # before, asking creates
        yield Step(
            {"Topics": [{"Name": draw.fresh("absent")}, {"Name": DATA}], "AllowAutoTopicCreation": False}
        )


@scenario("Metadata")
def metadata_bad_names(draw: Draw, version: int) -> Iterator[Step]:
    for name in BAD_NAMES:
        if len(name) != 249 or version >= 4:
            yield Step(
                {"Topics": [{"Name": name}], "AllowAutoTopicCreation": False},
                note=repr(name[:20]),
                catch_up=True,
            )


@scenario("Metadata")
def metadata_repeated(draw: Draw, version: int) -> Iterator[Step]:
    yield Step({"Topics": [{"Name": DATA}, {"Name": DATA}], "AllowAutoTopicCreation": False})


@scenario("Metadata")
def metadata_auto_create(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh("auto")
    yield Step(
        {"Topics": [{"Name": name}], "AllowAutoTopicCreation": True}, catch_up=True, note="first asking"
    )
    yield Step({"Topics": [{"Name": name}], "AllowAutoTopicCreation": True}, note="second asking")


@scenario("Metadata")
def metadata_by_id(draw: Draw, version: int) -> Iterator[Step]:
    if version >= 10:
        yield Step({"Topics": [{"TopicId": topic_id(DATA), "Name": None}], "AllowAutoTopicCreation": False})
        yield Step({"Topics": [{"TopicId": UNKNOWN_ID, "Name": None}], "AllowAutoTopicCreation": False})
        both = [{"TopicId": topic_id(DATA), "Name": None}, {"TopicId": UNKNOWN_ID, "Name": None}]
        yield Step({"Topics": both, "AllowAutoTopicCreation": False})
        yield Step(
            {"Topics": [{"TopicId": topic_id(DATA), "Name": EMPTY}], "AllowAutoTopicCreation": False},
            note="both",
        )
        yield Step(
            {"Topics": [{"TopicId": bytes(16), "Name": None}], "AllowAutoTopicCreation": False},
            note="neither",
        )


# CreateTopics -------------------------------------------------------------------------------------


@scenario("CreateTopics")
def create_plain(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh()
    yield Step({"Topics": [new_topic(name, draw.pick(1, 3, 7))], **TIMEOUT})
    yield Step({"Topics": [new_topic(name)], **TIMEOUT}, note="again")


@scenario("CreateTopics")
def create_defaults(draw: Draw, version: int) -> Iterator[Step]:
    yield Step({"Topics": [new_topic(draw.fresh(), -1, -1)], **TIMEOUT})


@scenario("CreateTopics")
def create_configs(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh()
    yield Step({"Topics": [new_topic(name, cleanup_policy="compact", retention_ms="1000")], **TIMEOUT})
    yield Step({"Resources": [{"ResourceType": 2, "ResourceName": name}]}, api="DescribeConfigs", version=2)


@scenario("CreateTopics")
def create_bad_names(draw: Draw, version: int) -> Iterator[Step]:
    for name in BAD_NAMES:
        if len(name) != 249:
            yield Step({"Topics": [new_topic(name)], **TIMEOUT}, note=repr(name[:20]))


@scenario("CreateTopics")
def create_colliding(draw: Draw, version: int) -> Iterator[Step]:
    stem = draw.fresh()
    yield Step({"Topics": [new_topic(f"{stem}.x")], **TIMEOUT})
    yield Step({"Topics": [new_topic(f"{stem}_x")], **TIMEOUT}, note="dot and underscore collide")


@scenario("CreateTopics")
def create_bad_sizes(draw: Draw, version: int) -> Iterator[Step]:
    for partitions, replication in ((0, 1), (-2, 1), (1, 0), (1, -2), (1, 3), (1, 32767)):
        yield Step(
            {"Topics": [new_topic(draw.fresh(), partitions, replication)], **TIMEOUT},
            note=f"{partitions}, {replication}",
        )


@scenario("CreateTopics")
def create_bad_configs(draw: Draw, version: int) -> Iterator[Step]:
    for configs in (
        {"no_such_config": "1"},
        {"retention_ms": "soon"},
        {"retention_ms": "-2"},
        {"cleanup_policy": "shred"},
        {"cleanup_policy": ""},
        {"compression_type": "brotli"},
        {"max_message_bytes": "-1"},
        {"segment_bytes": "1"},
        {"min_insync_replicas": "0"},
        {"message_timestamp_type": "Never"},
        {"retention_ms": None},
        {"min_compaction_lag_ms": "100", "max_compaction_lag_ms": "10"},
    ):
        yield Step({"Topics": [new_topic(draw.fresh(), **configs)], **TIMEOUT}, note=str(configs))


@scenario("CreateTopics")
def create_repeated(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh()
    yield Step({"Topics": [new_topic(name), new_topic(name)], **TIMEOUT})
    yield Step(
        {"Topics": [new_topic(name), new_topic(name), new_topic(draw.fresh())], **TIMEOUT}, note="and another"
    )


@scenario("CreateTopics")
def create_some_bad(draw: Draw, version: int) -> Iterator[Step]:
    yield Step({"Topics": [new_topic(draw.fresh()), new_topic("bad name"), new_topic(DATA)], **TIMEOUT})


@scenario("CreateTopics")
def create_validate_only(draw: Draw, version: int) -> Iterator[Step]:
    if version >= 1:
        name = draw.fresh()
        yield Step({"Topics": [new_topic(name, 2)], "ValidateOnly": True, **TIMEOUT})
        yield Step({"Topics": [new_topic(name)], **TIMEOUT}, note="it was not made")
        yield Step({"Topics": [new_topic(DATA)], "ValidateOnly": True, **TIMEOUT}, note="exists")


@scenario("CreateTopics")
def create_assigned(draw: Draw, version: int) -> Iterator[Step]:
    def assigned(*lists: list[int], partitions: int = -1, replication: int = -1) -> Step:
        chosen = [{"PartitionIndex": at, "BrokerIds": brokers} for at, brokers in enumerate(lists)]
        topic = {**new_topic(draw.fresh(), partitions, replication), "Assignments": chosen}
        return Step({"Topics": [topic], **TIMEOUT}, note=f"{lists} {partitions} {replication}")

    yield assigned([1], [1])
    yield assigned([9])
    yield assigned([1, 1])
    yield assigned([])
    yield assigned([1], partitions=1)
    yield assigned([1], replication=1)
    gap = [{"PartitionIndex": 1, "BrokerIds": [1]}]
    yield Step(
        {"Topics": [{**new_topic(draw.fresh(), -1, -1), "Assignments": gap}], **TIMEOUT},
        note="does not start at 0",
    )


@scenario("CreateTopics")
def create_nothing(draw: Draw, version: int) -> Iterator[Step]:
    yield Step({"Topics": [], **TIMEOUT})


# DeleteTopics -------------------------------------------------------------------------------------


def _delete(version: int, *names: str) -> dict[str, Any]:
    if version >= 6:
        return {"Topics": [{"Name": name} for name in names], **TIMEOUT}
    return {"TopicNames": list(names), **TIMEOUT}


@scenario("DeleteTopics")
def delete_plain(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh()
    yield create(new_topic(name))
    yield Step(_delete(version, name))
    yield Step(_delete(version, name), note="again")
    yield Step({"Topics": [{"Name": name}], "AllowAutoTopicCreation": False}, api="Metadata", version=9)


@scenario("DeleteTopics")
def delete_odd(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh()
    yield create(new_topic(name))
    yield Step(_delete(version, draw.fresh("absent"), "bad name", ""))
    yield Step(_delete(version, name, name), note="repeated")
    yield Step(_delete(version))


@scenario("DeleteTopics")
def delete_by_id(draw: Draw, version: int) -> Iterator[Step]:
    if version >= 6:
        name = draw.fresh()
        yield create(new_topic(name))
        yield Step({"Topics": [{"Name": None, "TopicId": UNKNOWN_ID}], **TIMEOUT})
        yield Step({"Topics": [{"Name": name, "TopicId": topic_id(name)}], **TIMEOUT}, note="name and id")
        yield Step({"Topics": [{"Name": None, "TopicId": bytes(16)}], **TIMEOUT}, note="neither")
        yield Step({"Topics": [{"Name": None, "TopicId": topic_id(name)}], **TIMEOUT})
        yield Step({"Topics": [{"Name": None, "TopicId": topic_id(name)}], **TIMEOUT}, note="again")


@scenario("DeleteTopics")
def delete_and_create(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh()
    yield create(new_topic(name))
    yield Step(_delete(version, name))
    yield create(new_topic(name, 2))
    yield Step({"Topics": [{"Name": name}], "AllowAutoTopicCreation": False}, api="Metadata", version=9)


# CreatePartitions ---------------------------------------------------------------------------------


@scenario("CreatePartitions")
def partitions_plain(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh()
    yield create(new_topic(name, 2))
    for count in (4, 4, 3, 2, 0, -1):
        yield Step(
            {"Topics": [{"Name": name, "Count": count, "Assignments": None}], **TIMEOUT}, note=str(count)
        )
    yield Step({"Topics": [{"Name": name}], "AllowAutoTopicCreation": False}, api="Metadata", version=9)


@scenario("CreatePartitions")
def partitions_odd(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh()
    yield create(new_topic(name))
    unknown = {"Name": draw.fresh("absent"), "Count": 2, "Assignments": None}
    yield Step({"Topics": [unknown, {"Name": "bad name", "Count": 2, "Assignments": None}], **TIMEOUT})
    yield Step({"Topics": [{"Name": name, "Count": 3, "Assignments": None}], "ValidateOnly": True, **TIMEOUT})
    choices: tuple[list[list[int]], ...] = ([[1]], [[1], [1]], [[7]], [[1, 1]], [[]])
    for brokers in choices:
        assigned = [{"BrokerIds": each} for each in brokers]
        asked = {"Name": name, "Count": 2, "Assignments": assigned}
        yield Step({"Topics": [asked], "ValidateOnly": True, **TIMEOUT}, note=str(brokers))
    twice = {"Name": name, "Count": 5, "Assignments": None}
    yield Step({"Topics": [twice, twice], **TIMEOUT}, note="repeated")
    yield Step({"Topics": [], **TIMEOUT})


@scenario("CreatePartitions")
def partitions_of_coordinators(draw: Draw, version: int) -> Iterator[Step]:
    """Decided, and not carried out: Kafka would not find its groups after its next start."""
    asked = {"Name": "__consumer_offsets", "Count": 200, "Assignments": None}
    yield Step({"Topics": [asked], "ValidateOnly": True, **TIMEOUT})


# DescribeTopicPartitions --------------------------------------------------------------------------


@scenario("DescribeTopicPartitions")
def describe_partitions(draw: Draw, version: int) -> Iterator[Step]:
    asked = {
        "Topics": [{"Name": DATA}, {"Name": EMPTY}, {"Name": draw.fresh("absent")}, {"Name": "bad name"}]
    }
    yield Step(asked)
    yield Step({**asked, "ResponsePartitionLimit": 2})
    yield Step({**asked, "ResponsePartitionLimit": 0})
    yield Step({**asked, "Cursor": {"TopicName": DATA, "PartitionIndex": 1}})
    yield Step({**asked, "Cursor": {"TopicName": "zzz", "PartitionIndex": 0}})
    yield Step({**asked, "Cursor": {"TopicName": DATA, "PartitionIndex": -1}})
    yield Step({"Topics": [{"Name": DATA}, {"Name": DATA}]}, note="repeated")
