"""Settings as Kafka 4.3.1 defines them (facts/kafka-4.3-settings.tsv), and what is in force when."""

import re
from pathlib import Path

import msgspec
import pytest

from penstock.metadata.commands import SetConfig
from penstock.metadata.config_changes import (
    Operation,
    group_problem,
    incremental_changes,
    replacing_changes,
    settings_problem,
)
from penstock.metadata.config_entries import (
    ConfigEntry,
    describe_all_brokers,
    describe_broker,
    describe_group,
    describe_topic,
)
from penstock.metadata.configs import (
    GroupConfig,
    Source,
    Synonym,
    TopicConfigs,
    broker_value,
    group_config,
)
from penstock.metadata.image import BROKER_CONFIG, GROUP_CONFIG, TOPIC_CONFIG, ClusterImage
from penstock.metadata.refusal import Refusal
from penstock.settings.brokers import BROKER_SETTINGS
from penstock.settings.groups import GROUP_SETTINGS
from penstock.settings.setting import Setting, value_text
from penstock.settings.topics import TOPIC_SETTINGS, TopicConfig
from penstock.wire.errors import ErrorCode

from .worlds import cluster, do, with_topic

FACTS = [
    line.split("\t")
    for line in (Path(__file__).parent / "facts" / "kafka-4.3-settings.tsv").read_text().splitlines()
    if not line.startswith("#")
]
TABLES = {"topic": TOPIC_SETTINGS, "group": GROUP_SETTINGS, "broker": BROKER_SETTINGS}


def world() -> ClusterImage:
    return with_topic(cluster(1, 2), 1, "t", 1)


def entry(entries: list[ConfigEntry], name: str) -> ConfigEntry:
    return next(found for found in entries if found.name == name)


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: f"{fact[0]}-{fact[1]}")
def test_the_definition_is_kafkas(fact: list[str]) -> None:
    resource, name, kind, default, valid, synonym = fact
    definition = TABLES[resource][name]
    assert definition.kind.name == kind
    assert not definition.ours
    same = definition.default == (None if default == "null" else default)
    assert same == (not definition.unlike), "a default that differs from Kafka's has a reason"
    if resource == "topic" and synonym != "null":
        assert definition.synonyms[0] == synonym
    if bounds := re.fullmatch(r"\[(-?\d+),\.\.\.(?:,(-?\d+))?\]", valid):
        least, most = int(bounds[1]), bounds[2]
        assert _problem(definition, str(least)) is None
        assert _problem(definition, str(least - 1)) == f"Value must be at least {least}"
        if most is not None:
            assert _problem(definition, str(int(most) + 1)) == f"Value must be no more than {most}"


def _problem(definition: Setting, text: str) -> str | None:
    try:
        definition.parse(text)
    except ValueError as problem:
        return str(problem).partition(f"configuration {definition.name}: ")[2]
    return None


def test_every_topic_setting_of_kafka_is_known_and_no_other() -> None:
    assert set(TOPIC_SETTINGS) == {fact[1] for fact in FACTS if fact[0] == "topic"}


def test_a_setting_has_an_effect_or_a_reason() -> None:
    effective = {
        definition.name for definition in TOPIC_SETTINGS.values() if not (definition.moot or definition.fixed)
    }
    typed = {field.replace("_", ".") for field in TopicConfig.__struct_fields__}
    assert effective == typed | {"internal.segment.bytes"}
    for table in TABLES.values():
        assert not [d.name for d in table.values() if d.moot and d.fixed]


