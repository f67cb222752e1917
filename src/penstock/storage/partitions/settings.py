"""The bounds of the ledger."""

import sys

import msgspec


class LedgerSettings(msgspec.Struct, frozen=True, kw_only=True):
    flush_bytes_max: int = 16 * 1024 * 1024
    """Batches beyond this wait for the next flush, so that one flush does not hold up the loop for long."""
    flush_batches_max: int = 10_000
    """The same by number; a kind of write-ahead log may take fewer."""
    tail_cache_bytes: int = 64 * 1024 * 1024
    index_cache_bytes: int = 32 * 1024 * 1024
    """Memory for the indexes of segments and, on a distant store, for blocks of them."""
    settle_bytes: int = 64 * 1024 * 1024
    """Unsettled bytes that start a settling: bounds what recovery has to look through."""
    settle_extents: int = 100_000
    """Unsettled extents that start a settling: bounds the memory of their index."""
    settle_interval_ms: int = 10_000
    """How long records may stay unsettled; they are settled earlier than bounds require only then."""
    merge_bytes_max: int = 64 * 1024 * 1024
    """Segments are merged into ones of at most this, or segment.bytes if that is less."""
    merge_count: int = 8
    """So many neighbouring segments of about one size are merged into one."""
    retention_check_interval_ms: int = 300_000
    delete_delay_ms: int = 60_000
    """How long objects outlive the last reference to them, for readers that are still on them."""


class CleanerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of compaction. They may change while the ledger is open."""

    enable: bool = True
    """log.cleaner.enable; only looked at when the ledger opens."""
    backoff_ms: int = 15_000
    """log.cleaner.backoff.ms: the pause after a round that found nothing to clean."""
    dedupe_buffer_bytes: int = 128 * 1024 * 1024
    """log.cleaner.dedupe.buffer.size: memory for the keys of one pass over one partition."""
    io_bytes_per_second: float = sys.float_info.max
    """log.cleaner.io.max.bytes.per.second, reads and writes together."""


DEFAULT_CLEANER_SETTINGS = CleanerSettings()
