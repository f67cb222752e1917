"""CreateTopics: what is created, what is refused and in which words, and that one request is one entry."""

from __future__ import annotations

import asyncio

import pytest

from penstock.metadata.commands import RegisterBroker
from penstock.metadata.image import Listener
from penstock.wire.api.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import ZERO_UUID
from tests.broker.rig import Rig

VERSIONS = range(8)


def topic(
    name: str,
    partitions: int = -1,
    factor: int = -1,
    *assignments: tuple[int, list[int]],
    configs: dict[str, str | None] | None = None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[CreatableReplicaAssignment(partition_index=i, broker_ids=b) for i, b in assignments],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )


async def ask(
    rig: Rig,
    *topics: CreatableTopic,
    version: int = 7,
    timeout_ms: int = 1000,
    validate_only: bool = False,
) -> CreateTopicsResponse:
    message = CreateTopicsRequest(topics=list(topics), timeout_ms=timeout_ms, validate_only=validate_only)
    return await rig.ask(message, CreateTopicsResponse, version)


async def refusal(rig: Rig, wanted: CreatableTopic) -> tuple[int, str | None]:
    before = rig.broker.image.version
    (result,) = (await ask(rig, wanted)).topics
    assert rig.broker.image.version == before, "a refusal changes nothing"
    assert (result.topic_id, result.num_partitions, result.configs) == (ZERO_UUID, -1, [])
    return result.error_code, result.error_message


@pytest.mark.parametrize("version", VERSIONS)
async def test_created_with_numbers_and_settings(rig: Rig, version: int) -> None:
    (result,) = (
        await ask(rig, topic("orders", 3, 1, configs={"retention.ms": "77"}), version=version)
    ).topics
    found = rig.broker.image.topics["orders"]
    assert [partition.leader for partition in found.partitions] == [1, 1, 1]
    assert rig.broker.image.config(2, "orders") == {"retention.ms": "77"}
    assert (result.name, result.error_code) == ("orders", 0)
    assert result.topic_id == (found.id if version >= 7 else ZERO_UUID)
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        assert result.configs is not None
        names = [config.name for config in result.configs]
        assert names == sorted(names)
        assert len(names) == 33
        values = {config.name: (config.value, config.config_source) for config in result.configs}
        assert values["retention.ms"] == ("77", 1)
        assert values["max.message.bytes"] == ("1048588", 5)


async def test_minus_one_takes_the_defaults(rig: Rig) -> None:
    await ask(rig, topic("orders"))
    assert [part.replicas for part in rig.broker.image.topics["orders"].partitions] == [(1,)]


async def test_assignments_are_kept_as_they_were_given(rig: Rig) -> None:
    await rig.propose(RegisterBroker(2, (Listener("PLAINTEXT", "elsewhere", 9093),)))
    (result,) = (await ask(rig, topic("orders", -1, -1, (1, [2, 1]), (0, [1, 2])))).topics
    assert (result.num_partitions, result.replication_factor) == (2, 2)
    found = rig.broker.image.topics["orders"]
    assert [part.replicas for part in found.partitions] == [(1, 2), (2, 1)]
    assert found.pinned


async def test_ids_are_uuids_and_differ(rig: Rig) -> None:
    answer = await ask(rig, *(topic(f"t{n}") for n in range(50)))
    ids = {result.topic_id for result in answer.topics}
    assert len(ids) == 50
    assert {topic_id[6] >> 4 for topic_id in ids} == {4}
    assert {topic_id[8] >> 6 for topic_id in ids} == {2}