def test_the_typed_defaults_are_those_of_the_definitions() -> None:
    texts = {d.name: d.default for d in TOPIC_SETTINGS.values() if d.default is not None}
    image = do(world(), SetConfig(TOPIC_CONFIG, "t", dict(texts)))
    assert TopicConfigs(1).get(image, "t") == TopicConfig()


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("retention.ms", "x", "Invalid value x for configuration retention.ms: Not a number of type LONG"),
        (
            "retention.ms",
            "1_0",
            "Invalid value 1_0 for configuration retention.ms: Not a number of type LONG",
        ),
        (
            "max.message.bytes",
            "2147483648",
            "Invalid value 2147483648 for configuration max.message.bytes: Not a number of type INT",
        ),
        (
            "preallocate",
            "maybe",
            "Invalid value maybe for configuration preallocate: Expected value to be either true or false",
        ),
        (
            "min.cleanable.dirty.ratio",
            "1.5",
            "Invalid value 1.5 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
        ),
        (
            "min.cleanable.dirty.ratio",
            "NaN",
            "Invalid value NaN for configuration min.cleanable.dirty.ratio: Not a number of type DOUBLE",
        ),
        (
            "compression.type",
            "lzma",
            "Invalid value lzma for configuration compression.type: String must be one of: uncompressed, "
            "zstd, lz4, snappy, gzip, producer",
        ),
        (
            "compression.gzip.level",
            "0",
            "Invalid value 0 for configuration compression.gzip.level: Value must be between 1 and 9 or "
            "equal to -1",
        ),
        (
            "cleanup.policy",
            "delete,shred",
            "Invalid value shred for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        ("cleanup.policy", "delete,", "Configuration 'cleanup.policy' values must not be empty."),
        (
            "leader.replication.throttled.replicas",
            "0-1",
            "Invalid value [0-1] for configuration leader.replication.throttled.replicas: "
            "leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the "
            "following format: [partitionId]:[brokerId],[partitionId]:[brokerId],...",
        ),
        ("no.such", "1", "Unknown topic config name: no.such"),
        (
            "retention.ms",
            "1" * 40000,
            "The configuration value cannot be added because it exceeds the maximum value size of 32767 "
            "bytes.",
        ),
    ],
)
def test_a_bad_value_is_refused_in_kafkas_words(name: str, value: str, problem: str) -> None:
    assert settings_problem(TOPIC_CONFIG, {name: value}) == problem


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", ""),
        ("cleanup.policy", " compact , delete "),
        ("cleanup.policy", "delete,delete"),
        ("leader.replication.throttled.replicas", "*"),
        ("follower.replication.throttled.replicas", "0:1,1:2"),
        ("min.insync.replicas", "2"),
        ("flush.messages", "1"),
        ("unclean.leader.election.enable", "TRUE"),
        ("segment.bytes", "+1048576"),
        ("internal.segment.bytes", "100"),
        ("remote.storage.enable", "false"),
    ],
)
def test_what_tools_set_is_taken(name: str, value: str) -> None:
    assert settings_problem(TOPIC_CONFIG, {name: value}) is None


def test_typed_settings_follow_the_layers() -> None:
    configs = TopicConfigs(1, {"log.retention.hours": "2", "message.max.bytes": "77"})
    image = world()
    assert configs.get(image, "t").retention_ms == 7_200_000
    assert configs.get(image, "t").max_message_bytes == 77
    image = do(image, SetConfig(BROKER_CONFIG, "", {"log.retention.ms": "5000"}))
    assert configs.get(image, "t").retention_ms == 5000
    image = do(image, SetConfig(BROKER_CONFIG, "1", {"log.retention.ms": "6000"}))
    assert configs.get(image, "t").retention_ms == 6000
    assert TopicConfigs(2).get(image, "t").retention_ms == 5000
    image = do(image, SetConfig(TOPIC_CONFIG, "t", {"retention.ms": "-1", "cleanup.policy": "compact"}))
    typed = configs.get(image, "t")
    assert (typed.retention_ms, typed.compact, typed.delete, typed.max_message_bytes) == (-1, True, False, 77)
    assert configs.get(image, "t") is typed, "computed once"
    image = do(image, SetConfig(TOPIC_CONFIG, "t", {"retention.ms": None}))
    assert configs.get(image, "t").retention_ms == 6000
    image = do(image, SetConfig(TOPIC_CONFIG, "t", {"internal.segment.bytes": "5"}))
    assert configs.get(image, "t").segment_bytes == 5


def test_a_topic_returns_to_the_default_when_the_last_broker_setting_is_taken_back() -> None:
    configs = TopicConfigs(1)
    image = do(world(), SetConfig(BROKER_CONFIG, "", {"log.retention.ms": "5000"}))
    assert configs.get(image, "t").retention_ms == 5000
    image = do(image, SetConfig(BROKER_CONFIG, "", {"log.retention.ms": None}))
    assert configs.get(image, "t").retention_ms == TopicConfig().retention_ms


