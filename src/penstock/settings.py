"""Everything a person can set when starting a broker.

A setting has Kafka's name where Kafka has the setting (`offsets.topic.num.partitions`) and ours where it
has none (`durability`); the attribute is the name with '.' written as '_'. Values come, later ones
winning, from the defaults here, a TOML file and `--set NAME=VALUE`. An unknown name or a bad value is a
`SettingsError` of one sentence.

What each value may be, and which may be changed while a broker runs, is defined in
`metadata.broker_configs`; it is loaded only if something is set.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from penstock.metadata.image import BROKER_CONFIG, ClusterImage, Listener

_NOT_HERE = {
    "log.dir": "store",
    "log.dirs": "store",
    "node.id": "broker.id",
    "rack": "broker.rack",
}
"""Names that people coming from Kafka try, and what they are here."""


class SettingsError(ValueError):
    """A setting is unknown or its value is bad. The message is one sentence for a person."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of one broker, checked."""

    # Who this broker is and where its cluster lives.

    broker_id: int = 1
    """The number of this broker, unique in its cluster."""
    listeners: str = "PLAINTEXT://127.0.0.1:9092"
    """The addresses to listen on: NAME://HOST:PORT, comma-separated."""
    advertised_listeners: str | None = None
    """The addresses that clients are told, in the form of `listeners`; empty: the addresses listened on."""
    broker_rack: str | None = None
    """The rack of this broker, shown in Metadata; empty: none."""
    store: str = "./penstock-data"
    """The directory or URL where the cluster lives: s3://bucket/prefix, gs://, az://. Same store, same
    cluster. An S3 URL may end in ?endpoint=URL&region=NAME&path_style=true; credentials come from the
    environment."""
    store_network_enable: bool = False
    """Whether the directory may lie on a network file system: only if all brokers run on this machine."""
    metadata: str = ""
    """Where the metadata log and leases live: etcd://HOST:PORT,.../PREFIX, or etcds:// for TLS; empty: where
    the store says they are, which is in the store itself for a new cluster."""

    # Topics.

    auto_create_topics_enable: bool = True
    """Whether a topic that a client asks for is created."""
    num_partitions: int = 1
    """Partitions of a topic whose creator does not say."""
    default_replication_factor: int = 1
    """Length of the failover order of a topic whose creator does not say."""
    delete_topic_enable: bool = True
    """Whether topics can be deleted."""

    # Defaults of topic settings.

    message_max_bytes: int = 1048588
    """The largest record batch accepted."""
    compression_type: str = "producer"
    """How batches are stored: as the producer sent them, or with the codec named here."""
    compression_gzip_level: int = -1
    """The gzip level when `compression.type` is gzip."""
    compression_lz4_level: int = 9
    """The lz4 level when `compression.type` is lz4."""
    compression_zstd_level: int = 3
    """The zstd level when `compression.type` is zstd."""
    log_cleanup_policy: str = "delete"
    """What happens to old records: delete, compact, or both, comma-separated."""
    log_retention_ms: int | None = None
    """How long records are kept; -1: for ever. If not set, `log.retention.minutes` holds."""
    log_retention_minutes: int | None = None
    """How long records are kept. If not set, `log.retention.hours` holds."""
    log_retention_hours: int = 168
    """How long records are kept."""
    log_retention_bytes: int = -1
    """How large a partition may grow before its oldest segments are deleted; -1: without limit."""
    log_segment_bytes: int = 1073741824
    """The largest segment of a partition."""
    log_roll_ms: int | None = None
    """How old a segment may grow before a new one starts. If not set, `log.roll.hours` holds."""
    log_roll_hours: int = 168
    """How old a segment may grow before a new one starts."""
    log_segment_delete_delay_ms: int = 60000
    """How long the objects of deleted records are kept for readers that are still on them."""
    log_message_timestamp_type: str = "CreateTime"
    """Whose clock stamps records: the producer's (CreateTime) or the broker's (LogAppendTime)."""
    log_message_timestamp_before_max_ms: int = 9223372036854775807
    """How far a record's timestamp may lie before the broker's clock."""
    log_message_timestamp_after_max_ms: int = 3600000
    """How far a record's timestamp may lie after the broker's clock."""
    log_cleaner_delete_retention_ms: int = 86400000
    """How long compaction keeps tombstones and transaction markers."""
    log_cleaner_min_cleanable_ratio: float = 0.5
    """The share of a partition that must be new before compaction rewrites it."""
    log_cleaner_min_compaction_lag_ms: int = 0
    """How long a record is safe from compaction."""
    log_cleaner_max_compaction_lag_ms: int = 9223372036854775807
    """How long a record may escape compaction."""

    # Background work.

    log_retention_check_interval_ms: int = 300000
    """How often retention looks for records to delete."""
    log_cleaner_enable: bool = True
    """Whether compaction runs."""
    log_cleaner_backoff_ms: int = 15000
    """How long compaction waits when there was nothing to do."""
    log_cleaner_dedupe_buffer_size: int = 134217728
    """Memory for the keys of one compaction, in bytes."""
    log_cleaner_io_max_bytes_per_second: float = 1.7976931348623157e308
    """The most that compaction reads and writes in a second."""

    # The write-ahead log and its caches.

    durability: str = "os"
    """What an acknowledged write has reached: the operating system (os) or the disk itself (fsync)."""
    wal_segment_bytes: int = 67108864
    """The size at which a new write-ahead file starts; settling works on whole files."""
    wal_settle_interval_ms: int = 10000
    """How long records stay in the write-ahead log before they are settled into segments."""
    wal_settle_bytes: int = 67108864
    """How many unsettled bytes start a settling early: bounds what recovery has to read."""
    tail_cache_bytes: int = 67108864
    """Memory for the newest records of all partitions, from which most fetches are served."""
    segment_cache_bytes: int = 33554432
    """Memory for segment indexes and blocks read from a remote store."""

    # Connections and memory.

    max_connections: int = 10000
    """How many connections a broker accepts; more are closed at once."""
    max_connections_per_ip: int = 2147483647
    """How many connections a broker accepts from one address."""
    connections_max_idle_ms: int = 600000
    """How long a connection may be silent before it is closed."""
    socket_request_max_bytes: int = 104857600
    """The largest request frame."""
    socket_listen_backlog_size: int = 1024
    """How many connections may wait to be accepted."""
    socket_send_buffer_bytes: int = -1
    """SO_SNDBUF of client connections; -1: the operating system's choice."""
    socket_receive_buffer_bytes: int = -1
    """SO_RCVBUF of client connections; -1: the operating system's choice."""
    queued_max_requests: int = 500
    """How many requests of one connection may wait for their answers before it is read no further."""
    queued_max_request_bytes: int = 134217728
    """How many bytes of requests may be in memory before no connection is read any further."""
    shutdown_drain_ms: int = 10000
    """How long a stopping broker waits for requests under way."""

    # Fetch.

    fetch_max_bytes: int = 57671680
    """The most that one fetch is answered with, whatever it asks for."""
    max_incremental_fetch_session_cache_slots: int = 1000
    """How many fetch sessions are kept."""

    # Producers and transactions.

    producer_id_expiration_ms: int = 86400000
    """How long the sequence state of a silent producer is kept."""
    transaction_max_timeout_ms: int = 900000
    """The longest transaction time-out a producer may ask for."""
    transaction_state_log_num_partitions: int = 50
    """Partitions of `__transaction_state`; fixed once the topic exists."""
    transaction_state_log_replication_factor: int = 3
    """Length of the failover order of `__transaction_state`, as far as there are brokers."""
    transaction_state_log_segment_bytes: int = 104857600
    """Segment size of `__transaction_state`."""

    # Groups.

    group_initial_rebalance_delay_ms: int = 3000
    """How long a new group waits for more members before its first assignment."""
    group_min_session_timeout_ms: int = 6000
    """The shortest session time-out a classic member may ask for."""
    group_max_session_timeout_ms: int = 1800000
    """The longest session time-out a classic member may ask for."""
    group_max_size: int = 2147483647
    """How many members a classic group may have."""
    group_consumer_session_timeout_ms: int = 45000
    """Session time-out of the consumer protocol."""
    group_consumer_min_session_timeout_ms: int = 45000
    """The shortest session time-out that a group's own setting may choose."""
    group_consumer_max_session_timeout_ms: int = 60000
    """The longest session time-out that a group's own setting may choose."""
    group_consumer_heartbeat_interval_ms: int = 5000
    """How often members of the consumer protocol are asked to heartbeat."""
    group_consumer_min_heartbeat_interval_ms: int = 5000
    """The shortest heartbeat interval that a group's own setting may choose."""
    group_consumer_max_heartbeat_interval_ms: int = 15000
    """The longest heartbeat interval that a group's own setting may choose."""
    group_consumer_assignment_interval_ms: int = 1000
    """The shortest time between two assignments of one group of the consumer protocol."""
    group_consumer_min_assignment_interval_ms: int = 0
    """The shortest assignment interval that a group's own setting may choose."""
    group_consumer_max_assignment_interval_ms: int = 15000
    """The longest assignment interval that a group's own setting may choose."""
    group_consumer_max_size: int = 2147483647
    """How many members a group of the consumer protocol may have."""
    group_consumer_assignors: str = "uniform,range"
    """The server-side assignors offered; the first is the default."""
    group_consumer_migration_policy: str = "bidirectional"
    """Which way groups may move between the classic and the consumer protocol."""
    group_consumer_regex_refresh_interval_ms: int = 600000
    """How often regular expressions are matched again with the topics that exist."""
    offsets_topic_num_partitions: int = 50
    """Partitions of `__consumer_offsets`; fixed once the topic exists."""
    offsets_topic_replication_factor: int = 3
    """Length of the failover order of `__consumer_offsets`, as far as there are brokers."""
    offsets_topic_segment_bytes: int = 104857600
    """Segment size of `__consumer_offsets`."""
    offsets_retention_minutes: int = 10080
    """How long committed offsets of an empty group are kept."""
    offsets_retention_check_interval_ms: int = 600000
    """How often expired offsets are looked for."""
    offset_metadata_max_bytes: int = 4096
    """The longest text that may be committed with an offset."""

    # The cluster.

    broker_session_timeout_ms: int = 9000
    """How long a broker may be silent before the others fence it."""
    broker_heartbeat_interval_ms: int = 1000
    """How often a broker renews its lease."""
    auto_leader_rebalance_enable: bool = True
    """Whether leaders are spread evenly again when brokers come and go."""
    leader_imbalance_check_interval_seconds: int = 5
    """How often the spread of leaders is looked at."""
    metadata_poll_interval_ms: int = 0
    """How often the metadata log is looked at for new entries; 0: what suits the store."""
    metadata_snapshot_entries: int = 1000
    """How many entries the metadata log grows between snapshots."""

    given: Mapping[str, str] = {}
    """What was set and not left at its default, by name, as text: DescribeConfigs tells the difference."""

    def validate(self) -> None:
        """Raise SettingsError if settings that are each possible do not fit together."""
        for lower, upper in _ORDERED:
            if getattr(self, lower) > getattr(self, upper):
                raise SettingsError(
                    f"{_name(lower)} ({getattr(self, lower)}) must not be more than {_name(upper)} "
                    f"({getattr(self, upper)})."
                )
        if self.group_consumer_session_timeout_ms <= self.group_consumer_heartbeat_interval_ms:
            raise SettingsError(
                "group.consumer.session.timeout.ms must be more than group.consumer.heartbeat.interval.ms."
            )
        if self.broker_session_timeout_ms < 2 * self.broker_heartbeat_interval_ms:
            raise SettingsError(
                "broker.session.timeout.ms must be at least twice broker.heartbeat.interval.ms, or a broker "
                "is fenced for one late heartbeat."
            )
        if self.advertised_listeners:
            here = {listener.name for listener in parse_listeners(self.listeners)}
            for listener in parse_listeners(self.advertised_listeners):
                if listener.name not in here:
                    raise SettingsError(f"advertised.listeners names {listener.name}, which listeners lacks.")
        else:
            parse_listeners(self.listeners)

    def with_values(self, values: Mapping[str, str]) -> "Settings":
        """These settings with others laid over them, by name and as text. SettingsError if one is bad."""
        if not values:
            return self
        changes: dict[str, Any] = {}
        texts: dict[str, str] = {}
        for name, text in values.items():
            changes[name.replace(".", "_")], texts[name] = _parse(name, text)
        changed = msgspec.structs.replace(self, given={**self.given, **texts}, **changes)
        changed = msgspec.structs.replace(changed, **changed._moved_along())
        changed.validate()
        return changed

    def _moved_along(self) -> dict[str, int]:
        """Bounds that were not set, moved to where those that were set need them."""
        moved: dict[str, int] = {}
        for lower, upper in _ORDERED:
            low, high = moved.get(lower, getattr(self, lower)), moved.get(upper, getattr(self, upper))
            if low > high and _name(upper) not in self.given:
                moved[upper] = low
            elif low > high and _name(lower) not in self.given:
                moved[lower] = high
        if "broker.heartbeat.interval.ms" not in self.given:
            interval = min(self.broker_heartbeat_interval_ms, max(1, self.broker_session_timeout_ms // 3))
            moved["broker_heartbeat_interval_ms"] = interval
        return moved

    def at(self, image: ClusterImage) -> "Settings":
        """The settings in force: these with the broker's dynamic settings laid over them."""
        layers = (image.config(BROKER_CONFIG, ""), image.config(BROKER_CONFIG, str(self.broker_id)))
        changes: dict[str, Any] = {}
        for layer in layers:
            for name, text in layer.items():
                # Names that nobody defines can be set as well, with underscores where a field has them too.
                field = name.replace(".", "_")
                if field in _FIELDS and _name(field) == name:
                    changes[field] = _parse(name, text)[0]
        return msgspec.structs.replace(self, **changes) if changes else self


_FIELDS = frozenset(Settings.__struct_fields__) - {"given"}

_ORDERED = (
    ("log_cleaner_min_compaction_lag_ms", "log_cleaner_max_compaction_lag_ms"),
    ("group_min_session_timeout_ms", "group_max_session_timeout_ms"),
    ("group_consumer_min_session_timeout_ms", "group_consumer_session_timeout_ms"),
    ("group_consumer_session_timeout_ms", "group_consumer_max_session_timeout_ms"),
    ("group_consumer_min_heartbeat_interval_ms", "group_consumer_heartbeat_interval_ms"),
    ("group_consumer_heartbeat_interval_ms", "group_consumer_max_heartbeat_interval_ms"),
    ("group_consumer_min_assignment_interval_ms", "group_consumer_assignment_interval_ms"),
    ("group_consumer_assignment_interval_ms", "group_consumer_max_assignment_interval_ms"),
    ("socket_request_max_bytes", "queued_max_request_bytes"),
)
"""Pairs of which the first must not be more than the second. One that is set moves the other along if that
one is not, so that nobody has to set a bound only to set what it bounds."""


def load(assignments: Iterable[str] = (), *, toml: bytes | None = None) -> Settings:
    """Settings from the contents of a TOML file and from NAME=VALUE texts, the later ones winning."""
    values: dict[str, str] = {}
    if toml is not None:
        values |= toml_values(toml)
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise SettingsError(f"--set takes NAME=VALUE, not {assignment!r}.")
        values[name.strip()] = text.strip()
    return Settings().with_values(values)


def toml_values(toml: bytes) -> dict[str, str]:
    """The settings in a TOML document, by name. Tables and dotted names are the same thing there."""
    import tomllib

    try:
        document = tomllib.loads(toml.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"The configuration file is not TOML: {error}.") from error
    values: dict[str, str] = {}
    _flatten("", document, values)
    return values


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """Listeners from NAME://HOST:PORT, comma-separated. An IPv6 address stands in brackets."""
    listeners = []
    for part in text.split(","):
        name, _, address = part.strip().partition("://")
        host, colon, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not (name and colon and port.isascii() and port.isdigit() and int(port) < 65536):
            raise SettingsError(f"A listener is NAME://HOST:PORT, not {part.strip()!r}.")
        listeners.append(Listener(name.upper(), host, int(port)))
    if len({listener.name for listener in listeners}) != len(listeners):
        raise SettingsError("Two listeners have the same name.")
    return tuple(listeners)


def documentation() -> dict[str, str]:
    """What each setting means, by name: the docstrings of the fields above."""
    import ast
    import linecache

    docs: dict[str, str] = {}
    for node in ast.parse("".join(linecache.getlines(__file__, globals()))).body:
        if isinstance(node, ast.ClassDef) and node.name == "Settings":
            for field, text in zip(node.body, node.body[1:], strict=False):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and isinstance(text, ast.Expr)
                    and isinstance(text.value, ast.Constant)
                ):
                    docs[_name(field.target.id)] = str(text.value.value)
    return docs


def _name(field: str) -> str:
    return field.replace("_", ".")


def _parse(name: str, text: str) -> tuple[Any, str]:
    """The typed value of a setting and its one spelling."""
    from penstock.metadata.broker_configs import BROKER_DEFINITIONS
    from penstock.metadata.definitions import ValueProblem, value_text

    definition = BROKER_DEFINITIONS.get(name)
    if definition is None or name.replace(".", "_") not in _FIELDS:
        raise SettingsError(_unknown(name, definition.moot or definition.fixed if definition else ""))
    try:
        value = definition.parse(text)
    except ValueProblem as problem:
        raise SettingsError(f"{str(problem).rstrip('.')}.") from None
    spelled = value_text(value)
    return (spelled if isinstance(value, tuple) else value), spelled


def _unknown(name: str, reason: str) -> str:
    if reason:
        return f"{name} has no meaning here. {reason}"
    if name in _NOT_HERE:
        return f"{name} is not a setting; here it is {_NOT_HERE[name]}."
    import difflib

    close = difflib.get_close_matches(name, [_name(field) for field in _FIELDS], 1, 0.6)
    return f"{name} is not a setting; did you mean {close[0]}?" if close else f"{name} is not a setting."


def _flatten(prefix: str, table: Mapping[str, Any], values: dict[str, str]) -> None:
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            _flatten(f"{name}.", value, values)
        elif isinstance(value, bool):
            values[name] = "true" if value else "false"
        elif isinstance(value, list):
            values[name] = ",".join(str(part) for part in value)
        else:
            values[name] = str(value)
