"""Committed offsets in plain requests: at every version, every partition with its own code."""

import struct
import time
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from conformance.groups.history import Commit
from conformance.oracle import ApacheKafka
from conformance.server import Server
from conformance.wire.connection import Connection, advertised
from conformance.wire.definitions import api_keys

NONE = 0
UNKNOWN_TOPIC_OR_PARTITION = 3
UNKNOWN_TOPIC_ID = 100
NO_OFFSET = -1
LATEST = -1
COORDINATOR_NOT_READY = (14, 15, 16)
"""Loading, not available, not here: what a broker says while `__consumer_offsets` comes to be."""
COORDINATOR_TIMEOUT_S = 120.0
RETRY_S = 0.1

OFFSETS_TOPIC = "__consumer_offsets"
OFFSET_KEY_VERSION_MAX = 1
"""Keys of later versions belong to other records than commits."""
GROUPS_FROM = 8
"""OffsetFetch asks for several groups at once from this version on."""
TOPIC_IDS_FROM = 10
"""OffsetFetch and OffsetCommit name topics by id from this version on."""
MISSING_PARTITION = 99
MISSING_TOPIC = "no-such-topic"
MISSING_ID = bytes(range(1, 17))


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    id: bytes
    partitions: int


def find_topic(server: Server, name: str) -> Topic:
    with Connection(server.host, server.port) as connection:
        answer = connection.call(
            "Metadata", 12, {"Topics": [{"Name": name}], "AllowAutoTopicCreation": False}
        )
    (found,) = answer["Topics"]
    if found["ErrorCode"] != NONE:
        raise ValueError(f"Metadata answers {found['ErrorCode']} for {name}")
    return Topic(name, found["TopicId"], len(found["Partitions"]))


def versions(server: Server, api: str) -> range:
    low, high = advertised(server.host, server.port)[api_keys()[api]]
    if isinstance(server, ApacheKafka):
        low = max(low, 1)  # Kafka kept offsets of version 0 in ZooKeeper, which it no longer has
    return range(low, high + 1)


def await_coordinators(server: Server, groups: list[str]) -> None:
    """Ask who coordinates, as every client does first, until that broker serves each of these groups."""
    deadline = time.monotonic() + COORDINATOR_TIMEOUT_S
    with Connection(server.host, server.port) as connection:
        waiting = list(groups)
        while waiting:
            found = connection.call("FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": waiting})
            codes = {each["Key"]: each["ErrorCode"] for each in found["Coordinators"]}
            body = {"Groups": [{"GroupId": group, "Topics": []} for group in waiting]}
            for each in connection.call("OffsetFetch", 8, body)["Groups"]:
                codes[each["GroupId"]] = codes[each["GroupId"]] or each["ErrorCode"]
            wrong = {
                group: code for group, code in codes.items() if code not in (NONE, *COORDINATOR_NOT_READY)
            }
            waiting = [group for group in waiting if codes[group] != NONE]
            if wrong or (waiting and time.monotonic() > deadline):
                raise ValueError(f"no coordinator: {wrong or codes}")
            if waiting:
                time.sleep(RETRY_S)


def committed(server: Server, group: str, topic: Topic) -> dict[int, int]:
    """What the group has committed, by partition; partitions without a commit are left out."""
    with Connection(server.host, server.port) as connection:
        answers = _fetch(connection, 8, [group], topic, range(topic.partitions))
    found = {each["PartitionIndex"]: each["CommittedOffset"] for each in answers[group][topic.name]}
    return {partition: offset for partition, offset in found.items() if offset != NO_OFFSET}


def commit_plainly(server: Server, group: str, topic: Topic, offsets: dict[int, int]) -> None:
    """As an administrator does, without being a member."""
    await_coordinators(server, [group])
    with Connection(server.host, server.port) as connection:
        codes = _commit(connection, 8, group, topic, list(offsets), offsets)[topic.name]
    if any(codes.values()):
        raise ValueError(f"OffsetCommit answers {codes}")


def log_ends(server: Server, topic: str = OFFSETS_TOPIC) -> dict[int, int]:
    """The end of every partition of a topic."""
    found = find_topic(server, topic)
    partitions = [{"PartitionIndex": each, "Timestamp": LATEST} for each in range(found.partitions)]
    body = {"ReplicaId": -1, "Topics": [{"Name": topic, "Partitions": partitions}]}
    with Connection(server.host, server.port) as connection:
        answer = connection.call("ListOffsets", 5, body)
    return {each["PartitionIndex"]: each["Offset"] for each in answer["Topics"][0]["Partitions"]}