def test_a_topic_described_with_all_its_synonyms() -> None:
    given = {"log.retention.hours": "2", "message.max.bytes": "77"}
    image = do(
        world(),
        SetConfig(TOPIC_CONFIG, "t", {"max.message.bytes": " 99 ", "min.cleanable.dirty.ratio": "1"}),
        SetConfig(BROKER_CONFIG, "1", {"message.max.bytes": "88"}),
        SetConfig(BROKER_CONFIG, "", {"message.max.bytes": "66"}),
    )
    entries = describe_topic(image, "t", 1, given)
    assert {found.name for found in entries} == set(TOPIC_SETTINGS) - {"internal.segment.bytes"}
    size = entry(entries, "max.message.bytes")
    assert (size.value, size.source, size.read_only) == ("99", Source.TOPIC, False)
    assert size.synonyms == (
        Synonym("max.message.bytes", "99", Source.TOPIC),
        Synonym("message.max.bytes", "88", Source.DYNAMIC_BROKER),
        Synonym("message.max.bytes", "66", Source.DYNAMIC_DEFAULT_BROKER),
        Synonym("message.max.bytes", "77", Source.STATIC_BROKER),
        Synonym("message.max.bytes", "1048588", Source.DEFAULT),
    )
    assert entry(entries, "min.cleanable.dirty.ratio").value == "1.0"
    # As in Kafka: a value that comes from a setting in another unit has no synonyms and no source.
    time = entry(entries, "retention.ms")
    assert (time.value, time.source, time.synonyms) == ("7200000", Source.DEFAULT, ())
    replicas = entry(entries, "leader.replication.throttled.replicas")
    assert (replicas.value, replicas.source, replicas.synonyms) == ("", Source.DEFAULT, ())
    policy = entry(entries, "cleanup.policy")
    assert policy.synonyms == (Synonym("log.cleanup.policy", "delete", Source.DEFAULT),)
    assert "shared store" in entry(entries, "min.insync.replicas").doc
    assert [e.name for e in describe_topic(image, "t", 1, {}, ["retention.ms", "none"])] == ["retention.ms"]


def test_a_broker_described() -> None:
    image = do(
        world(),
        SetConfig(BROKER_CONFIG, "", {"log.retention.ms": "5000"}),
        SetConfig(BROKER_CONFIG, "1", {"log.cleaner.backoff.ms": "7"}),
    )
    entries = describe_broker(image, 1, {"num.partitions": "3"})
    partitions = entry(entries, "num.partitions")
    assert (partitions.value, partitions.source) == ("3", Source.STATIC_BROKER)
    assert partitions.read_only
    assert partitions.doc == "Partitions of a topic whose creator does not say."
    backoff = entry(entries, "log.cleaner.backoff.ms")
    assert (backoff.value, backoff.source, backoff.read_only) == ("7", Source.DYNAMIC_BROKER, False)
    retention = entry(entries, "log.retention.ms")
    assert retention.synonyms == (
        Synonym("log.retention.ms", "5000", Source.DYNAMIC_DEFAULT_BROKER),
        Synonym("log.retention.hours", "168", Source.DEFAULT),
    )
    assert [(e.name, e.value) for e in describe_all_brokers(image)] == [
        ("min.insync.replicas", "1"),
        ("log.retention.ms", "5000"),
    ]


def test_one_setting_all_brokers_have_from_the_beginning() -> None:
    name = "min.insync.replicas"
    synonyms = (Synonym(name, "1", Source.DYNAMIC_DEFAULT_BROKER), Synonym(name, "1", Source.DEFAULT))
    assert entry(describe_topic(world(), "t", 1, {}), name).synonyms == synonyms
    changed = do(world(), SetConfig(BROKER_CONFIG, "", {name: "2"}))
    found = entry(describe_topic(changed, "t", 1, {}), name)
    assert (found.value, found.source) == ("2", Source.DYNAMIC_DEFAULT_BROKER)
    assert incremental_changes(changed, BROKER_CONFIG, "", [(name, Operation.SET, "3")]) == {name: "3"}
    assert incremental_changes(changed, BROKER_CONFIG, "", [(name, Operation.DELETE, None)]) == Refusal(
        ErrorCode.INVALID_CONFIG, "Cluster-level min.insync.replicas cannot be removed."
    )
    assert incremental_changes(changed, BROKER_CONFIG, "1", [(name, Operation.SET, "3")]) == Refusal(
        ErrorCode.INVALID_CONFIG, "Broker-level min.insync.replicas cannot be altered."
    )