async def test_one_request_is_one_entry(rig: Rig) -> None:
    before = rig.broker.image.version
    answer = await ask(rig, topic("a"), topic("b", 0), topic("c", 2), topic("a b"))
    assert [result.error_code for result in answer.topics] == [
        0,
        ErrorCode.INVALID_PARTITIONS,
        0,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert set(rig.broker.image.topics) == {"a", "c"}
    assert rig.broker.image.version == before + 1


NUMBERS = [
    (topic("t", 0, 1), 37, "Number of partitions was set to an invalid non-positive value."),
    (topic("t", -2, 1), 37, "Number of partitions was set to an invalid non-positive value."),
    (topic("t", 1, 0), 38, "Replication factor must be larger than 0, or -1 to use the default value."),
    (topic("t", 0, 0), 38, "Replication factor must be larger than 0, or -1 to use the default value."),
    (
        topic("t", 1, 3),
        38,
        "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be reached "
        "because only 1 broker(s) are registered or some brokers have all their log directories cordoned.",
    ),
    (
        topic("t", 1, -1, (0, [1])),
        42,
        "A manual partition assignment was specified, but numPartitions was not set to -1.",
    ),
    (
        topic("t", -1, 1, (0, [1])),
        42,
        "A manual partition assignment was specified, but replication factor was not set to -1.",
    ),
    (
        topic("t", -1, -1, (0, [1]), (0, [1])),
        39,
        "Found multiple manual partition assignments for partition 0",
    ),
    (topic("t", -1, -1, (1, [1])), 39, "partitions should be a consecutive 0-based integer sequence"),
    (
        topic("t", -1, -1, (0, [7])),
        39,
        "The manual partition assignment includes broker 7, but no such broker is registered.",
    ),
    (
        topic("t", -1, -1, (0, [1, 1])),
        39,
        "The manual partition assignment includes the broker 1 more than once.",
    ),
    (topic("t", -1, -1, (0, [])), 39, "The manual partition assignment includes an empty replica list."),
]


@pytest.mark.parametrize(("wanted", "code", "message"), NUMBERS)
async def test_refused_for_its_numbers(rig: Rig, wanted: CreatableTopic, code: int, message: str) -> None:
    assert await refusal(rig, wanted) == (code, message)


SETTINGS = [
    ({"nope": "1"}, "Unknown topic config name: nope"),
    ({"retention.ms": "abc"}, "Invalid value abc for configuration retention.ms: Not a number of type LONG"),
    ({"retention.ms": None}, "Null value not supported for topic configs: retention.ms"),
    ({"a": None, "nope": "1", "b": None}, "Null value not supported for topic configs: a,b"),
    (
        {"cleanup.policy": "delete,foo"},
        "Invalid value foo for configuration cleanup.policy: String must be one of: compact, delete",
    ),
    ({"cleanup.policy": "delete,"}, "Configuration 'cleanup.policy' values must not be empty."),
    (
        {"compression.type": "GZIP"},
        "Invalid value GZIP for configuration compression.type: String must be one of: uncompressed, zstd, "
        "lz4, snappy, gzip, producer",
    ),
    (
        {"segment.bytes": "10"},
        "Invalid value 10 for configuration segment.bytes: Value must be at least 1048576",
    ),
    (
        {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
        "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
    ),
    (
        {"remote.storage.enable": "true"},
        "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log "
        "storage.",
    ),
    (
        {"leader.replication.throttled.replicas": "0:1,x"},
        "Invalid value [0:1, x] for configuration leader.replication.throttled.replicas: "
        "leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the "
        "following format: [partitionId]:[brokerId],[partitionId]:[brokerId],...",
    ),
]


@pytest.mark.parametrize(("configs", "message"), SETTINGS)
async def test_refused_for_its_settings(rig: Rig, configs: dict[str, str | None], message: str) -> None:
    assert await refusal(rig, topic("t", 1, 1, configs=configs)) == (ErrorCode.INVALID_CONFIG, message)


async def test_settings_are_judged_before_numbers_and_after_names(rig: Rig) -> None:
    await rig.topic("orders")
    bad: dict[str, str | None] = {"nope": "1"}
    assert (await refusal(rig, topic("t", 0, 9, configs=bad)))[0] == ErrorCode.INVALID_CONFIG
    assert (await refusal(rig, topic("a b", 0, 9, configs=bad)))[0] == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert await refusal(rig, topic("orders", 0, 9, configs=bad)) == (
        ErrorCode.TOPIC_ALREADY_EXISTS,
        "Topic 'orders' already exists.",
    )


async def test_names_that_collide_or_are_reserved(rig: Rig) -> None:
    await rig.topic("a.b")
    assert await refusal(rig, topic("a_b", 1, 1)) == (
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        "Topic 'a_b' collides with existing topic: a.b",
    )
    assert await refusal(rig, topic("__cluster_metadata", 1, 1)) == (
        ErrorCode.INVALID_REQUEST,
        "Creation of internal topic __cluster_metadata is prohibited.",
    )
    answer = await ask(rig, topic("c.d"), topic("c_d"))
    assert [result.error_code for result in answer.topics] == [0, ErrorCode.INVALID_TOPIC_EXCEPTION]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_name_that_is_given_twice_is_refused_once(rig: Rig, version: int) -> None:
    answer = await ask(
        rig, topic("a", 1, 1), topic("b", 1, 1), topic("a", 2, 1), topic("a", 2, 1), version=version
    )
    assert [(result.name, result.error_code) for result in answer.topics] == [
        ("a", ErrorCode.INVALID_REQUEST),
        ("b", 0),
    ]
    assert set(rig.broker.image.topics) == {"b"}


@pytest.mark.parametrize("version", VERSIONS[1:])
async def test_validate_only_creates_nothing(rig: Rig, version: int) -> None:
    before = rig.broker.image.version
    answer = await ask(rig, topic("a", 2, 1), topic("b", 0), version=version, validate_only=True)
    assert [result.error_code for result in answer.topics] == [0, ErrorCode.INVALID_PARTITIONS]
    assert rig.broker.image.version == before
    if version >= 5:
        assert answer.topics[0].num_partitions == 2


@pytest.mark.parametrize("timeout_ms", [0, -1])
async def test_without_time_nothing_is_done(rig: Rig, timeout_ms: int) -> None:
    answer = await ask(rig, topic("a"), timeout_ms=timeout_ms)
    assert answer.topics == [
        CreatableTopicResult(name="a", error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=None)
    ]
    assert not rig.broker.image.topics


async def test_more_partitions_than_a_request_may_create(rig: Rig) -> None:
    answer = await ask(rig, topic("a", 9_999, 1), topic("b", 2, 1))
    assert {(result.error_code, result.error_message) for result in answer.topics} == {
        (ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    }


async def test_of_many_who_create_the_same_topic_one_wins(rig: Rig) -> None:
    answers = await asyncio.gather(*(ask(rig, topic("race", 1, 1)) for _ in range(20)))
    codes = [answer.topics[0].error_code for answer in answers]
    assert sorted(codes) == [0, *[ErrorCode.TOPIC_ALREADY_EXISTS] * 19]


async def test_the_last_value_of_a_setting_counts(rig: Rig) -> None:
    wanted = topic("t", 1, 1, configs={"retention.ms": "1"})
    wanted.configs.append(CreatableTopicConfig(name="retention.ms", value="2"))
    await ask(rig, wanted)
    assert rig.broker.image.config(2, "t") == {"retention.ms": "2"}
