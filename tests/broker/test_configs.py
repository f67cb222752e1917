"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources.

The words of refusals are Kafka's; they were compared with those of Apache Kafka 4.3.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from penstock.settings import Settings
from penstock.wire.api.alter_configs import (
    AlterableConfig as ReplacingConfig,
)
from penstock.wire.api.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
)
from penstock.wire.api.alter_configs import (
    AlterConfigsResource as ReplacedResource,
)
from penstock.wire.api.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from penstock.wire.api.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from penstock.wire.api.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from penstock.wire.errors import ErrorCode
from tests.broker.rig import Rig

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
Operation = tuple[str, int, str | None]
Outcome = tuple[int, str | None]


async def describe(
    rig: Rig,
    *resources: tuple[int, str],
    keys: list[str] | None = None,
    version: int = 4,
    synonyms: bool = False,
    documentation: bool = False,
) -> list[DescribeConfigsResult]:
    message = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for kind, name in resources
        ],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )
    return (await rig.ask(message, DescribeConfigsResponse, version)).results


async def described(
    rig: Rig, kind: int, name: str, *keys: str, **options: bool
) -> dict[str, DescribeConfigsResourceResult]:
    (result,) = await describe(rig, (kind, name), keys=list(keys), **options)
    assert result.error_code == 0
    return {config.name: config for config in result.configs}


async def change(
    rig: Rig,
    *wishes: tuple[int, str, list[Operation]],
    version: int = 1,
    validate_only: bool = False,
) -> list[Outcome]:
    message = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    AlterableConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in operations
                ],
            )
            for kind, name, operations in wishes
        ],
        validate_only=validate_only,
    )
    answer = await rig.ask(message, IncrementalAlterConfigsResponse, version)
    assert [(r.resource_type, r.resource_name) for r in answer.responses] == [w[:2] for w in wishes]
    return [(response.error_code, response.error_message) for response in answer.responses]


async def replace(
    rig: Rig,
    kind: int,
    name: str,
    configs: dict[str, str | None],
    *,
    version: int = 2,
    validate_only: bool = False,
) -> Outcome:
    message = AlterConfigsRequest(
        resources=[
            ReplacedResource(
                resource_type=kind,
                resource_name=name,
                configs=[ReplacingConfig(name=key, value=value) for key, value in configs.items()],
            )
        ],
        validate_only=validate_only,
    )
    (response,) = (await rig.ask(message, AlterConfigsResponse, version)).responses
    return response.error_code, response.error_message


def stored(rig: Rig, kind: int, name: str) -> dict[str, str]:
    return dict(rig.broker.image.config(kind, name))


# Describing.


@pytest.mark.parametrize("version", range(5))
async def test_a_topic_has_all_settings_with_their_sources(rig: Rig, version: int) -> None:
    await rig.topic("orders", retention_ms="5000")
    (result,) = await describe(
        rig, (TOPIC, "orders"), version=version, synonyms=version >= 1, documentation=version >= 3
    )
    assert (result.error_code, result.error_message, result.resource_name) == (0, "", "orders")
    assert len(result.configs) == 33
    configs = {config.name: config for config in result.configs}
    retention, size = configs["retention.ms"], configs["max.message.bytes"]
    assert (retention.value, size.value, retention.read_only) == ("5000", "1048588", False)
    if version >= 1:
        assert (retention.config_source, size.config_source) == (1, 5)
        assert [(s.name, s.value, s.source) for s in size.synonyms] == [("message.max.bytes", "1048588", 5)]
    if version >= 3:
        assert (retention.config_type, size.config_type) == (5, 3)
        assert retention.documentation


async def test_what_is_not_asked_for_is_left_out(rig: Rig) -> None:
    await rig.topic("orders")
    configs = await described(rig, TOPIC, "orders", "cleanup.policy", "nope")
    assert set(configs) == {"cleanup.policy"}
    assert configs["cleanup.policy"].synonyms == []
    assert configs["cleanup.policy"].documentation is None