def test_changing_a_setting_step_by_step() -> None:
    image = do(world(), SetConfig(TOPIC_CONFIG, "t", {"cleanup.policy": "compact"}))
    changes = incremental_changes(
        image,
        TOPIC_CONFIG,
        "t",
        [
            ("cleanup.policy", Operation.APPEND, "delete"),
            ("retention.ms", Operation.SET, "5"),
            ("segment.ms", Operation.DELETE, None),
        ],
    )
    assert changes == {"cleanup.policy": "compact,delete", "retention.ms": "5", "segment.ms": None}
    taken = incremental_changes(image, TOPIC_CONFIG, "t", [("cleanup.policy", Operation.SUBTRACT, "compact")])
    assert taken == {"cleanup.policy": ""}
    # The default is what is appended to if nothing is set.
    fresh = incremental_changes(world(), TOPIC_CONFIG, "t", [("cleanup.policy", Operation.APPEND, "compact")])
    assert fresh == {"cleanup.policy": "delete,compact"}
    refused = incremental_changes(image, TOPIC_CONFIG, "t", [("retention.ms", Operation.APPEND, "5")])
    assert refused == Refusal(
        ErrorCode.INVALID_CONFIG, "Can't APPEND to key retention.ms because its type is not LIST."
    )


def test_replacing_all_settings() -> None:
    image = do(world(), SetConfig(TOPIC_CONFIG, "t", {"cleanup.policy": "compact", "retention.ms": "5"}))
    changes = replacing_changes(image, TOPIC_CONFIG, "t", {"retention.ms": "6"})
    assert changes == {"cleanup.policy": None, "retention.ms": "6"}
    assert do(image, SetConfig(TOPIC_CONFIG, "t", changes)).config(TOPIC_CONFIG, "t") == {"retention.ms": "6"}


def test_a_group_sets_its_own_times() -> None:
    image = do(world(), SetConfig(GROUP_CONFIG, "g", {"consumer.session.timeout.ms": "50000"}))
    assert group_config(image, "g") == GroupConfig(session_timeout_ms=50000)
    assert group_config(image, "other") == GroupConfig()
    found = entry(describe_group(image, "g", 1, {}), "consumer.session.timeout.ms")
    assert (found.value, found.source) == ("50000", Source.GROUP)
    assert found.synonyms[1] == Synonym("group.consumer.session.timeout.ms", "45000", Source.DEFAULT)

    def value(name: str) -> str:
        return broker_value(image, 1, {}, name) or ""

    assert group_problem({"consumer.session.timeout.ms": "50000"}, value) is None
    assert group_problem({"consumer.session.timeout.ms": "1000"}, value) == (
        "consumer.session.timeout.ms must be greater than or equal to group.consumer.min.session.timeout.ms"
    )
    assert group_problem({"consumer.heartbeat.interval.ms": "90000"}, value) == (
        "consumer.heartbeat.interval.ms must be less than or equal to "
        "group.consumer.max.heartbeat.interval.ms"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (1.0, "1.0"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (1e7, "1.0E7"),
        (12345678.9, "1.23456789E7"),
        (0.0001, "1.0E-4"),
        (True, "true"),
        (("a", "b"), "a,b"),
    ],
)
def test_values_are_written_as_java_writes_them(value: float | tuple[str, ...], text: str) -> None:
    assert value_text(value) == text


def test_a_topic_setting_needs_only_what_it_changes() -> None:
    base = msgspec.structs.replace(TopicConfig(), max_compaction_lag_ms=5)
    problem = settings_problem(TOPIC_CONFIG, {"min.compaction.lag.ms": "6"}, base)
    assert problem == "conflict topic config setting min.compaction.lag.ms (6) > max.compaction.lag.ms (5)"
