"""The settings of brokers: Kafka's names where Kafka has the setting, ours where it has none.

`settings.Settings` holds the same names with the same defaults, typed and documented; a test keeps the two
in step. Those at the end only give the default of a topic setting that has no meaning here: they cannot be
set when a broker starts, but tools may set them while it runs, as they may on a topic.
"""

from penstock.metadata.definitions import (
    LONG_MAX,
    Check,
    Definition,
    Kind,
    at_least,
    between,
    between_or,
    list_of,
    one_of,
    one_of_any_case,
)
from penstock.metadata.topic_configs import CODECS, TOPIC_DEFINITIONS

BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST = (
    Kind.BOOLEAN,
    Kind.STRING,
    Kind.INT,
    Kind.SHORT,
    Kind.LONG,
    Kind.DOUBLE,
    Kind.LIST,
)


def _broker(
    name: str,
    kind: Kind,
    default: str | None,
    check: Check | None = None,
    *,
    dynamic: bool = False,
    internal: bool = False,
    like: str = "",
) -> Definition:
    """`like`: the moot or fixed topic setting that this one is the default of."""
    topic = TOPIC_DEFINITIONS.get(like)
    return Definition(
        name=name,
        kind=kind,
        default=default,
        doc=f"The default of {like} for topics." if like else "",
        check=check,
        dynamic=dynamic,
        internal=internal,
        moot=topic.moot if topic else "",
        fixed=topic.fixed.replace(like, name) if topic else "",
    )


def _throttle(name: str, like: str) -> Definition:
    return _broker(name, LONG, str(LONG_MAX), at_least(0), dynamic=True, internal=True, like=like)