async def test_topic_settings_follow_broker_settings(rig: Rig) -> None:
    await rig.topic("orders")
    key = "retention.ms"
    before = (await described(rig, TOPIC, "orders", key, synonyms=True))[key]
    # In hours by default, which is not a synonym of the setting in milliseconds.
    assert (before.value, before.config_source, before.synonyms) == ("604800000", 5, [])
    await change(rig, (BROKER, "", [("log.retention.ms", SET, "111")]))
    await change(rig, (BROKER, "1", [("log.retention.ms", SET, "222")]))
    await change(rig, (TOPIC, "orders", [(key, SET, "333")]))
    config = (await described(rig, TOPIC, "orders", key, synonyms=True))[key]
    assert [(s.name, s.value, s.source) for s in config.synonyms] == [
        (key, "333", 1),
        ("log.retention.ms", "222", 2),
        ("log.retention.ms", "111", 3),
        ("log.retention.hours", "168", 5),
    ]
    for kind, name, setting, value, source in (
        (TOPIC, "orders", key, "222", 2),
        (BROKER, "1", "log.retention.ms", "111", 3),
        (BROKER, "", "log.retention.ms", "604800000", 5),
    ):
        await change(rig, (kind, name, [(setting, DELETE, None)]))
        config = (await described(rig, TOPIC, "orders", key))[key]
        assert (config.value, config.config_source) == (value, source)


async def test_values_are_spelled_one_way(rig: Rig) -> None:
    await rig.topic("orders", retention_ms=" 5 ", cleanup_policy="compact, delete", compression_type=" gzip ")
    configs = await described(rig, TOPIC, "orders", "retention.ms", "cleanup.policy", "compression.type")
    assert {name: config.value for name, config in configs.items()} == {
        "retention.ms": "5",
        "cleanup.policy": "compact,delete",
        "compression.type": "gzip",
    }


async def test_a_broker_shows_what_it_was_started_with(rig: Rig) -> None:
    rig.broker.settings = Settings().with_values({"num.partitions": "7", "store": "s3://key:secret@bucket/x"})
    configs = await described(rig, BROKER, "1", synonyms=True, documentation=True)
    partitions, policy = configs["num.partitions"], configs["log.cleanup.policy"]
    assert (partitions.value, partitions.config_source, partitions.read_only) == ("7", 4, True)
    assert [(s.value, s.source) for s in partitions.synonyms] == [("7", 4), ("1", 5)]
    assert (policy.value, policy.config_source, policy.read_only, policy.config_type) == (
        "delete",
        5,
        False,
        7,
    )
    assert partitions.documentation
    store = configs["store"]
    assert store.value == "s3://bucket/x"
    assert "secret" not in "".join(synonym.value or "" for synonym in store.synonyms)


async def test_all_brokers_show_what_was_changed_for_them(rig: Rig) -> None:
    assert set(await described(rig, BROKER, "")) == {"min.insync.replicas"}
    await change(rig, (BROKER, "", [("message.max.bytes", SET, "2000")]))
    configs = await described(rig, BROKER, "", synonyms=True)
    assert {name: (c.value, c.config_source) for name, c in configs.items()} == {
        "message.max.bytes": ("2000", 3),
        "min.insync.replicas": ("1", 3),
    }


async def test_each_resource_has_its_own_error(rig: Rig) -> None:
    await rig.topic("orders")
    results = await describe(
        rig,
        (TOPIC, "nope"),
        (TOPIC, ""),
        (TOPIC, "orders"),
        (BROKER, "2"),
        (BROKER, "x"),
        (LOGGER, ""),
        (LOGGER, "2"),
        (GROUP, ""),
        (METRICS, ""),
        (METRICS, "m"),
    )
    wrong = ErrorCode.INVALID_REQUEST
    assert [(result.error_code, result.error_message) for result in results] == [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: the empty string is not allowed"),
        (0, ""),
        (wrong, "Unexpected broker id, expected 1 or empty string, but received 2"),
        (wrong, "Broker id must be an integer, but it is: x"),
        (wrong, "Broker id must not be empty"),
        (wrong, "Unexpected broker id, expected 1 but received 2"),
        (wrong, "Group name must not be empty"),
        (wrong, "Client metrics subscription name must not be empty"),
        (wrong, "Client metrics are not collected by this cluster."),
    ]


