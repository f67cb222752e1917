"""The settings of brokers: the values that a person can set when starting one.

A setting has Kafka's name if Kafka has the setting (`offsets.topic.num.partitions`), else our own
(`durability`). The attribute is the name with '.' written as '_'. Settings that give the default of a topic
setting are in `topic_defaults`.

Values come, later ones winning, from the defaults here, a file and `--set NAME=VALUE`. An unknown name or a
bad value is a `SettingsError` of one sentence.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec.structs import replace

from penstock.settings.access import ACCESS_SETTINGS
from penstock.settings.checks import HOST_LIMITS, METADATA, STORE, at_least, one_of
from penstock.settings.doors import doors, inter_broker
from penstock.settings.groups import COORDINATOR_SETTINGS
from penstock.settings.http import is_loopback, parse_http_address
from penstock.settings.listeners import parse_listeners
from penstock.settings.listening import LISTENING_SETTINGS, of_all_listeners, prefixed
from penstock.settings.setting import (
    DOUBLE_MAX,
    HIDDEN,
    INT_MAX,
    Kind,
    Rows,
    Setting,
    SettingsError,
    ValueProblem,
    value_text,
)
from penstock.settings.topic_defaults import TOPIC_DEFAULTS
from penstock.settings.watching import WATCHING_SETTINGS, WatchingSettings

BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST = (
    Kind.BOOLEAN,
    Kind.STRING,
    Kind.INT,
    Kind.SHORT,
    Kind.LONG,
    Kind.DOUBLE,
    Kind.LIST,
)

row = Rows("broker", "read-only")


class DynamicSettings(Protocol):
    """The source of settings that were changed while brokers ran: an image of the cluster."""

    def broker_configs(self, broker: int) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Those of one broker, and those of all brokers."""


