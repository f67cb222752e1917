"""Kafka 4.3's topic settings: names, types, defaults, values, and what each means here.

`TopicConfig` has those with an effect, each as an attribute and a row of the table. Those without one follow
below it: moot ones are accepted and shown, and the text says why nothing depends on them; fixed ones cannot
be changed from their default. A row ends with the broker settings that give its default.
"""

import msgspec

from penstock.settings.checks import (
    THROTTLED_REPLICAS,
    Check,
    at_least,
    between,
    between_or,
    list_of,
    one_of,
)
from penstock.settings.setting import LONG_MAX, Kind, Rows, Setting, by_name

BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = (
    Kind.BOOLEAN,
    Kind.STRING,
    Kind.INT,
    Kind.LONG,
    Kind.DOUBLE,
    Kind.LIST,
)

_NO_REPLICATION = "Brokers do not copy records to each other: they share one store."
_INDEXED = "Every batch is indexed when records are settled into segments."
_ONE_TIER = "All records are in the shared store; there is no second tier."
_DURABILITY = "The broker's durability setting says what an acknowledged record has reached, for all topics."

SEGMENT_BYTES_MIN = 1_048_576
"""Kafka's, from version 4 on."""

row = Rows("topic", "cluster-wide")


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one topic in force, typed. The defaults are Kafka's."""

    cleanup_policy: str = row(
        LIST,
        "delete",
        "What happens to old records: delete (by age and size), compact (keep the last value of each key), "
        "both, or neither.",
        list_of("compact", "delete"),
        "log.cleanup.policy",
    )
    compression_type: str = row(
        STRING,
        "producer",
        "The codec in which batches are stored; producer stores them as they were sent.",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "compression.type",
    )
    compression_gzip_level: int = row(
        INT,
        -1,
        "The level used if compression.type is gzip.",
        between_or(1, 9, -1),
        "compression.gzip.level",
    )
    compression_lz4_level: int = row(
        INT, 9, "The level used if compression.type is lz4.", between(1, 17), "compression.lz4.level"
    )
    compression_zstd_level: int = row(
        INT, 3, "The level used if compression.type is zstd.", between(-131072, 22), "compression.zstd.level"
    )
    delete_retention_ms: int = row(
        LONG,
        86400000,
        "How long compaction keeps tombstones and transaction markers.",
        at_least(0),
        "log.cleaner.delete.retention.ms",
    )
    file_delete_delay_ms: int = row(
        LONG,
        60000,
        "How long objects of deleted records are kept for readers that are still on them.",
        at_least(0),
        "log.segment.delete.delay.ms",
    )
    max_compaction_lag_ms: int = row(
        LONG,
        LONG_MAX,
        "How long a record may escape compaction.",
        at_least(1),
        "log.cleaner.max.compaction.lag.ms",
    )
    max_message_bytes: int = row(
        INT, 1048588, "The largest record batch accepted.", at_least(0), "message.max.bytes"
    )
    message_timestamp_after_max_ms: int = row(
        LONG,
        3600000,
        "How far a record's timestamp may lie after the broker's clock.",
        at_least(0),
        "log.message.timestamp.after.max.ms",
    )
    message_timestamp_before_max_ms: int = row(
        LONG,
        LONG_MAX,
        "How far a record's timestamp may lie before the broker's clock.",
        at_least(0),
        "log.message.timestamp.before.max.ms",
    )
    message_timestamp_type: str = row(
        STRING,
        "CreateTime",
        "Whose clock stamps records: the producer's (CreateTime) or the broker's (LogAppendTime).",
        one_of("CreateTime", "LogAppendTime"),
        "log.message.timestamp.type",
    )
    min_cleanable_dirty_ratio: float = row(
        DOUBLE,
        0.5,
        "The share of a partition that must be new before compaction rewrites it.",
        between(0, 1),
        "log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms: int = row(
        LONG,
        0,
        "How long a record is safe from compaction.",
        at_least(0),
        "log.cleaner.min.compaction.lag.ms",
    )
    retention_bytes: int = row(
        LONG,
        -1,
        "How large a partition may grow before its oldest records are deleted; -1: without limit.",
        None,
        "log.retention.bytes",
    )
    retention_ms: int = row(
        LONG,
        604800000,
        "How long records are kept; -1: for ever.",
        at_least(-1),
        "log.retention.ms",
        "log.retention.minutes",
        "log.retention.hours",
    )
    segment_bytes: int = row(
        INT,
        1073741824,
        "The largest segment of a partition; retention and compaction work on whole segments.",
        at_least(SEGMENT_BYTES_MIN),
        "log.segment.bytes",
    )
    segment_ms: int = row(
        LONG,
        604800000,
        "The longest time that one segment spans.",
        at_least(1),
        "log.roll.ms",
        "log.roll.hours",
    )

    @property
    def delete(self) -> bool:
        return "delete" in self.cleanup_policy.split(",")

    @property
    def compact(self) -> bool:
        return "compact" in self.cleanup_policy.split(",")

    @property
    def log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"