@pytest.mark.parametrize("kind", [0, 3, 77])
async def test_an_unknown_type_refuses_the_whole_request(rig: Rig, kind: int) -> None:
    await rig.topic("orders")
    results = await describe(rig, (kind, "x"), (TOPIC, "orders"))
    assert [result.error_code for result in results] == [ErrorCode.INVALID_REQUEST] * 2
    assert [result.configs for result in results] == [[], []]


async def test_a_small_request_cannot_ask_for_a_huge_answer(rig: Rig) -> None:
    await rig.topic("o")
    results = await describe(rig, *[(TOPIC, "o")] * 50_001, keys=["retention.ms"])
    assert {result.error_code for result in results} == {ErrorCode.INVALID_REQUEST}
    results = await describe(rig, (TOPIC, "o"), (TOPIC, "o"), keys=["retention.ms"])
    assert [len(result.configs) for result in results] == [1, 1]


# Changing single settings.


@pytest.mark.parametrize("version", [0, 1])
async def test_set_and_delete(rig: Rig, version: int) -> None:
    await rig.topic("orders", segment_ms="9")
    before = rig.broker.image.version
    wish: list[Operation] = [
        ("retention.ms", SET, "5"),
        ("segment.ms", DELETE, None),
        ("flush.ms", DELETE, None),
    ]
    assert await change(rig, (TOPIC, "orders", wish), version=version) == [(0, None)]
    assert stored(rig, TOPIC, "orders") == {"retention.ms": "5"}
    assert rig.broker.image.version == before + 1
    assert await change(rig, (TOPIC, "orders", wish), version=version) == [(0, None)]
    assert rig.broker.image.version == before + 1, "what changes nothing is not written"


LISTS: list[tuple[str | None, int, str, str]] = [
    (None, APPEND, "compact", "delete,compact"),
    (None, APPEND, "delete", "delete"),
    ("compact", APPEND, "compact,delete", "compact,delete"),
    ("compact,delete", SUBTRACT, "delete", "compact"),
    ("compact,delete", SUBTRACT, "delete,compact,other", ""),
    (None, SUBTRACT, "delete", ""),
]


@pytest.mark.parametrize(("before", "operation", "value", "after"), LISTS)
async def test_lists(rig: Rig, before: str | None, operation: int, value: str, after: str) -> None:
    await rig.topic("orders")
    if before is not None:
        await rig.configure("orders", cleanup_policy=before)
    wish: list[Operation] = [("cleanup.policy", operation, value)]
    assert await change(rig, (TOPIC, "orders", wish)) == [(0, None)]
    assert stored(rig, TOPIC, "orders") == {"cleanup.policy": after}


TOPIC_REFUSALS: list[tuple[list[Operation], int, str]] = [
    ([("retention.ms", SET, None)], 42, "Null value not supported for : retention.ms"),
    (
        [("retention.ms", SET, None), ("flush.ms", APPEND, None)],
        42,
        "Null value not supported for : retention.ms, flush.ms",
    ),
    ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], 42, "Error due to duplicate config keys"),
    ([("retention.ms", APPEND, "1")], 40, "Can't APPEND to key retention.ms because its type is not LIST."),
    ([("nope", SUBTRACT, "1")], 40, "Can't SUBTRACT to key nope because its type is not LIST."),
    ([("retention.ms", 9, "1")], 42, "Unknown operations type 9"),
    ([("nope", SET, "1")], 40, "Unknown topic config name: nope"),
    (
        [("retention.ms", SET, "x")],
        40,
        "Invalid value x for configuration retention.ms: Not a number of type LONG",
    ),
    (
        [("cleanup.policy", APPEND, "zzz")],
        40,
        "Invalid value zzz for configuration cleanup.policy: String must be one of: compact, delete",
    ),
    ([("cleanup.policy", APPEND, "")], 40, "Configuration 'cleanup.policy' values must not be empty."),
    (
        [("max.compaction.lag.ms", SET, "3")],
        40,
        "conflict topic config setting min.compaction.lag.ms (9) > max.compaction.lag.ms (3)",
    ),
]