def commit_history(server: Server, group: str, topic: str) -> list[Commit]:
    """Every commit of the group, in order, out of `__consumer_offsets` as any client can read it."""
    settings = {"bootstrap.servers": server.bootstrap, "group.id": "reader", "enable.auto.commit": False}
    consumer = Consumer({**settings, "enable.partition.eof": False})
    try:
        shards = len(consumer.list_topics(OFFSETS_TOPIC, 30).topics[OFFSETS_TOPIC].partitions)
        place = TopicPartition(OFFSETS_TOPIC, abs(_java_hash(group)) % shards, 0)
        _, end = consumer.get_watermark_offsets(place, 30)
        consumer.assign([place])
        found, at = [], 0
        deadline = time.monotonic() + COORDINATOR_TIMEOUT_S
        while at < end:
            if time.monotonic() > deadline:
                raise ValueError(f"{OFFSETS_TOPIC} could be read to {at} of {end} only")
            for message in consumer.consume(500, 1.0):
                if message.error():
                    raise KafkaException(message.error())
                at = (message.offset() or 0) + 1
                commit = _commit_in(message.key() or b"", message.value(), group, topic)
                if commit is not None:
                    found.append(commit)
        return found
    finally:
        consumer.close()


def _java_hash(text: str) -> int:
    code = 0
    for unit in struct.unpack(f">{len(text.encode('utf-16-be')) // 2}H", text.encode("utf-16-be")):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code - (1 << 32) if code >= 1 << 31 else code


def _commit_in(key: bytes, value: bytes | None, group: str, topic: str) -> Commit | None:
    """The record as a commit of this group to this topic, if it is one."""
    if struct.unpack_from(">h", key)[0] > OFFSET_KEY_VERSION_MAX:
        return None
    (size,) = struct.unpack_from(">h", key, 2)
    found_group, at = key[4 : 4 + size].decode(), 4 + size
    (size,) = struct.unpack_from(">h", key, at)
    found_topic, at = key[at + 2 : at + 2 + size].decode(), at + 2 + size
    if value is None or (found_group, found_topic) != (group, topic):
        return None
    (partition,) = struct.unpack_from(">i", key, at)
    version, offset = struct.unpack_from(">hq", value)
    at = 10 + (4 if version >= 3 else 0)  # the leader epoch
    if version >= 4:
        at += value[at]  # a compact text: its length and one, in one byte as long as it is short
    else:
        at += 2 + struct.unpack_from(">h", value, at)[0]
    return Commit(partition, offset, struct.unpack_from(">q", value, at)[0])


def check_never_seen(server: Server, topic: Topic) -> list[str]:
    """OffsetFetch for groups that nobody has heard of: NONE and -1 for each partition, at every version."""
    failures = []
    asked = [*range(topic.partitions), MISSING_PARTITION]
    by_version = {
        version: [f"never-seen-{version}-{each}" for each in ("a" if version < GROUPS_FROM else "ab")]
        for version in versions(server, "OffsetFetch")
    }
    await_coordinators(server, [group for groups in by_version.values() for group in groups])
    with Connection(server.host, server.port) as connection:
        for version, groups in by_version.items():
            answers = _fetch(connection, version, groups, topic, asked)
            for group in groups:
                expected = [_absent(partition, version) for partition in asked]
                if answers[group][topic.name] != expected:
                    failures.append(f"OffsetFetch v{version} for {group}: {answers[group]}")
                missing = answers[group][MISSING_TOPIC]
                code = UNKNOWN_TOPIC_ID if version >= TOPIC_IDS_FROM else NONE
                if missing != [_absent(0, version, code)]:
                    failures.append(
                        f"OffsetFetch v{version} for {group}, a topic that is not there: {missing}"
                    )
    return failures