_DEFINITIONS = (
    _broker("broker.id", INT, "1", at_least(0)),
    _broker("listeners", LIST, "PLAINTEXT://127.0.0.1:9092"),
    _broker("advertised.listeners", LIST, None),
    _broker("broker.rack", STRING, None),
    _broker("store", STRING, "./penstock-data"),
    _broker("store.network.enable", BOOLEAN, "false"),
    _broker("metadata", STRING, ""),
    _broker("auto.create.topics.enable", BOOLEAN, "true"),
    _broker("num.partitions", INT, "1", at_least(1)),
    _broker("default.replication.factor", INT, "1", at_least(1)),
    _broker("delete.topic.enable", BOOLEAN, "true"),
    _broker("message.max.bytes", INT, "1048588", at_least(0), dynamic=True),
    _broker("compression.type", STRING, "producer", one_of(*CODECS), dynamic=True),
    _broker("compression.gzip.level", INT, "-1", between_or(1, 9, -1), dynamic=True),
    _broker("compression.lz4.level", INT, "9", between(1, 17), dynamic=True),
    _broker("compression.zstd.level", INT, "3", between(-131072, 22), dynamic=True),
    _broker("log.cleanup.policy", LIST, "delete", list_of("compact", "delete"), dynamic=True),
    _broker("log.retention.ms", LONG, None, at_least(-1), dynamic=True),
    _broker("log.retention.minutes", INT, None, at_least(-1)),
    _broker("log.retention.hours", INT, "168", at_least(-1)),
    _broker("log.retention.bytes", LONG, "-1", dynamic=True),
    _broker("log.segment.bytes", INT, "1073741824", at_least(1048576), dynamic=True),
    _broker("log.roll.ms", LONG, None, at_least(1), dynamic=True),
    _broker("log.roll.hours", INT, "168", at_least(1)),
    _broker("log.segment.delete.delay.ms", LONG, "60000", at_least(0), dynamic=True),
    _broker(
        "log.message.timestamp.type",
        STRING,
        "CreateTime",
        one_of("CreateTime", "LogAppendTime"),
        dynamic=True,
    ),
    _broker("log.message.timestamp.before.max.ms", LONG, "9223372036854775807", at_least(0), dynamic=True),
    _broker("log.message.timestamp.after.max.ms", LONG, "3600000", at_least(0), dynamic=True),
    _broker("log.cleaner.delete.retention.ms", LONG, "86400000", at_least(0), dynamic=True),
    _broker("log.cleaner.min.cleanable.ratio", DOUBLE, "0.5", between(0, 1), dynamic=True),
    _broker("log.cleaner.min.compaction.lag.ms", LONG, "0", at_least(0), dynamic=True),
    _broker("log.cleaner.max.compaction.lag.ms", LONG, "9223372036854775807", at_least(1), dynamic=True),
    _broker("log.retention.check.interval.ms", LONG, "300000", at_least(1)),
    _broker("log.cleaner.enable", BOOLEAN, "true"),
    _broker("log.cleaner.backoff.ms", LONG, "15000", at_least(0), dynamic=True),
    _broker("log.cleaner.dedupe.buffer.size", LONG, "134217728", at_least(1048576), dynamic=True),
    _broker(
        "log.cleaner.io.max.bytes.per.second", DOUBLE, "1.7976931348623157E308", at_least(0), dynamic=True
    ),
    _broker("durability", STRING, "os", one_of("os", "fsync")),
    _broker("wal.segment.bytes", LONG, "67108864", at_least(1048576)),
    _broker("wal.settle.interval.ms", LONG, "10000", at_least(1)),
    _broker("wal.settle.bytes", LONG, "67108864", at_least(1048576)),
    _broker("tail.cache.bytes", LONG, "67108864", at_least(0)),
    _broker("segment.cache.bytes", LONG, "33554432", at_least(0)),
    _broker("max.connections", INT, "10000", at_least(0), dynamic=True),
    _broker("max.connections.per.ip", INT, "2147483647", at_least(0), dynamic=True),
    _broker("connections.max.idle.ms", LONG, "600000", at_least(1)),
    _broker("socket.request.max.bytes", INT, "104857600", at_least(1)),
    _broker("socket.listen.backlog.size", INT, "1024", at_least(1)),
    _broker("socket.send.buffer.bytes", INT, "-1"),
    _broker("socket.receive.buffer.bytes", INT, "-1"),
    _broker("queued.max.requests", INT, "500", at_least(1)),
    _broker("queued.max.request.bytes", LONG, "134217728", at_least(1048576)),
    _broker("shutdown.drain.ms", LONG, "10000", at_least(0)),
    _broker("fetch.max.bytes", INT, "57671680", at_least(1024)),
    _broker("max.incremental.fetch.session.cache.slots", INT, "1000", at_least(0)),
    _broker("producer.id.expiration.ms", INT, "86400000", at_least(1), dynamic=True),
    _broker("transaction.max.timeout.ms", INT, "900000", at_least(1)),
    _broker("transaction.state.log.num.partitions", INT, "50", at_least(1)),
    _broker("transaction.state.log.replication.factor", SHORT, "3", at_least(1)),
    _broker("transaction.state.log.segment.bytes", INT, "104857600", at_least(1)),
    _broker("group.initial.rebalance.delay.ms", INT, "3000", at_least(0)),
    _broker("group.min.session.timeout.ms", INT, "6000", at_least(1)),
    _broker("group.max.session.timeout.ms", INT, "1800000", at_least(1)),
    _broker("group.max.size", INT, "2147483647", at_least(1)),
    _broker("group.consumer.session.timeout.ms", INT, "45000", at_least(1)),
    _broker("group.consumer.min.session.timeout.ms", INT, "45000", at_least(1)),
    _broker("group.consumer.max.session.timeout.ms", INT, "60000", at_least(1)),
    _broker("group.consumer.heartbeat.interval.ms", INT, "5000", at_least(1)),
    _broker("group.consumer.min.heartbeat.interval.ms", INT, "5000", at_least(1)),
    _broker("group.consumer.max.heartbeat.interval.ms", INT, "15000", at_least(1)),
    _broker("group.consumer.assignment.interval.ms", INT, "1000", at_least(0)),
    _broker("group.consumer.min.assignment.interval.ms", INT, "0", at_least(0)),
    _broker("group.consumer.max.assignment.interval.ms", INT, "15000", at_least(0)),
    _broker("group.consumer.max.size", INT, "2147483647", at_least(1)),
    _broker("group.consumer.assignors", LIST, "uniform,range", list_of("uniform", "range", empty=False)),
    _broker(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        one_of_any_case("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"),
    ),
    _broker("group.consumer.regex.refresh.interval.ms", INT, "600000", at_least(10000), internal=True),
    _broker("offsets.topic.num.partitions", INT, "50", at_least(1)),
    _broker("offsets.topic.replication.factor", SHORT, "3", at_least(1)),
    _broker("offsets.topic.segment.bytes", INT, "104857600", at_least(1)),
    _broker("offsets.retention.minutes", INT, "10080", at_least(1)),
    _broker("offsets.retention.check.interval.ms", LONG, "600000", at_least(1)),
    _broker("offset.metadata.max.bytes", INT, "4096", at_least(0)),
    _broker("broker.session.timeout.ms", INT, "9000", at_least(1)),
    _broker("broker.heartbeat.interval.ms", INT, "1000", at_least(1)),
    _broker("auto.leader.rebalance.enable", BOOLEAN, "true"),
    _broker("leader.imbalance.check.interval.seconds", LONG, "5", at_least(1)),
    _broker("metadata.poll.interval.ms", LONG, "0", at_least(0)),
    _broker("metadata.snapshot.entries", LONG, "1000", at_least(1)),
    # These only give the default of topic settings without a meaning here.
    _broker(
        "log.flush.interval.messages",
        LONG,
        "9223372036854775807",
        at_least(1),
        dynamic=True,
        like="flush.messages",
    ),
    _broker("log.flush.interval.ms", LONG, None, dynamic=True, like="flush.ms"),
    _broker("log.flush.scheduler.interval.ms", LONG, "9223372036854775807", like="flush.ms"),
    _broker("log.index.interval.bytes", INT, "4096", at_least(0), dynamic=True, like="index.interval.bytes"),
    _broker(
        "log.index.size.max.bytes", INT, "10485760", at_least(4), dynamic=True, like="segment.index.bytes"
    ),
    _broker(
        "log.local.retention.bytes", LONG, "-2", at_least(-2), dynamic=True, like="local.retention.bytes"
    ),
    _broker("log.local.retention.ms", LONG, "-2", at_least(-2), dynamic=True, like="local.retention.ms"),
    _broker("log.preallocate", BOOLEAN, "false", dynamic=True, like="preallocate"),
    _broker("log.roll.jitter.ms", LONG, None, dynamic=True, like="segment.jitter.ms"),
    _broker("log.roll.jitter.hours", INT, "0", at_least(0), like="segment.jitter.ms"),
    _broker("min.insync.replicas", INT, "1", at_least(1), dynamic=True, like="min.insync.replicas"),
    _broker(
        "unclean.leader.election.enable",
        BOOLEAN,
        "false",
        dynamic=True,
        like="unclean.leader.election.enable",
    ),
    # Set by tools that move partitions, and by nobody else.
    _throttle("follower.replication.throttled.rate", "follower.replication.throttled.replicas"),
    _throttle("leader.replication.throttled.rate", "leader.replication.throttled.replicas"),
    _throttle("replica.alter.log.dirs.io.max.bytes.per.second", "leader.replication.throttled.replicas"),
)

BROKER_DEFINITIONS: dict[str, Definition] = {definition.name: definition for definition in _DEFINITIONS}

_IN_OTHER_UNITS = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)

BROKER_SYNONYMS: dict[str, tuple[str, ...]] = {name: group for group in _IN_OTHER_UNITS for name in group}
"""Settings that say the same thing in other units: the first one that is set holds."""
BROKER_SYNONYMS["log.flush.interval.ms"] = ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")