@pytest.mark.parametrize(("operations", "code", "message"), TOPIC_REFUSALS)
async def test_a_topic_keeps_all_its_settings(
    rig: Rig, operations: list[Operation], code: int, message: str
) -> None:
    await rig.topic("orders", min_compaction_lag_ms="9")
    good: list[Operation] = [("segment.ms", SET, "7")]
    assert await change(rig, (TOPIC, "orders", [*good, *operations])) == [(code, message)]
    assert stored(rig, TOPIC, "orders") == {"min.compaction.lag.ms": "9"}


async def test_each_resource_is_decided_by_itself(rig: Rig) -> None:
    await rig.topic("orders")
    await rig.topic("bills")
    before = rig.broker.image.version
    one: list[Operation] = [("retention.ms", SET, "1")]
    assert await change(
        rig,
        (TOPIC, "orders", one),
        (TOPIC, "nope", one),
        (TOPIC, "nope2", [("bad", SET, "1")]),
        (TOPIC, "", one),
        (TOPIC, "a b", one),
        (3, "x", one),
        (METRICS, "m", one),
        (TOPIC, "bills", one),
        (GROUP, "", [("consumer.session.timeout.ms", SET, "50000")]),
    ) == [
        (0, None),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'nope' does not exist."),
        (ErrorCode.INVALID_CONFIG, "Unknown topic config name: bad"),
        (ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed."),
        (
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "Topic name is invalid: 'a b' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'",
        ),
        (ErrorCode.INVALID_REQUEST, "Unknown resource type 3"),
        (ErrorCode.INVALID_REQUEST, "Client metrics are not collected by this cluster."),
        (0, None),
        (ErrorCode.INVALID_REQUEST, "Default group resources are not allowed."),
    ]
    assert stored(rig, TOPIC, "orders") == stored(rig, TOPIC, "bills") == {"retention.ms": "1"}
    assert rig.broker.image.version == before + 1


async def test_a_resource_that_is_named_twice_is_refused_twice(rig: Rig) -> None:
    await rig.topic("orders")
    wish: list[Operation] = [("retention.ms", SET, "1")]
    refused = (ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    assert await change(rig, (TOPIC, "orders", wish), (TOPIC, "orders", [])) == [refused, refused]
    assert stored(rig, TOPIC, "orders") == {}


async def test_validate_only_changes_nothing(rig: Rig) -> None:
    await rig.topic("orders")
    before = rig.broker.image.version
    good: list[Operation] = [("retention.ms", SET, "1")]
    bad: list[Operation] = [("retention.ms", SET, "x")]
    assert await change(rig, (TOPIC, "orders", good), validate_only=True) == [(0, None)]
    assert (await change(rig, (TOPIC, "orders", bad), validate_only=True))[0][0] == ErrorCode.INVALID_CONFIG
    assert await replace(rig, TOPIC, "orders", {"retention.ms": "1"}, validate_only=True) == (0, None)
    assert rig.broker.image.version == before


BROKER_REFUSALS: list[tuple[str, list[Operation], int, str]] = [
    ("2", [("log.retention.ms", SET, "1")], 42, "Unexpected broker id, expected 1, but received 2"),
    ("x", [("log.retention.ms", SET, "1")], 42, "Node id must be an integer, but it is: x"),
    ("1", [("num.partitions", SET, "5")], 42, "Cannot update these configs dynamically: [num.partitions]"),
    (
        "",
        [("num.partitions", SET, "5"), ("broker.id", SET, "5")],
        42,
        "Cannot update these configs dynamically: [broker.id, num.partitions]",
    ),
    (
        "1",
        [("log.retention.ms", SET, "abc")],
        42,
        "Invalid value abc for configuration log.retention.ms: Not a number of type LONG",
    ),
    (
        "1",
        [("message.max.bytes", APPEND, "5")],
        40,
        "Config value append is not allowed for config key: message.max.bytes",
    ),
    ("1", [("nope", APPEND, "5")], 40, "Unknown config name: nope"),
    ("1", [("message.max.bytes", 9, "5")], 42, "Unknown operations type 9"),
    (
        "1",
        [("ssl.keystore.password", SET, "5"), ("log.dirs", SET, "/tmp")],
        42,
        "Cannot update these configs dynamically: [log.dirs, ssl.keystore.password]",
    ),
    (
        "",
        [("sasl.kerberos.min.time.before.relogin", SET, "60000")],
        42,
        "Cannot update these configs at default cluster level, broker id must be specified: "
        "[sasl.kerberos.min.time.before.relogin]",
    ),
    (
        "1",
        [("log.cleaner.threads", SET, "many")],
        42,
        "Invalid value many for configuration log.cleaner.threads: Not a number of type INT",
    ),
    (
        "1",
        [(f"plugin.{at}", SET, "5") for at in range(400)],
        42,
        "A broker cannot have more than 200 settings that it does not define.",
    ),
]


@pytest.mark.parametrize("name", ["1", ""])
async def test_a_broker_keeps_settings_that_it_does_not_define(rig: Rig, name: str) -> None:
    """As Kafka does for its plugins: that one is set is told, and its value is not."""
    wishes: list[Operation] = [
        ("plugin.limit", SET, "7"),
        ("num_partitions", SET, "9"),
        ("num.io.threads", SET, "3"),
    ]
    assert await change(rig, (BROKER, name, wishes)) == [(0, None)]
    assert stored(rig, BROKER, name) == {key: value for key, _, value in wishes}
    shown = await described(rig, BROKER, name, "plugin.limit", "num.io.threads")
    plugin, threads = shown["plugin.limit"], shown["num.io.threads"]
    assert (plugin.value, plugin.is_sensitive, plugin.read_only, plugin.config_type) == (None, True, True, 0)
    assert (threads.value, threads.is_sensitive, threads.read_only, threads.config_type) == (
        "3",
        False,
        False,
        3,
    )
    assert rig.broker.settings.at(rig.broker.image).num_partitions == rig.broker.settings.num_partitions
    assert await change(rig, (BROKER, name, [(key, DELETE, None) for key, _, _ in wishes])) == [(0, None)]
    assert await described(rig, BROKER, name, "plugin.limit") == {}


async def test_what_is_kept_without_effect_is_said(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    await rig.topic("t")
    wishes: list[Operation] = [("plugin.token", SET, "hunter2"), ("max.connections", SET, "9")]
    assert await change(rig, (BROKER, "", wishes)) == [(0, None)]
    assert await change(rig, (TOPIC, "t", [("flush.ms", SET, "1"), ("retention.ms", SET, "5")])) == [
        (0, None)
    ]
    said = [record.message for record in caplog.records if "without effect" in record.message]
    assert [line.partition(": ")[0] for line in said] == [
        "setting was kept without effect name='plugin.token' resource=''",
        "setting was kept without effect name='flush.ms' resource='t'",
    ]
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(("name", "operations", "code", "message"), BROKER_REFUSALS)
async def test_refused_for_brokers(
    rig: Rig, name: str, operations: list[Operation], code: int, message: str
) -> None:
    before = rig.broker.image.version
    assert await change(rig, (BROKER, name, operations)) == [(code, message)]
    assert rig.broker.image.version == before


async def test_a_broker_by_another_spelling_of_its_number(rig: Rig) -> None:
    assert await change(rig, (BROKER, "01", [("message.max.bytes", SET, "5000")])) == [(0, None)]
    assert stored(rig, BROKER, "1") == {"message.max.bytes": "5000"}


async def test_groups_have_settings_within_the_bounds_of_brokers(rig: Rig) -> None:
    key = "consumer.session.timeout.ms"
    assert await change(rig, (GROUP, "g", [(key, SET, "50000")])) == [(0, None)]
    assert (await described(rig, GROUP, "g", key))[key].value == "50000"
    assert await change(rig, (GROUP, "g", [(key, SET, "1")])) == [
        (
            ErrorCode.INVALID_CONFIG,
            f"{key} must be greater than or equal to group.consumer.min.session.timeout.ms",
        )
    ]
    assert await change(rig, (GROUP, "g", [("nope", SET, "1")])) == [
        (ErrorCode.INVALID_CONFIG, "Unknown group config name: nope")
    ]


# Replacing all settings.


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_replacing_removes_what_is_not_named(rig: Rig, version: int) -> None:
    await rig.topic("orders", retention_ms="5", segment_ms="9")
    assert await replace(rig, TOPIC, "orders", {"retention.ms": "6"}, version=version) == (0, None)
    assert stored(rig, TOPIC, "orders") == {"retention.ms": "6"}
    assert await replace(rig, TOPIC, "orders", {}, version=version) == (0, None)
    assert stored(rig, TOPIC, "orders") == {}


async def test_replacing_is_refused_whole(rig: Rig) -> None:
    await rig.topic("orders", retention_ms="5")
    assert await replace(rig, TOPIC, "orders", {"segment.ms": "1", "nope": "1"}) == (
        ErrorCode.INVALID_CONFIG,
        "Unknown topic config name: nope",
    )
    assert await replace(rig, TOPIC, "orders", {"retention.ms": None}) == (
        ErrorCode.INVALID_REQUEST,
        "Null value not supported for : retention.ms",
    )
    assert await replace(rig, LOGGER, "1", {"root": "INFO"}) == (
        ErrorCode.INVALID_REQUEST,
        "Unknown resource type 8",
    )
    assert stored(rig, TOPIC, "orders") == {"retention.ms": "5"}


# Loggers.


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    made = logging.getLogger("penstock.tests.levels")
    yield made
    made.setLevel(logging.NOTSET)


async def test_log_levels(rig: Rig, logger: logging.Logger) -> None:
    assert await change(rig, (LOGGER, "1", [(logger.name, SET, "DEBUG")])) == [(0, None)]
    assert logger.level == logging.DEBUG
    config = (await described(rig, LOGGER, "1", logger.name))[logger.name]
    assert (config.value, config.config_source) == ("DEBUG", 6)
    assert await change(rig, (LOGGER, "1", [(logger.name, SET, "ERROR")]), validate_only=True) == [(0, None)]
    assert logger.level == logging.DEBUG
    assert await change(rig, (LOGGER, "1", [(logger.name, DELETE, None)])) == [(0, None)]
    assert logger.level == logging.NOTSET


LEVEL_REFUSALS: list[tuple[str, Operation, int, str]] = [
    ("2", ("root", SET, "INFO"), 42, "Unexpected node id. Expected 1, but received 2"),
    ("", ("root", SET, "INFO"), 42, "Node id must be an integer, but it is: "),
    ("1", ("nolog", SET, "INFO"), 40, "Logger nolog does not exist!"),
    ("1", ("root", DELETE, None), 42, "Removing the log level of the root logger is not allowed"),
    ("1", ("root", APPEND, "INFO"), 42, "APPEND operation is not allowed for the BROKER_LOGGER resource"),
    (
        "1",
        ("root", SET, "zzz"),
        40,
        "Cannot set the log level of root to zzz as it is not a supported log level. Valid log levels are "
        "DEBUG, ERROR, FATAL, INFO, TRACE, WARN",
    ),
]


@pytest.mark.parametrize(("name", "operation", "code", "message"), LEVEL_REFUSALS)
async def test_refused_log_levels(rig: Rig, name: str, operation: Operation, code: int, message: str) -> None:
    assert await change(rig, (LOGGER, name, [operation])) == [(code, message)]


# Listing.


async def listed(rig: Rig, version: int, *kinds: int) -> tuple[int, set[tuple[int, str]]]:
    message = ListConfigResourcesRequest(resource_types=list(kinds))
    answer = await rig.ask(message, ListConfigResourcesResponse, version)
    return answer.error_code, {(r.resource_type, r.resource_name) for r in answer.config_resources}


async def test_listing_what_has_settings(rig: Rig) -> None:
    await rig.topic("orders")
    await change(rig, (GROUP, "g", [("consumer.session.timeout.ms", SET, "50000")]))
    everything = {(TOPIC, "orders"), (BROKER, "1"), (LOGGER, "1"), (GROUP, "g")}
    assert await listed(rig, 1) == (0, everything)
    assert await listed(rig, 1, TOPIC, BROKER, TOPIC) == (0, {(TOPIC, "orders"), (BROKER, "1")})
    assert await listed(rig, 1, METRICS) == (0, set())
    assert await listed(rig, 1, TOPIC, 99) == (ErrorCode.UNSUPPORTED_VERSION, set())
    assert await listed(rig, 0) == (0, set())
