"""Key compaction: which partitions are due, and how far each may be cleaned.

Compaction keeps the last record of each key. As in Kafka (LogCleanerManager), a partition's log has three
parts, here always in whole segments:

    clean    below `compacted_end`: compaction has been here, at most one record of each key is left
    dirty    the records that came since
    active   the newest part, which is left alone

The active part. Kafka does not clean the segment that it is writing. Here records lie in a write-ahead log
and are settled into closed segments every few seconds, so Penstock makes the same promise in another way. The
active part is all records that are not settled yet, and the longest stretch before them that is smaller than
segment.bytes and whose oldest record is younger than segment.ms. A consumer that is behind by less than that
sees every record. There are two differences from Kafka. Time alone closes a segment: no further record has to
be written. And the active part is never larger than the largest segment that settling makes, even if
segment.bytes is larger. As in Kafka, max.compaction.lag.ms shortens segment.ms.

Compaction also leaves alone the records younger than min.compaction.lag.ms, and those at or after the last
stable offset: their transactions may still be aborted.

When. A partition is due when its dirty part is more than min.cleanable.dirty.ratio of the clean and dirty
parts together, or when a dirty record is older than max.compaction.lag.ms.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.log.manifest import Manifest, SegmentRef
from penstock.log.markers import AbortedTransaction
from penstock.log.policy import LogPolicy


class Dirt(NamedTuple):
    """A partition's segments by number: clean from `start`, dirty from `dirty`, left alone from `end`."""

    start: int
    dirty: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool
    """A dirty record has escaped compaction for longer than max.compaction.lag.ms."""

    @property
    def ratio(self) -> float:
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes) if self.dirty_bytes else 0.0

    def is_due(self, policy: LogPolicy) -> bool:
        if not self.dirty_bytes:
            return False
        return self.overdue or self.ratio > policy.min_cleanable_ratio


def first_dirty(segments: Sequence[SegmentRef], compacted_end: int) -> int:
    """The number of the first segment with records that compaction has not seen."""
    for at, segment in enumerate(segments):
        if segment.end_offset > compacted_end:
            return at
    return len(segments)


def assess(
    manifest: Manifest,
    *,
    log_start: int,
    stable_offset: int,
    unsettled_bytes: int,
    policy: LogPolicy,
    active_bytes_max: int,
    now_ms: int,
) -> Dirt:
    """How dirty a partition is."""
    segments = manifest.segments
    start = first_dirty(segments, log_start)
    dirty = max(start, first_dirty(segments, manifest.compacted_end))
    roll_bytes = min(policy.segment_bytes, active_bytes_max)
    roll_ms = min(policy.segment_ms, policy.max_compaction_lag_ms)
    end = _first_active(segments, unsettled_bytes, roll_bytes, now_ms - roll_ms)
    for at in range(dirty, end):
        segment = segments[at]
        lagging = policy.min_compaction_lag_ms > 0 and newest(segment) > now_ms - policy.min_compaction_lag_ms
        if lagging or segment.end_offset > stable_offset:
            end = at
            break
    end = max(end, dirty)
    cleanable = segments[dirty:end]
    oldest_dirty = min(map(oldest, cleanable), default=now_ms)
    return Dirt(
        start,
        dirty,
        end,
        sum(segment.size_bytes for segment in segments[start:dirty]),
        sum(segment.size_bytes for segment in cleanable),
        oldest_dirty < now_ms - policy.max_compaction_lag_ms,
    )


def _first_active(
    segments: Sequence[SegmentRef], unsettled_bytes: int, roll_bytes: int, rolled_before_ms: int
) -> int:
    size = unsettled_bytes
    for at in range(len(segments) - 1, -1, -1):
        size += segments[at].size_bytes
        if size >= roll_bytes or oldest(segments[at]) <= rolled_before_ms:
            return at + 1
    return 0


def oldest(segment: SegmentRef) -> int:
    """About when the first of its records was written: as it says, but not after the segment was."""
    return (
        min(segment.min_timestamp, segment.settled_ms) if segment.min_timestamp >= 0 else segment.settled_ms
    )


def newest(segment: SegmentRef) -> int:
    return segment.max_timestamp if segment.max_timestamp >= 0 else segment.settled_ms


class Replacement(NamedTuple):
    """Segments that neighbour each other, and what compaction made of them: often fewer, perhaps none."""

    sources: tuple[SegmentRef, ...]
    segments: tuple[SegmentRef, ...]
    compacted_end: int | None = None
    """Everything below it is clean."""
    forgotten: tuple[AbortedTransaction, ...] = ()
    """Aborted transactions of which no record is left."""


def replaced(manifest: Manifest, replacements: Sequence[Replacement]) -> Manifest | None:
    """The manifest once replacements are laid over it; None if it has changed where they lie."""
    segments = list(manifest.segments)
    compacted_end = manifest.compacted_end
    forgotten: set[AbortedTransaction] = set()
    for replacement in replacements:
        sources = replacement.sources
        if sources:
            if sources[0] not in segments:
                return None
            at = segments.index(sources[0])
            if tuple(segments[at : at + len(sources)]) != sources:
                return None
            segments[at : at + len(sources)] = replacement.segments
        if replacement.compacted_end is not None:
            compacted_end = max(compacted_end, replacement.compacted_end)
        forgotten.update(replacement.forgotten)
    return msgspec.structs.replace(
        manifest,
        segments=tuple(segments),
        aborted=tuple(one for one in manifest.aborted if one not in forgotten),
        compacted_end=compacted_end,
    )
