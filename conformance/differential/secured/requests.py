"""A request of any API at any version, from its definition: two of everything that it lists, by the names that
actors have rights to."""

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

from conformance.differential.scenario import UNKNOWN_ID, topic_id
from conformance.differential.secured.actors import FIRST, SECOND
from conformance.wire import batches, definitions
from conformance.wire.batches import Item
from conformance.wire.definitions import Field, within

Body = dict[str, Any]
Variant = Callable[[Body, int], Body | None]
NAMES = (FIRST, SECOND)
ABSENT = "absent"
STAMP = int(time.time() * 1000)
TRANSACTIONAL = 0x10
VALUES: dict[str, Any] = {
    "Acks": -1,
    "AllowAutoTopicCreation": False,
    "BrokerId": 99,
    "BrokerIds": [1],
    "ConfigurationKeys": None,
    "Count": 2,
    "Hmac": b"no token",
    "IncludeAuthorizedOperations": True,
    "IncludeClusterAuthorizedOperations": True,
    "IncludeTopicAuthorizedOperations": True,
    "Iterations": 4096,
    "MaxBytes": 1_000_000,
    "MemberEpoch": 5,
    "NumPartitions": 1,
    "OwnerPrincipalName": None,
    "OwnerPrincipalType": None,
    "PartitionMaxBytes": 1_000_000,
    "PatternTypeFilter": 3,
    "PrincipalType": "User",
    "ProtocolType": "consumer",
    "RebalanceTimeoutMs": 10_000,
    "ReplicaId": -1,
    "Replicas": [1],
    "ReplicationFactor": 1,
    "ResourcePatternType": 3,
    "ResponsePartitionLimit": 100,
    "SessionEpoch": -1,
    "SessionTimeoutMs": 10_000,
    "TimeoutMs": 10_000,
    "TransactionTimeoutMs": 10_000,
    "timeoutMs": 10_000,
    "UpgradeType": 1,
    "MaxVersionLevel": 1,
    "Assignments": [],
    "StatesFilter": [],
    "TypesFilter": [],
    "StateFilters": [],
    "ProducerIdFilters": [],
    "ResourceTypes": [],
    "ForgottenTopicsData": [],
    "Renewers": [],
    "ResourceType": 2,
    "ResourceTypeFilter": 2,
    "Operation": 3,
    "PermissionType": 3,
    "Principal": "User:anybody",
    "Host": "*",
    "PrincipalFilter": "User:anybody",
    "HostFilter": None,
    "EntityType": "user",
    "Key": "request_percentage",
    "Salt": b"salt of sixteen.",
    "SaltedPassword": b"thirty-two bytes are a password.",
    "Cursor": None,
}
"""What is valid where zero is not, and what would only confuse."""
CONFIG = [{"Name": "retention.ms", "Value": "604800001"}]


def plain(api: str, version: int) -> Body:
    """The request that names both of everything."""
    message = definitions.request(api, version)
    return _struct(message.fields, version, 0)


def variants(api: str, version: int) -> Iterator[tuple[str, Body]]:
    """All requests of an API, each with a word for it."""
    body = plain(api, version)
    if api == "AlterClientQuotas":
        body = _one_entity(body)
    yield "", copy.deepcopy(body)
    for word, change in VARIANTS.get(api, {}).items():
        changed = change(copy.deepcopy(body), version)
        if changed is not None:
            yield word, changed


def _struct(fields: tuple[Field, ...], version: int, at: int) -> Body:
    present = [field for field in fields if within(version, field.versions)]
    named = any(field.name in ("Name", "Topic", "TopicName") for field in present)
    return {
        field.name: _value(field, version, at, named)
        for field in present
        if not within(version, field.tagged)
    }


def _value(field: Field, version: int, at: int, named: bool) -> Any:
    if field.name in VALUES:
        return VALUES[field.name]
    if field.type == "[]string":
        return list(NAMES)
    if field.type.startswith("[]int"):
        return [0, 1]
    if field.is_array:
        return [_struct(field.fields, version, item) for item in range(len(NAMES))]
    if field.is_struct:
        return None if within(version, field.nullable) else _struct(field.fields, version, at)
    match field.type:
        case "string":
            return None if within(version, field.nullable) and field.name in NULL else NAMES[at]
        case "uuid":
            return bytes(16) if named else topic_id(NAMES[at])
        case "records":
            return records(version)
        case "bytes":
            return b""
        case "float64":
            return 50.0
    return (
        at
        if field.name in ("Partition", "PartitionIndex", "Index", "ProducerId", "Mechanism")
        else field.default
    )


NULL = {"ClusterId", "GroupInstanceId", "InstanceId", "Reason", "RackId", "SubscribedTopicRegex", "ServerAssignor",
        "TransactionalId", "TransactionalIdPattern"}  # fmt: skip


def records(version: int, **more: Any) -> bytes:
    """As this version of Produce takes them."""
    items = [Item(b"value", b"key", STAMP)]
    return batches.batch(items, **more) if version >= 3 else batches.message_set(items, min(version, 1))


# What one API asks in several ways -----------------------------------------------------------------


def _transactional(body: Body, version: int) -> Body | None:
    if version < 3:
        return None
    body["TransactionalId"] = FIRST
    for topic in body["TopicData"]:
        for partition in topic["PartitionData"]:
            partition["Records"] = records(
                version, flags=TRANSACTIONAL, producer_id=7, producer_epoch=0, sequence=0
            )
    return body