def check_round_trips(server: Server, topic: Topic) -> list[str]:
    """OffsetCommit at every version, read back at every version; what is not there has its own code."""
    failures = []
    asked = [*range(topic.partitions), MISSING_PARTITION]
    groups = {version: f"round-trip-{version}" for version in versions(server, "OffsetCommit")}
    await_coordinators(server, list(groups.values()))
    with Connection(server.host, server.port) as connection:
        for version, group in groups.items():
            offsets = {partition: 1_000 * version + partition for partition in range(topic.partitions)}
            codes = _commit(connection, version, group, topic, asked, offsets)
            expected = dict.fromkeys(offsets, NONE) | {MISSING_PARTITION: UNKNOWN_TOPIC_OR_PARTITION}
            unknown = UNKNOWN_TOPIC_ID if version >= TOPIC_IDS_FROM else UNKNOWN_TOPIC_OR_PARTITION
            if codes != {topic.name: expected, MISSING_TOPIC: {0: unknown}}:
                failures.append(f"OffsetCommit v{version}: {codes}")
            for reading in versions(server, "OffsetFetch"):
                answers = _fetch(connection, reading, [group], topic, asked)[group][topic.name]
                wanted = [
                    _absent(partition, reading) | {"CommittedOffset": offsets.get(partition, NO_OFFSET)}
                    for partition in asked
                ]
                for answer, each in zip(wanted, answers, strict=False):
                    # What a simple commit says about its text is null or empty, by version.
                    answer["Metadata"] = each["Metadata"] or ""
                    each["Metadata"] = each["Metadata"] or ""
                if answers != wanted:
                    failures.append(f"OffsetFetch v{reading} after OffsetCommit v{version}: {answers}")
    return failures


def _absent(partition: int, version: int, code: int = NONE) -> dict[str, Any]:
    answer = {"PartitionIndex": partition, "CommittedOffset": NO_OFFSET, "Metadata": "", "ErrorCode": code}
    if version >= 5:
        answer["CommittedLeaderEpoch"] = -1
    return answer


def _fetch(
    connection: Connection, version: int, groups: list[str], topic: Topic, partitions: Any
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The answers by group and topic, partitions in order; a code for a whole group raises."""
    asked = [
        _named(version, topic) | {"PartitionIndexes": list(partitions)},
        _named(version, None) | {"PartitionIndexes": [0]},
    ]
    if version < GROUPS_FROM:
        answer = connection.call("OffsetFetch", version, {"GroupId": groups[0], "Topics": asked})
        answers = [answer | {"GroupId": groups[0]}]
    else:
        body = {"Groups": [{"GroupId": group, "Topics": asked} for group in groups]}
        answers = connection.call("OffsetFetch", version, body)["Groups"]
    found = {}
    for each in answers:
        if each.get("ErrorCode", NONE) != NONE:
            raise ValueError(f"OffsetFetch v{version} answers {each['ErrorCode']} for {each['GroupId']}")
        found[each["GroupId"]] = {
            _name(topic, entry): sorted(entry["Partitions"], key=lambda one: one["PartitionIndex"])
            for entry in each["Topics"]
        }
    return found


def _commit(
    connection: Connection, version: int, group: str, topic: Topic, asked: list[int], offsets: dict[int, int]
) -> dict[str, dict[int, int]]:
    """The codes by topic and partition."""
    partitions = [{"PartitionIndex": each, "CommittedOffset": offsets.get(each, 1)} for each in asked]
    topics = [
        _named(version, topic) | {"Partitions": partitions},
        _named(version, None) | {"Partitions": [{"PartitionIndex": 0, "CommittedOffset": 1}]},
    ]
    body: dict[str, Any] = {"GroupId": group, "Topics": topics}
    if version >= 1:
        body["GenerationIdOrMemberEpoch"] = -1
    answer = connection.call("OffsetCommit", version, body)
    return {
        _name(topic, entry): {each["PartitionIndex"]: each["ErrorCode"] for each in entry["Partitions"]}
        for entry in answer["Topics"]
    }


def _named(version: int, topic: Topic | None) -> dict[str, Any]:
    if version >= TOPIC_IDS_FROM:
        return {"TopicId": MISSING_ID if topic is None else topic.id}
    return {"Name": MISSING_TOPIC if topic is None else topic.name}


def _name(topic: Topic, entry: dict[str, Any]) -> str:
    if "TopicId" in entry:
        return topic.name if entry["TopicId"] == topic.id else MISSING_TOPIC
    return str(entry["Name"])
