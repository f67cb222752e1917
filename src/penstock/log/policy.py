"""The settings that the log of one partition obeys, typed: those of its topic, and some of the cluster."""

import msgspec

UNLIMITED = -1


class LogPolicy(msgspec.Struct, frozen=True):
    retention_ms: int = 7 * 24 * 3600 * 1000
    """retention.ms; -1: for ever."""
    retention_bytes: int = UNLIMITED
    """retention.bytes; -1: without limit."""
    segment_bytes: int = 1 << 30
    """segment.bytes: no segment grows beyond it, and retention removes records in pieces of at most this."""
    segment_ms: int = 7 * 24 * 3600 * 1000
    """segment.ms: no segment spans more time than this."""
    delete: bool = True
    """cleanup.policy names delete."""
    compact: bool = False
    """cleanup.policy names compact."""
    min_cleanable_ratio: float = 0.5
    """min.cleanable.dirty.ratio: the share of a partition that must be dirty before it is compacted."""
    min_compaction_lag_ms: int = 0
    """min.compaction.lag.ms: for how long compaction leaves a record alone."""
    max_compaction_lag_ms: int = 2**63 - 1
    """max.compaction.lag.ms: for how long a record may escape compaction."""
    delete_retention_ms: int = 24 * 3600 * 1000
    """delete.retention.ms: how long tombstones and transaction markers stay once compaction has met them."""
    log_append_time: bool = False
    """message.timestamp.type is LogAppendTime."""
    file_delete_delay_ms: int = 60_000
    """file.delete.delay.ms: how long objects outlive the last reference to them."""
    producer_expiration_ms: int = 24 * 3600 * 1000
    """producer.id.expiration.ms: how long the state of a silent producer is kept."""


DEFAULT_POLICY = LogPolicy()
