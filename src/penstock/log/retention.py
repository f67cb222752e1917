"""Retention: from which offset on a partition's records are kept.

As in Kafka, whole segments go, oldest first. By time, a segment goes when its newest record is older than
retention.ms. By size, it goes as long as the rest is still at least retention.bytes. Records that are not
settled yet are judged in pieces of at most segment.bytes. Records below the log start are gone already. They
do not count, even if their bytes are still stored.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.log.extents import Extents
from penstock.log.manifest import SegmentRef
from penstock.log.policy import UNLIMITED, LogPolicy


class Chunk(NamedTuple):
    """A stretch of records that goes or stays as one."""

    end_offset: int
    size_bytes: int
    max_timestamp: int


def chunks(
    segments: Iterable[SegmentRef], unsettled: Extents, log_start: int, segment_bytes: int
) -> Iterator[Chunk]:
    """The partition's records from the log start on, oldest first."""
    for segment in segments:
        if segment.end_offset > log_start:
            time = segment.max_timestamp if segment.max_timestamp >= 0 else segment.settled_ms
            yield Chunk(segment.end_offset, segment.size_bytes, time)
    size = 0
    newest = -1
    for at in range(unsettled.find(log_start), len(unsettled)):
        size += unsettled.lengths[at]
        newest = max(newest, unsettled.max_timestamps[at])
        if size >= segment_bytes or at + 1 == len(unsettled):
            yield Chunk(unsettled.last_offsets[at] + 1, size, newest)
            size, newest = 0, -1


def bytes_from(segments: Sequence[SegmentRef], unsettled: Extents, log_start: int) -> int:
    """The bytes of all `chunks`."""
    first = bisect_right(segments, log_start, key=lambda segment: segment.end_offset)
    settled = sum(segment.size_bytes for segment in segments[first:])
    return settled + sum(unsettled.lengths[unsettled.find(log_start) :])


def kept_from(
    oldest_first: Iterable[Chunk], total_bytes: int, log_start: int, policy: LogPolicy, now_ms: int
) -> int:
    """The log start after retention: `log_start` if nothing goes. `total_bytes` is that of all chunks; they
    are looked at only as far as they go."""
    if not policy.delete:
        return log_start
    excess = total_bytes - policy.retention_bytes if policy.retention_bytes != UNLIMITED else -1
    for chunk in oldest_first:
        too_old = (
            policy.retention_ms != UNLIMITED
            and chunk.max_timestamp >= 0
            and now_ms - chunk.max_timestamp > policy.retention_ms
        )
        if not too_old and chunk.size_bytes > excess:
            break
        log_start = chunk.end_offset
        excess -= chunk.size_bytes
    return log_start