def _moot(
    name: str, kind: Kind, default: str, doc: str, check: Check | None, why: str, *synonyms: str
) -> Setting:
    return Setting(
        name=name,
        kind=kind,
        default=default,
        doc=doc,
        check=check,
        scope="topic",
        update="cluster-wide",
        synonyms=synonyms,
        moot=why,
    )


_WITHOUT_EFFECT = (
    _moot(
        "flush.messages",
        LONG,
        str(LONG_MAX),
        "How many records may be written before they are forced to disk.",
        at_least(1),
        _DURABILITY,
        "log.flush.interval.messages",
    ),
    _moot(
        "flush.ms",
        LONG,
        str(LONG_MAX),
        "How long records may wait before they are forced to disk.",
        at_least(0),
        _DURABILITY,
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
    ),
    _moot(
        "follower.replication.throttled.replicas",
        LIST,
        "",
        "The replicas whose copying is throttled where they follow.",
        THROTTLED_REPLICAS,
        _NO_REPLICATION,
    ),
    _moot(
        "index.interval.bytes",
        INT,
        "4096",
        "How many bytes lie between two entries of the offset index.",
        at_least(0),
        _INDEXED,
        "log.index.interval.bytes",
    ),
    _moot(
        "leader.replication.throttled.replicas",
        LIST,
        "",
        "The replicas whose copying is throttled where they lead.",
        THROTTLED_REPLICAS,
        _NO_REPLICATION,
    ),
    _moot(
        "local.retention.bytes",
        LONG,
        "-2",
        "How much of a partition a broker keeps itself once it is in remote storage.",
        at_least(-2),
        _ONE_TIER,
        "log.local.retention.bytes",
    ),
    _moot(
        "local.retention.ms",
        LONG,
        "-2",
        "How long a broker keeps records itself once they are in remote storage.",
        at_least(-2),
        _ONE_TIER,
        "log.local.retention.ms",
    ),
    _moot(
        "min.insync.replicas",
        INT,
        "1",
        "How many replicas must have a record before it is acknowledged with acks=all.",
        at_least(1),
        "Every acknowledged record is in the shared store, however many brokers are alive.",
        "min.insync.replicas",
    ),
    _moot(
        "remote.log.copy.disable",
        BOOLEAN,
        "false",
        "Whether copying to remote storage stops.",
        None,
        _ONE_TIER,
    ),
    _moot(
        "remote.log.delete.on.disable",
        BOOLEAN,
        "false",
        "Whether records in remote storage are deleted when it is switched off.",
        None,
        _ONE_TIER,
    ),
    _moot(
        "segment.index.bytes",
        INT,
        "10485760",
        "The largest index of a segment.",
        at_least(4),
        _INDEXED,
        "log.index.size.max.bytes",
    ),
    _moot(
        "segment.jitter.ms",
        LONG,
        "0",
        "By how much the rolling of segments is spread over time.",
        at_least(0),
        "Records of all partitions are settled together, so there is no burst to spread.",
        "log.roll.jitter.ms",
        "log.roll.jitter.hours",
    ),
    _moot(
        "unclean.leader.election.enable",
        BOOLEAN,
        "false",
        "Whether a replica that lacks records may become leader.",
        None,
        "Every broker sees every acknowledged record, so there is no unclean election to allow.",
        "unclean.leader.election.enable",
    ),
    Setting(
        name="preallocate",
        kind=BOOLEAN,
        default="false",
        doc="Whether segment files are allocated before they are written.",
        scope="topic",
        update="cluster-wide",
        synonyms=("log.preallocate",),
        fixed="preallocate cannot be true: segments are written whole, with nothing to allocate before.",
    ),
    Setting(
        name="remote.storage.enable",
        kind=BOOLEAN,
        default="false",
        doc="Whether the topic uses tiered storage.",
        scope="topic",
        update="cluster-wide",
        fixed="Tiered Storage functionality is disabled in the broker. Topic cannot be configured with "
        "remote log storage.",
    ),
)

SEGMENT_BYTES_FOR_TESTS = Setting(
    name="internal.segment.bytes",
    kind=INT,
    default=None,
    doc="The largest segment, without the lower bound of segment.bytes: for tests.",
    check=at_least(1),
    scope="topic",
    update="cluster-wide",
    internal=True,
)
"""Stands in for segment.bytes where it is set."""

TOPIC_SETTINGS: dict[str, Setting] = {
    **row.named(TopicConfig),
    **by_name(_WITHOUT_EFFECT),
    **by_name((SEGMENT_BYTES_FOR_TESTS,)),
}