class Settings(WatchingSettings, frozen=True, kw_only=True):
    """All settings of one broker, checked."""

    row.section("Who a broker is and where its cluster lives")

    broker_id: int = row(
        INT,
        1,
        "The number of this broker, unique in its cluster.",
        at_least(0),
        kafka=("node.id",),
        unlike="Kafka's is -1, which means that none is set; the first broker is 1 here.",
    )
    broker_rack: str | None = row(STRING, None, "The rack of this broker, shown in Metadata; empty: none.")
    store: str = row(
        STRING,
        "./penstock-data",
        "The directory or URL where the cluster lives: s3://bucket/prefix, gs://, az://. Same store, same "
        "cluster. An S3 URL may end in ?endpoint=URL&region=NAME&path_style=true; credentials come from the "
        "environment.",
        STORE,
        scope="cluster",
        ours=True,
        kafka=("log.dirs", "log.dir"),
        place=True,
    )
    store_network_enable: bool = row(
        BOOLEAN,
        False,
        "Whether the directory may lie on a network file system: only if all brokers run on this machine.",
        ours=True,
    )
    metadata: str = row(
        STRING,
        "",
        "Where the metadata log and leases live: etcd://HOST:PORT,.../PREFIX, or etcds:// for TLS; empty: "
        "where the store says they are, which is in the store itself for a new cluster.",
        METADATA,
        scope="cluster",
        ours=True,
        place=True,
    )

    row.section("Topics")

    auto_create_topics_enable: bool = row(
        BOOLEAN, True, "Whether a topic that a client asks for is created.", scope="cluster"
    )
    num_partitions: int = row(
        INT, 1, "Partitions of a topic whose creator does not say.", at_least(1), scope="cluster"
    )
    default_replication_factor: int = row(
        INT,
        1,
        "Length of the failover order of a topic whose creator does not say.",
        at_least(1),
        scope="cluster",
    )
    delete_topic_enable: bool = row(BOOLEAN, True, "Whether topics can be deleted.", scope="cluster")

    row.section("Background work")

    log_segment_delete_delay_ms: int = row(
        LONG,
        60000,
        "How long the objects of deleted records are kept for readers that are still on them. Topics take a "
        "change at once, the write-ahead log of a broker when it starts.",
        at_least(0),
        update="cluster-wide",
        scope="cluster",
    )
    log_retention_check_interval_ms: int = row(
        LONG, 300000, "How often retention looks for records to delete.", at_least(1)
    )
    log_cleaner_enable: bool = row(BOOLEAN, True, "Whether compaction runs.", scope="cluster")
    log_cleaner_backoff_ms: int = row(
        LONG,
        15000,
        "How long compaction waits when there was nothing to do.",
        at_least(0),
        update="cluster-wide",
    )
    log_cleaner_dedupe_buffer_size: int = row(
        LONG,
        134217728,
        "Memory for the keys of one compaction, in bytes.",
        at_least(1048576),
        update="cluster-wide",
    )
    log_cleaner_io_max_bytes_per_second: float = row(
        DOUBLE,
        DOUBLE_MAX,
        "The most that compaction reads and writes in a second.",
        at_least(0),
        update="cluster-wide",
    )

    row.section("The write-ahead log and its caches")

    durability: str = row(
        STRING,
        "os",
        "What an acknowledged write has reached: the operating system (os) or the disk itself (fsync).",
        one_of("os", "fsync"),
        scope="cluster",
        ours=True,
        kafka=("log.flush.interval.messages",),
    )
    wal_segment_bytes: int = row(
        LONG,
        67108864,
        "The size at which a new write-ahead file starts; settling works on whole files.",
        at_least(1048576),
        ours=True,
    )
    wal_settle_interval_ms: int = row(
        LONG,
        10000,
        "How long records stay in the write-ahead log before they are settled into segments.",
        at_least(1),
        ours=True,
    )
    wal_settle_bytes: int = row(
        LONG,
        67108864,
        "How many unsettled bytes start a settling early: bounds what recovery has to read.",
        at_least(1048576),
        ours=True,
    )
    tail_cache_bytes: int = row(
        LONG,
        67108864,
        "Memory for the newest records of all partitions, from which most fetches are served.",
        at_least(0),
        ours=True,
    )
    segment_cache_bytes: int = row(
        LONG,
        33554432,
        "Memory for segment indexes and blocks read from a remote store.",
        at_least(0),
        ours=True,
    )

    row.section("Connections and memory")

    max_connections: int = row(
        INT,
        10000,
        "How many connections a broker accepts; more are closed at once.",
        at_least(0),
        update="cluster-wide",
        unlike="Kafka's has no limit.",
    )
    max_connections_per_ip: int = row(
        INT,
        INT_MAX,
        "How many connections a broker accepts from one address.",
        at_least(0),
        update="cluster-wide",
    )
    max_connections_per_ip_overrides: str = row(
        STRING,
        "",
        "Addresses with another limit than max.connections.per.ip: ADDRESS:LIMIT, comma-separated.",
        HOST_LIMITS,
        update="cluster-wide",
    )
    max_connection_creation_rate: int = row(
        INT,
        INT_MAX,
        "How many connections a second a broker accepts; further ones wait.",
        at_least(0),
        update="cluster-wide",
    )
    connections_max_idle_ms: int = row(
        LONG, 600000, "How long a connection may be silent before it is closed.", at_least(1)
    )
    socket_request_max_bytes: int = row(INT, 104857600, "The largest request frame.", at_least(1))
    socket_listen_backlog_size: int = row(
        INT,
        1024,
        "How many connections may wait to be accepted.",
        at_least(1),
        unlike="Kafka's is 50, which a burst of clients overflows.",
    )
    socket_send_buffer_bytes: int = row(
        INT,
        -1,
        "SO_SNDBUF of client connections; -1: the operating system's choice.",
        unlike="Kafka's is 102400; the operating system does better.",
    )
    socket_receive_buffer_bytes: int = row(
        INT,
        -1,
        "SO_RCVBUF of client connections; -1: the operating system's choice.",
        unlike="Kafka's is 102400; the operating system does better.",
    )
    queued_max_requests: int = row(
        INT,
        500,
        "How many requests of one connection may wait for their answers before it is read no further.",
        at_least(1),
    )
    queued_max_request_bytes: int = row(
        LONG,
        134217728,
        "How many bytes of requests may be in memory before no connection is read any further.",
        at_least(1048576),
        unlike="Kafka's has no limit.",
    )
    shutdown_drain_ms: int = row(
        LONG, 10000, "How long a stopping broker waits for requests under way.", at_least(0), ours=True
    )

    row.section("Fetch")

    fetch_max_bytes: int = row(
        INT, 57671680, "The most that one fetch is answered with, whatever it asks for.", at_least(1024)
    )
    max_incremental_fetch_session_cache_slots: int = row(
        INT, 1000, "How many fetch sessions are kept.", at_least(0)
    )

    row.section("Producers and transactions")

    producer_id_expiration_ms: int = row(
        INT,
        86400000,
        "How long the sequence state of a silent producer is kept.",
        at_least(1),
        update="cluster-wide",
        scope="cluster",
    )
    transaction_max_timeout_ms: int = row(
        INT, 900000, "The longest transaction time-out a producer may ask for.", at_least(1), scope="cluster"
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = row(
        INT,
        10000,
        "How often transactions are aborted that are open for longer than their time-out.",
        at_least(1),
        scope="cluster",
    )
    transactional_id_expiration_ms: int = row(
        INT,
        604800000,
        "How long a transactional id may be idle before it is forgotten.",
        at_least(1),
        scope="cluster",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = row(
        INT, 3600000, "How often idle transactional ids are looked for.", at_least(1), scope="cluster"
    )
    transaction_state_log_num_partitions: int = row(
        INT,
        50,
        "Partitions of `__transaction_state`; fixed once the topic exists.",
        at_least(1),
        scope="cluster",
    )
    transaction_state_log_replication_factor: int = row(
        SHORT,
        3,
        "Length of the failover order of `__transaction_state`, as far as there are brokers.",
        at_least(1),
        scope="cluster",
    )
    transaction_state_log_segment_bytes: int = row(
        INT, 104857600, "Segment size of `__transaction_state`.", at_least(1), scope="cluster"
    )

    transaction_partition_verification_enable: bool = row(
        BOOLEAN,
        True,
        "Whether the coordinator is asked before records begin a transaction in a partition. Clients from "
        "Produce 12 and TxnOffsetCommit 5 on add the partition with this question, so for them it is always "
        "asked.",
        update="cluster-wide",
        scope="cluster",
    )
    add_partitions_to_txn_retry_backoff_ms: int = row(
        INT,
        20,
        "The longest pause before the coordinator is asked again whether a partition may be added to a "
        "transaction.",
        at_least(1),
        unlike="Kafka's pauses are all of this length; here they begin with a millisecond.",
    )
    add_partitions_to_txn_retry_backoff_max_ms: int = row(
        INT,
        100,
        "How long the coordinator is asked again while the transaction before is being ended.",
        at_least(0),
    )

    row.section("The cluster")

    broker_session_timeout_ms: int = row(
        INT, 9000, "How long a broker may be silent before the others fence it.", at_least(1), scope="cluster"
    )
    broker_heartbeat_interval_ms: int = row(
        INT,
        1000,
        "How often a broker renews its lease.",
        at_least(1),
        scope="cluster",
        unlike="Kafka's is 2000; a dead broker is noticed sooner here.",
    )
    auto_leader_rebalance_enable: bool = row(
        BOOLEAN, True, "Whether leaders are spread evenly again when brokers come and go.", scope="cluster"
    )
    leader_imbalance_check_interval_seconds: int = row(
        LONG,
        5,
        "How often the spread of leaders is looked at.",
        at_least(1),
        unlike="Kafka's is 300; moving a leader costs little here.",
    )
    metadata_poll_interval_ms: int = row(
        LONG,
        0,
        "How often the metadata log is looked at for new entries; 0: what suits the store.",
        at_least(0),
        ours=True,
    )
    metadata_snapshot_entries: int = row(
        LONG,
        1000,
        "How many entries the metadata log grows between snapshots.",
        at_least(1),
        scope="cluster",
        ours=True,
        kafka=("metadata.log.max.record.bytes.between.snapshots",),
    )

    given: Mapping[str, str] = {}
    """What was set, or moved along with what was set, by name, as text: DescribeConfigs tells it from
    defaults."""

    def shown(self) -> dict[str, str]:
        """What was set, by name, without secrets."""
        shown = ((name, _settable(name).shown(text)) for name, text in self.given.items())
        return {name: HIDDEN if text is None else text for name, text in shown}

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={text}' for name, text in self.shown().items())})"

    def with_values(self, values: Mapping[str, str]) -> "Settings":
        """These settings with others laid over them, by name and as text. SettingsError if one is bad."""
        if not values:
            return self
        changes: dict[str, Any] = {}
        texts: dict[str, str] = {}
        for name, text in values.items():
            setting = _settable(name)
            try:
                value = setting.typed(text)
            except ValueProblem as problem:
                raise SettingsError(f"{str(problem).rstrip('.')}.") from None
            texts[name] = value_text(value)
            if name in _ATTRIBUTES:
                changes[setting.field] = value
        changed = replace(self, given={**self.given, **texts}, **changes)
        moved = changed._moved_along()
        if moved:
            # Whoever asks is told what is in force.
            given = {**changed.given, **{name: str(value) for name, value in moved.items()}}
            fields: dict[str, Any] = {_field(name): value for name, value in moved.items()}
            changed = replace(changed, given=given, **fields)
        changed.validate()
        return changed

    def at(self, image: DynamicSettings) -> "Settings":
        """The settings in force: these with the broker's dynamic settings laid over them."""
        own, shared = image.broker_configs(self.broker_id)
        changes: dict[str, Any] = {}
        for layer in (shared, own):
            for name, text in layer.items():
                setting = _ATTRIBUTES.get(name)
                if setting is not None and setting.dynamic:
                    changes[setting.field] = setting.typed(text)
        return replace(self, **changes) if changes else self

    def validate(self) -> None:
        """Raise SettingsError if settings that are each possible do not fit together."""
        for lower, upper in _ORDERED:
            low, high = self._number(lower), self._number(upper)
            if low > high:
                raise SettingsError(f"{lower} ({low}) must not be more than {upper} ({high}).")
        if self.group_consumer_session_timeout_ms <= self.group_consumer_heartbeat_interval_ms:
            raise SettingsError(
                "group.consumer.session.timeout.ms must be more than group.consumer.heartbeat.interval.ms."
            )
        if self.broker_session_timeout_ms < 2 * self.broker_heartbeat_interval_ms:
            raise SettingsError(
                "broker.session.timeout.ms must be at least twice broker.heartbeat.interval.ms, or a broker "
                "is fenced for one late heartbeat."
            )
        self.validate_access()
        self._validate_http()
        here = {door.name for door in doors(self, self.given)}
        inter_broker(self, self.given)
        if self.advertised_listeners:
            for listener in parse_listeners(self.advertised_listeners):
                if listener.name not in here:
                    raise SettingsError(f"advertised.listeners names {listener.name}, which listeners lacks.")

    def _validate_http(self) -> None:
        for name in _OF_THE_HTTP_PORT:
            if self.given.get(name) and not self.http_address:
                raise SettingsError(f"{name} is set, and there is no HTTP port: see http.address (--http).")
        if self.http_address:
            host, _port = parse_http_address(self.http_address)
            if not (is_loopback(host) or self.insecure_listeners_enable):
                self._refuse_open_http()

    def _refuse_open_http(self) -> None:
        """Visitors of the console must log in, and nobody on the way may see their passwords. Without a
        console there is nothing that asks for one: /metrics asks for a token at most."""
        found = doors(self, self.given)
        if not (any(door.login is not None for door in found) or all(door.knows_peers for door in found)):
            raise SettingsError(
                f"Others can reach {self.http_address}: the HTTP port needs a certificate "
                "(http.ssl.keystore.location) and a listener with a login, which --secure makes. Or use "
                "an address of loopback (127.0.0.1), or leave it open with --insecure."
            )
        if self.console_enable and not self.http_ssl_keystore_location:
            raise SettingsError(
                f"Others can reach {self.http_address}, and its console must not ask for passwords over "
                "plain HTTP: give the port a certificate (http.ssl.keystore.location, which --secure makes), "
                "serve no console (console.enable=false), or use an address of loopback (127.0.0.1)."
            )

    def _moved_along(self) -> dict[str, int]:
        """By name, bounds that were not set, moved to where those that were set need them."""
        moved: dict[str, int] = {}
        for lower, upper in _ORDERED:
            low = moved.get(lower, self._number(lower))
            high = moved.get(upper, self._number(upper))
            if low > high and upper not in self.given:
                moved[upper] = low
            elif low > high and lower not in self.given:
                moved[lower] = high
        interval = max(1, self.broker_session_timeout_ms // 3)
        if "broker.heartbeat.interval.ms" not in self.given and interval < self.broker_heartbeat_interval_ms:
            moved["broker.heartbeat.interval.ms"] = interval
        return moved

    def _number(self, name: str) -> int:
        if name in _ATTRIBUTES:
            value: int = getattr(self, _field(name))
            return value
        return int(self.given.get(name, BROKER_SETTINGS[name].default or 0))


_OF_THE_HTTP_PORT = ("http.ssl.keystore.location", "http.names", "console.registry.url", "metrics.token.file")
_ORDERED = (
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.session.timeout.ms"),
    ("group.consumer.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("group.consumer.min.assignment.interval.ms", "group.consumer.assignment.interval.ms"),
    ("group.consumer.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"),
    ("socket.request.max.bytes", "queued.max.request.bytes"),
)
"""Pairs of which the first must not be more than the second. One that is set moves the other along if that
one is not, so that nobody has to set a bound only to set what it bounds."""


_ATTRIBUTES = {
    **row.named(Settings, besides=("given",)),
    **WATCHING_SETTINGS,
    **LISTENING_SETTINGS,
    **COORDINATOR_SETTINGS,
    **ACCESS_SETTINGS,
}

# In the order of the table. A setting that is an attribute too is described as such.
BROKER_SETTINGS: dict[str, Setting] = {**_ATTRIBUTES, **TOPIC_DEFAULTS, **_ATTRIBUTES}


def _field(name: str) -> str:
    return name.replace(".", "_")


def _settable(name: str) -> Setting:
    """The setting of this name, if a broker can be started with it."""
    setting = BROKER_SETTINGS.get(name) or prefixed(name)
    if setting is None or setting.moot or setting.fixed:
        raise SettingsError(_why_not(name, setting))
    return setting


def _why_not(name: str, setting: Setting | None) -> str:
    if setting is not None:
        return f"{name} has no meaning here. {setting.moot or setting.fixed}"
    for other in BROKER_SETTINGS.values():
        if name in other.kafka:
            return f"{name} is not a setting; here it is {other.name}."
    whole = of_all_listeners(name)
    if whole != name and whole in BROKER_SETTINGS:
        return f"{name} is not a setting; here {whole} holds for all listeners together."
    from penstock.settings.foreign import why_foreign

    why = why_foreign(name)
    if why:
        return f"{name} has no meaning here. {why}"
    import difflib

    known = (one.name for one in BROKER_SETTINGS.values() if not (one.moot or one.fixed))
    close = difflib.get_close_matches(whole, known, 1, 0.6)
    return f"{name} is not a setting; did you mean {close[0]}?" if close else f"{name} is not a setting."
