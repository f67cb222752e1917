"""The settings of a broker: where values come from, one sentence for a mistake, what holds while it runs."""

import subprocess
import sys

import pytest

from penstock.metadata.commands import SetConfig
from penstock.metadata.configs import broker_value
from penstock.metadata.image import BROKER_CONFIG
from penstock.settings import Settings, SettingsError, load, parse_listeners
from tests.metadata.worlds import cluster, do


def test_values_come_from_the_file_and_then_from_the_command_line() -> None:
    toml = b"""
durability = "fsync"
"num.partitions" = 3
log.retention.ms = 5
auto.create.topics.enable = false
[offsets.topic]
num.partitions = 7
"""
    settings = load(["num.partitions=4", "log.cleanup.policy = compact, delete"], toml=toml)
    assert settings.durability == "fsync"
    assert settings.num_partitions == 4
    assert settings.auto_create_topics_enable is False
    assert settings.offsets_topic_num_partitions == 7
    assert settings.given == {
        "durability": "fsync",
        "num.partitions": "4",
        "log.retention.ms": "5",
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "7",
        "log.cleanup.policy": "compact,delete",
    }


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("num.partitons=3", "num.partitons is not a setting; did you mean num.partitions?"),
        ("log.dirs=/tmp", "log.dirs is not a setting; here it is store."),
        ("xyzzy=1", "xyzzy is not a setting."),
        ("given=1", "given is not a setting."),
        (
            "num.io.threads=8",
            "num.io.threads has no meaning here. A broker is one process with one event loop; `--brokers N` "
            "runs more of them.",
        ),
        (
            "ssl.cipher.suites=TLS_AES_128_GCM_SHA256",
            "ssl.cipher.suites has no meaning here. OpenSSL chooses among its strong suites; "
            "ssl.enabled.protocols says which versions are spoken.",
        ),
        (
            "log.cleaner.max.compaction.lag.ms=5;log.cleaner.min.compaction.lag.ms=6",
            "log.cleaner.min.compaction.lag.ms (6) must not be more than "
            "log.cleaner.max.compaction.lag.ms (5).",
        ),
        ("num.partitions", "--set takes NAME=VALUE, not 'num.partitions'."),
        ("num.partitions=0", "Invalid value 0 for configuration num.partitions: Value must be at least 1."),
        (
            "durability=disk",
            "Invalid value disk for configuration durability: String must be one of: os, fsync.",
        ),
        (
            "min.insync.replicas=2",
            "min.insync.replicas has no meaning here. Every acknowledged record is in the shared store, "
            "however many brokers are alive.",
        ),
        ("listeners=9092", "A listener is NAME://HOST:PORT, not '9092'."),
        ("listeners=A://h:1,A://h:2", "Two listeners have the same name."),
        ("advertised.listeners=OTHER://h:1", "advertised.listeners names OTHER, which listeners lacks."),
    ],
)
def test_a_mistake_gets_one_sentence(assignment: str, sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(assignment.split(";"))
    assert str(caught.value) == sentence


def test_a_file_that_is_not_toml() -> None:
    with pytest.raises(SettingsError, match="The configuration file is not TOML: "):
        load(toml=b"= 3")
    with pytest.raises(SettingsError, match="The configuration file is not TOML: "):
        load(toml=b"\xff")


def test_a_bound_follows_what_is_set() -> None:
    assert load(["group.consumer.session.timeout.ms=6000"]).group_consumer_min_session_timeout_ms == 6000
    assert load(["group.consumer.session.timeout.ms=90000"]).group_consumer_max_session_timeout_ms == 90000
    assert load(["broker.session.timeout.ms=1500"]).broker_heartbeat_interval_ms == 500
    assert load(["socket.request.max.bytes=300000000"]).queued_max_request_bytes == 300000000


def test_a_bound_that_followed_is_in_force_for_groups_too() -> None:
    given = load(["group.consumer.session.timeout.ms=6000", "broker.session.timeout.ms=1500"]).given
    lowest = "group.consumer.min.session.timeout.ms"
    assert (given[lowest], given["broker.heartbeat.interval.ms"]) == ("6000", "500")
    assert broker_value(cluster(1), 1, given, lowest) == "6000"
    assert load(["broker.session.timeout.ms=9000"]).given == {"broker.session.timeout.ms": "9000"}


def test_bounds_that_are_both_set_must_fit() -> None:
    with pytest.raises(
        SettingsError, match=r"^group.min.session.timeout.ms \(9\) must not be more than group.max"
    ):
        load(["group.min.session.timeout.ms=9", "group.max.session.timeout.ms=8"])
    with pytest.raises(SettingsError, match=r"must be more than group.consumer.heartbeat.interval.ms"):
        load(["group.consumer.session.timeout.ms=5000"])
    with pytest.raises(SettingsError, match="at least twice"):
        load(["broker.session.timeout.ms=1500", "broker.heartbeat.interval.ms=1000"])


def test_dynamic_settings_hold_without_a_restart() -> None:
    image = do(
        cluster(1, 2),
        SetConfig(BROKER_CONFIG, "", {"log.cleaner.backoff.ms": "5", "max.connections": "9"}),
        SetConfig(BROKER_CONFIG, "2", {"max.connections": "10", "min.insync.replicas": "2"}),
    )
    settings = load(["broker.id=2", "log.cleaner.backoff.ms=100"])
    assert settings.at(cluster(2)) is settings
    assert settings.at(image).max_connections == 10
    assert settings.at(image).log_cleaner_backoff_ms == 5
    assert Settings().at(image).max_connections == 9


def test_a_choice_in_capital_letters_is_obeyed() -> None:
    settings = load(["group.consumer.migration.policy=UPGRADE"])
    assert (settings.upgrade_enabled, settings.downgrade_enabled) == (True, False)


def test_listeners() -> None:
    assert parse_listeners("plaintext://0.0.0.0:9092, TLS://[::1]:0") == (
        ("PLAINTEXT", "0.0.0.0", 9092),
        ("TLS", "::1", 0),
    )


def test_a_start_loads_nothing_that_only_mistakes_need() -> None:
    code = (
        "import sys, penstock.settings as s; s.load(['num.partitions=2']); "
        "print([m for m in sys.modules if m in ('tomllib', 'difflib', 'penstock.settings.foreign')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