def _follower(body: Body, version: int) -> Body:
    if version >= 15:
        return {**body, "ReplicaState": {"ReplicaId": 2, "ReplicaEpoch": -1}}
    return {**body, "ReplicaId": 2}


def _all_topics(body: Body, version: int) -> Body:
    return {**body, "Topics": None if version >= 1 else []}


def _by_id(field: str, oldest: int) -> Variant:
    def change(body: Body, version: int) -> Body | None:
        if version < oldest:
            return None
        ids = [topic_id(FIRST), topic_id(SECOND), UNKNOWN_ID]
        return {**body, field: [{"Name": None, "TopicId": each} for each in ids]}

    return change


def _absent_topics(body: Body, version: int) -> Body:
    return {**body, "Topics": [{"Name": ABSENT}, {"Name": FIRST}]}


def _absent_deleted(body: Body, version: int) -> Body:
    if version >= 6:
        return {**body, "Topics": [{"Name": ABSENT, "TopicId": bytes(16)}]}
    return {**body, "TopicNames": [ABSENT]}


def _all_offsets(body: Body, version: int) -> Body | None:
    if version >= 8:
        return {**body, "Groups": [{**group, "Topics": None} for group in body["Groups"]]}
    return {**body, "Topics": None} if version >= 2 else None


def _coordinator_of(kind: int, oldest: int) -> Variant:
    return lambda body, version: {**body, "KeyType": kind} if version >= oldest else None


def _configs_of(kind: int, name: str, **config: Any) -> Variant:
    def change(body: Body, version: int) -> Body:
        resource = {**body["Resources"][0], "ResourceType": kind, "ResourceName": name}
        if "Configs" in resource:
            resource["Configs"] = [{**resource["Configs"][0], **config}]
        else:
            resource["ConfigurationKeys"] = [config["Name"]]
        return {**body, "Resources": [resource]}

    return change


def _both_topics(body: Body, version: int) -> Body:
    made = _configs_of(2, FIRST, Name="retention.ms", Value="604800001")(body, version)
    assert made is not None
    return {**made, "Resources": [{**made["Resources"][0], "ResourceName": name} for name in NAMES]}


CONFIG_KINDS: dict[str, Variant] = {
    "topics": _both_topics,
    "group": _configs_of(32, FIRST, Name="consumer.session.timeout.ms", Value="3600000"),
    "broker": _configs_of(4, "1", Name="message.max.bytes", Value="1048588"),
    "brokers": _configs_of(4, "", Name="message.max.bytes", Value="1048588"),
    "logger": _configs_of(8, "1", Name="root", Value="INFO"),
    "metrics": _configs_of(16, "some", Name="interval.ms", Value="1000"),
    "nothing": _configs_of(77, "1", Name="x", Value="1"),
}


def _owned_by(owner: str) -> Variant:
    def change(body: Body, version: int) -> Body | None:
        if version < 3:
            return None
        return {**body, "OwnerPrincipalType": "User", "OwnerPrincipalName": owner}

    return change


def _one_entity(body: Body) -> Body:
    entries = [
        {"Entity": [{"EntityType": "user", "EntityName": name}], "Ops": [each["Ops"][0]]}
        for name, each in zip(NAMES, body["Entries"], strict=True)
    ]
    return {**body, "Entries": entries}


def _any_user(body: Body, version: int) -> Body:
    return {**body, "Components": [{"EntityType": "user", "MatchType": 2, "Match": None}]}


VARIANTS: dict[str, dict[str, Variant]] = {
    "Produce": {"transactional": _transactional},
    "Fetch": {"follower": _follower},
    "Metadata": {"all": _all_topics, "absent": _absent_topics, "ids": _by_id("Topics", 10)},
    "OffsetFetch": {"all": _all_offsets},
    "FindCoordinator": {"transactions": _coordinator_of(1, 1), "share": _coordinator_of(2, 4)},
    "CreateTopics": {
        "validated": lambda body, version: {**body, "ValidateOnly": True} if version else None,
    },
    "DeleteTopics": {"absent": _absent_deleted, "ids": _by_id("Topics", 6)},
    "InitProducerId": {"transactional": lambda body, version: {**body, "TransactionalId": FIRST}},
    "DescribeConfigs": CONFIG_KINDS,
    "AlterConfigs": CONFIG_KINDS,
    "IncrementalAlterConfigs": CONFIG_KINDS,
    "DescribeTopicPartitions": {"all": lambda body, version: {**body, "Topics": []}},
    "DescribeDelegationToken": {"all": lambda body, version: {**body, "Owners": None}},
    "AlterUserScramCredentials": {
        "added": lambda body, version: {
            "Deletions": [],
            "Upsertions": [{**each, "Mechanism": 1} for each in body["Upsertions"]],
        },
        "removed": lambda body, version: {
            "Deletions": [{**each, "Mechanism": 1} for each in body["Deletions"]],
            "Upsertions": [],
        },
    },
    "DescribeClientQuotas": {"users": _any_user},
    "CreateDelegationToken": {"other": _owned_by(FIRST), "absent": _owned_by("absent")},
    "DescribeLogDirs": {"all": lambda body, version: {**body, "Topics": None}},
}
