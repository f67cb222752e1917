"""The changes of settling and retention to one partition: values in, changes out.

The state of a partition is taken between two flushes. Its records beyond the manifest become known as these
flushes turn durable. Then the job begins, which fixes the manifest end from which on records are copied.
During the copy other changes may be laid over the manifest that leave its end where it is (merging,
retention, compaction), and the new segments fit behind those too. If its end moved, an earlier settling that
was in doubt came true. Then the copies do not fit, and the records are settled the next time.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from penstock.log.epochs import EpochStart, without_below
from penstock.log.extents import Extents
from penstock.log.manifest import Manifest, without_hurt_below
from penstock.log.markers import AbortedTransaction
from penstock.log.producers import ProducerEntry
from penstock.log.retention import bytes_from, chunks, kept_from
from penstock.metadata.image import WalRef
from penstock.storage.partitions.partition import Partition
from penstock.storage.settling.change import Base, Change
from penstock.storage.settling.segment_writer import Written


class PartitionState(NamedTuple):
    """The state of a partition between two flushes."""

    partition: Partition
    end_offset: int
    producers: dict[int, ProducerEntry]
    epochs: tuple[EpochStart, ...]
    ongoing: dict[int, int]
    aborted: tuple[AbortedTransaction, ...]
    aborted_in: list[AbortedTransaction]
    """The list that they were taken from. Whoever forgets some of them gives the partition another one."""
    wals: tuple[WalRef, ...]
    """The logs whose records it holds."""


class Job(NamedTuple):
    """The records of a state that are to be copied."""

    state: PartitionState
    settled_end: int
    """Where the manifest ended that the extents follow."""
    extents: Extents


def state_of(partition: Partition) -> PartitionState:
    return PartitionState(
        partition,
        partition.next_offset,
        dict(partition.producer_entries),
        partition.epochs,
        dict(partition.ongoing),
        tuple(partition.aborted),
        partition.aborted,
        partition.wals,
    )


def begin_job(state: PartitionState) -> Job:
    """The extents that a state covers, from the log start on. Extents end where flushes do."""
    partition = state.partition
    extents = partition.unsettled
    start = extents.find(partition.log_start_offset)
    covered = extents.slice(start, max(start, extents.find(state.end_offset)))
    return Job(state, partition.settled_end, covered)


def by_file(extents: Extents) -> Iterable[tuple[int, int, int]]:
    """Each file, and the first and last-plus-one extent in it. Files are numbered in the order of use."""
    start = 0
    while start < len(extents):
        file = extents.files[start]
        end = bisect_right(extents.files, file, start)
        yield file, start, end
        start = end


def stretches(extents: Extents, adopted: set[int]) -> Iterable[Extents]:
    """The extents that are left to copy, where nothing adopted lies between."""
    start = 0
    for file, first, end in by_file(extents):
        if file in adopted:
            if first > start:
                yield extents.slice(start, first)
            start = end
    if start < len(extents):
        yield extents.slice(start, len(extents)) if start else extents


def settled(job: Job, written: Sequence[Written], own: WalRef) -> Change | None:
    """The partition with all records of a state in segments; None if its manifest ends elsewhere now."""
    state = job.state
    partition = state.partition
    base = Base.of(partition)
    if partition.settled_end != job.settled_end:
        return None
    dropped = tuple(wal for wal in state.wals if wal != own)
    if partition.settled_end == state.end_offset and not written:
        return Change(partition, base, dropped=dropped)
    log_start = partition.log_start_offset
    before = base.manifest or Manifest(partition.topic_id, partition.index, 0)
    new = sorted((one.segment for one in written), key=lambda segment: segment.base_offset)
    aborted = state.aborted
    if partition.aborted is not state.aborted_in:
        # Compaction or the log start has taken some since. Else there may be very many to look at.
        remembered = set(partition.aborted)
        aborted = tuple(one for one in aborted if one in remembered and one.last_offset >= log_start)
    manifest = msgspec.structs.replace(
        before,
        end_offset=state.end_offset,
        segments=tuple(segment for segment in (*before.segments, *new) if segment.end_offset > log_start),
        epochs=without_below(state.epochs, log_start),
        producers=state.producers,
        ongoing=state.ongoing,
        aborted=aborted,
        hurt=without_hurt_below(partition.hurt, log_start),
    )
    return Change(partition, base, manifest, dropped=dropped, written=tuple(written))


def retained(partition: Partition, now_ms: int) -> Change | None:
    """The partition without what retention takes; None if it takes nothing."""
    base = Base.of(partition)
    log_start = partition.log_start_offset
    segments = base.manifest.segments if base.manifest is not None else ()
    policy = partition.policy
    total = bytes_from(segments, partition.unsettled, log_start)
    oldest_first = chunks(segments, partition.unsettled, log_start, policy.segment_bytes)
    kept = kept_from(oldest_first, total, log_start, policy, now_ms)
    first_kept = bisect_right(segments, kept, key=lambda segment: segment.end_offset)
    if kept == log_start and not first_kept:
        return None
    manifest = None
    if base.manifest is not None and first_kept:
        hurt = without_hurt_below(base.manifest.hurt, kept)
        manifest = msgspec.structs.replace(base.manifest, segments=segments[first_kept:], hurt=hurt)
    return Change(partition, base, manifest, log_start=kept if kept > log_start else None)
