"""Settling: moving records from write-ahead logs into segments, and keeping segments few.

All of it runs in the background, one step at a time, and ends in one command in the metadata log. Until
that is committed, the write-ahead log is what counts; what a failed or refused attempt wrote is garbage.

    settle    everything that is durable when it begins: the partitions' state is taken at one moment
              between two flushes, so a manifest holds exactly the state at its end offset
    merge     small neighbouring segments into larger ones
    retain    advances log starts by retention.ms and retention.bytes, and drops segments below them

The bytes are copied by the kernel or in threads. What runs on the loop is short: columns of integers, in
steps.
"""

import asyncio
import logging
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.clock import Clock
from penstock.log.epochs import EpochStart, without_below
from penstock.log.extents import Extents
from penstock.log.manifest import Manifest, SegmentRef
from penstock.log.markers import AbortedTransaction
from penstock.log.policy import LogPolicy
from penstock.log.producers import ProducerEntry
from penstock.log.retention import chunks, kept_from
from penstock.log.settling import merge_range, split, worth_adopting
from penstock.metadata.commands import AnyCommand, Settled, SettlePartitions
from penstock.metadata.image import ClusterImage, ManifestRef, PartitionInfo, WalRef
from penstock.metadata.refusal import Refusal
from penstock.storage.flusher import Flusher
from penstock.storage.garbage import Garbage
from penstock.storage.ledger_settings import LedgerSettings
from penstock.storage.partition import Partition
from penstock.storage.reading import Reader
from penstock.storage.segment_writer import Run, SegmentWriter, Written
from penstock.storage.wal import WalWriter
from penstock.storage.wal_files import WalFiles

logger = logging.getLogger(__name__)

Decide = Callable[[ClusterImage], Sequence[AnyCommand] | Refusal]
Propose = Callable[[Decide], Awaitable[ClusterImage | Refusal]]
PartitionKey = tuple[bytes, int]

_MERGE_BYTES_PER_PASS = 64 * 1024 * 1024
_PARTITIONS_PER_STEP = 50  # Handled before other work on the loop gets its turn: about a millisecond.


class Snapshot(NamedTuple):
    """A partition between two flushes."""

    partition: Partition
    end_offset: int
    producers: dict[int, ProducerEntry]
    epochs: tuple[EpochStart, ...]
    ongoing: dict[int, int]
    aborted: tuple[AbortedTransaction, ...]


class Change(NamedTuple):
    """What a step wants to become of one partition."""

    partition: Partition
    manifest: Manifest | None = None
    """Replaces the manifest; None: it stays."""
    ref: ManifestRef | None = None
    log_start: int | None = None
    drop_logs: bool = False
    """Everything that earlier incarnations wrote is in the manifest."""
    written: tuple[Written, ...] = ()
    forgotten: tuple[AbortedTransaction, ...] = ()
    """Compaction has removed the last record of these."""


class Settler:
    def __init__(
        self,
        *,
        own: WalRef,
        settings: LedgerSettings,
        clock: Clock,
        propose: Propose,
        partitions: Mapping[PartitionKey, Partition],
        files: WalFiles,
        reader: Reader,
        writer: SegmentWriter,
        garbage: Garbage,
        on_image: Callable[[ClusterImage], None],
    ) -> None:
        self._own = own
        self._settings = settings
        self._clock = clock
        self._propose = propose
        self._partitions = partitions
        self._files = files
        self._reader = reader
        self._writer = writer
        self._garbage = garbage
        self._on_image = on_image
        self._lock = asyncio.Lock()
        self._expected: dict[ManifestRef, Change] = {}
        """Manifests that were proposed, until it is known what became of them."""
        self._unmerged: dict[PartitionKey, None] = {}
        """In the order in which they were settled, which is also that in which they are merged."""
        self.cleaning: set[PartitionKey] = set()
        """Partitions whose segments compaction is on: they are not merged meanwhile."""
        self.settles = 0
        self.merges = 0
        self.bytes_settled = 0
        self.files_adopted = 0

    # Settling.

    async def settle(self, flusher: Flusher, wal: WalWriter) -> bool:
        """Settle everything up to now. False if a flush failed meanwhile, or the command was refused."""
        async with self._lock:
            if flusher.ended:
                # The partitions are closed and will not be settled here: their records are still needed.
                return False
            stop = flusher.next_number
            wal.rotate(stop)
            snapshots = []
            surrendered = False
            for partition in self._partitions.values():
                if partition.closed:
                    surrendered = True
                elif (
                    partition.unsettled
                    or partition.next_offset > partition.high_watermark
                    or len(partition.wals) > 1
                ):
                    snapshots.append(take_snapshot(partition))
            if not await flusher.reached(stop):
                return False
            changes = await self._prepare(snapshots)
            if not await self._commit(changes, None if surrendered else stop):
                return False
            self.settles += 1
            return True

    async def _prepare(self, snapshots: Sequence[Snapshot]) -> list[Change]:
        """Write segments and manifests for what the snapshots hold beyond their manifests."""
        unsettled = {}
        for number, snapshot in enumerate(snapshots):
            await _give_way(number)
            unsettled[_key(snapshot.partition)] = _unsettled_of(snapshot)
        adopted = self._adoptable(unsettled)
        policies = {_key(s.partition): s.partition.policy for s in snapshots}
        segments = await self._adopt(unsettled, policies, adopted)
        runs: list[Run] = []
        for number, snapshot in enumerate(snapshots):
            await _give_way(number)
            key = _key(snapshot.partition)
            policy = policies[key]
            for stretch in _stretches(unsettled[key], adopted):
                pieces = split(stretch, policy.segment_bytes, policy.segment_ms)
                runs += (Run(*key, piece) for piece in pieces)
        for run, written in zip(runs, await self._writer.copy(runs, self._files.key), strict=True):
            segments.setdefault((run.topic_id, run.partition), []).append(written)
        changes = [_settled(s, segments.get(_key(s.partition), ())) for s in snapshots]
        return await self._with_refs(changes)

    async def _with_refs(self, changes: Sequence[Change]) -> list[Change]:
        manifests = [change.manifest for change in changes if change.manifest is not None]
        if not manifests:
            return list(changes)
        refs = iter(await self._writer.write_manifests(manifests))
        return [c if c.manifest is None else c._replace(ref=next(refs)) for c in changes]

    # Files that become segments as they are.

    def _adoptable(self, unsettled: Mapping[PartitionKey, Extents]) -> set[int]:
        live_bytes: dict[int, int] = {}
        extent_counts: dict[int, int] = {}
        partition_counts: dict[int, int] = {}
        for extents in unsettled.values():
            for file, start, end in _by_file(extents):
                live_bytes[file] = live_bytes.get(file, 0) + sum(extents.lengths[start:end])
                extent_counts[file] = extent_counts.get(file, 0) + end - start
                partition_counts[file] = partition_counts.get(file, 0) + 1
        return {
            file
            for file, live in live_bytes.items()
            if worth_adopting(self._files.size(file), live, extent_counts[file], partition_counts[file])
        }

    async def _adopt(
        self,
        unsettled: Mapping[PartitionKey, Extents],
        policies: Mapping[PartitionKey, LogPolicy],
        adoptable: set[int],
    ) -> dict[PartitionKey, list[Written]]:
        """Adopt the files in `adoptable`; those that cannot be are taken out of it."""
        segments: dict[PartitionKey, list[Written]] = {}
        for file in sorted(adoptable):
            runs: list[Run] = []
            for key, extents in unsettled.items():
                start, end = bisect_left(extents.files, file), bisect_right(extents.files, file)
                policy = policies[key]
                pieces = split(extents.slice(start, end), policy.segment_bytes, policy.segment_ms)
                runs += (Run(*key, piece) for piece in pieces)
            written = await self._writer.adopt(self._files.key(file), runs)
            if written is None:
                adoptable.discard(file)
                continue
            self.files_adopted += 1
            for run, segment in zip(runs, written, strict=True):
                segments.setdefault((run.topic_id, run.partition), []).append(segment)
        return segments

    # Committing.

    async def _commit(self, changes: Sequence[Change], wal_start: int | None = None) -> bool:
        included: list[Change] = []
        bases = {id(change): change.partition.manifest_ref for change in changes}

        def decide(image: ClusterImage) -> Sequence[AnyCommand]:
            included.clear()
            settled = []
            left = False
            for change in changes:
                partition = change.partition
                info = image.partition(partition.topic_id, partition.index)
                if info is None or not self._leads(info, partition):
                    continue  # Deleted, or led by somebody who has all of it.
                if info.manifest != bases[id(change)]:
                    left = True
                    continue
                dropped = tuple(w for w in info.wals if w != self._own) if change.drop_logs else ()
                if change.ref is None and not dropped and change.log_start is None:
                    continue
                log_start = change.log_start
                if log_start is not None and log_start <= info.log_start:
                    log_start = None
                included.append(change)
                settled.append(
                    Settled(
                        partition.topic_id,
                        partition.index,
                        partition.leader_epoch,
                        change.ref,
                        dropped,
                        log_start,
                    )
                )
            start = None if left else wal_start
            if not settled and (start is None or image.wal_starts.get(self._own, 0) >= start):
                return ()
            return (SettlePartitions(self._own.broker, self._own.epoch, tuple(settled), start),)

        for change in changes:
            if change.ref is not None:
                self._expected[change.ref] = change
        answer = await self._propose(decide)
        if isinstance(answer, Refusal):
            logger.warning("settling was refused: %s", answer.message)
            self._discard(changes)
            return False
        done = {id(change) for change in included}
        for change in included:
            self._apply(change)
        # Whatever is still expected now lost: an entry that was in doubt came before this one, or never.
        self._discard([change for change in self._expected.values() if id(change) not in done])
        if wal_start is not None and answer.wal_starts.get(self._own, 0) >= wal_start:
            self._garbage.doom_own_below(wal_start, self._settings.delete_delay_ms)
        self._doom_logs(changes, answer)
        self._on_image(answer)
        return True

    def _leads(self, info: PartitionInfo, partition: Partition) -> bool:
        return info.leader == self._own.broker and info.leader_epoch == partition.leader_epoch

    def _doom_logs(self, changes: Sequence[Change], image: ClusterImage) -> None:
        """Earlier logs that no partition needs now."""
        if any(change.drop_logs for change in changes):
            for wal in self._files.logs():
                if wal != self._own and not image.wal_uses.get(wal):
                    self._garbage.doom_log(wal, self._settings.delete_delay_ms)

    def adopt_committed(self, partition: Partition, ref: ManifestRef | None) -> bool:
        """The image says that `ref` is the partition's manifest: ours, if it was proposed here and the
        answer is still under way or was lost. False if it is not known here."""
        if ref == partition.manifest_ref:
            return True
        change = self._expected.get(ref) if ref is not None else None
        if change is None or change.partition is not partition:
            return False
        self._apply(change)
        return True

    async def adopt_repaired(self, partition: Partition, manifest: Manifest, ref: ManifestRef) -> None:
        """Somebody repaired what is stored of a partition, and the image says so. Not between two halves of
        a step, which would mix it with what it was before."""
        async with self._lock:
            if partition.closed or self._partitions.get(_key(partition)) is not partition:
                return
            if partition.settled_end != manifest.end_offset:
                return  # A step that was in doubt came before it; the image says what holds now.
            delay_ms = partition.policy.file_delete_delay_ms
            self._garbage.hold(manifest)
            self._garbage.release(partition.manifest, delay_ms)
            self._garbage.doom_manifest(partition.manifest_ref, delay_ms)
            partition.settled(manifest, ref)

    def _apply(self, change: Change) -> None:
        partition = change.partition
        if change.log_start is not None:
            partition.advance_log_start(change.log_start)
        if change.ref is None or self._expected.pop(change.ref, None) is None:
            return
        assert change.manifest is not None
        delay_ms = partition.policy.file_delete_delay_ms
        for written in change.written:
            self._reader.remember_index(written.segment, written.extents)
            self.bytes_settled += written.segment.size_bytes
        self._garbage.hold(change.manifest)
        self._garbage.release(partition.manifest, delay_ms)
        self._garbage.doom_manifest(partition.manifest_ref, delay_ms)
        partition.settled(change.manifest, change.ref)
        if change.forgotten:
            partition.forget_aborted(change.forgotten)
        self._unmerged[_key(partition)] = None

    def _discard(self, changes: Iterable[Change]) -> None:
        """What was written for these is not referred to and will not be."""
        for change in changes:
            if change.ref is not None and self._expected.pop(change.ref, None) is not None:
                self._garbage.doom_manifest(change.ref, self._settings.delete_delay_ms)
                self._doom_written(change)

    def _doom_written(self, change: Change) -> None:
        for written in change.written:
            for key in (written.segment.key, written.segment.index_key):
                self._garbage.doom(key, self._settings.delete_delay_ms, written.segment.index_key)

    # Compaction.

    async def commit_cleaned(self, fold: Callable[[], Sequence[Change]]) -> bool:
        """Commit what compaction wrote. `fold` lays it over the manifests as they are when it is called,
        from when on nothing else changes them."""
        async with self._lock:
            changes = fold()
            try:
                changes = await self._with_refs(changes)
            except BaseException:
                for change in changes:
                    self._doom_written(change)
                raise
            return bool(changes) and await self._commit(changes)

    # Handing partitions over.

    async def surrender(self, flusher: Flusher, partitions: Sequence[Partition]) -> list[Change]:
        """Settle all of these partitions, which accept no more, without committing: the manifests go into
        the command that gives them away."""
        async with self._lock:
            await flusher.reached(flusher.next_number)
            return await self._prepare([take_snapshot(partition) for partition in partitions])

    def take_back(self, changes: Sequence[Change]) -> None:
        """The partitions were not given away after all."""
        for change in changes:
            if change.ref is not None:
                self._expected[change.ref] = change
        self._discard(changes)

    # Merging.

    async def merge(self) -> bool:
        """Merge small segments, a bounded amount at a time. True if there may be more to merge."""
        async with self._lock:
            chosen: list[tuple[Partition, range]] = []
            size = 0
            while self._unmerged and size < _MERGE_BYTES_PER_PASS:
                key = next(iter(self._unmerged))
                del self._unmerged[key]
                partition = self._partitions.get(key)
                if partition is None or partition.manifest is None or key in self.cleaning:
                    continue
                policy = partition.policy
                limit = min(self._settings.merge_bytes_max, policy.segment_bytes)
                segments = partition.manifest.segments
                # What is clean stays apart from what is dirty; compaction itself keeps it in few segments.
                clean_end = partition.manifest.compacted_end if policy.compact else 0
                first = bisect_right(segments, clean_end, key=lambda segment: segment.end_offset)
                found = merge_range(segments[first:], self._settings.merge_count, limit, policy.segment_ms)
                if found is not None:
                    found = range(found.start + first, found.stop + first)
                    chosen.append((partition, found))
                    size += sum(segments[at].size_bytes for at in found)
            if not chosen:
                return False
            runs, keys = await self._merge_runs(chosen)
            written = await self._writer.copy(runs, keys.__getitem__)
            changes = [_merged(*place, new) for place, new in zip(chosen, written, strict=True)]
            if await self._commit(await self._with_refs(changes)):
                self.merges += 1
            return bool(self._unmerged)

    async def _merge_runs(self, chosen: Sequence[tuple[Partition, range]]) -> tuple[list[Run], list[str]]:
        runs: list[Run] = []
        keys: list[str] = []
        for partition, found in chosen:
            assert partition.manifest is not None
            joined = Extents()
            for at in found:
                segment = partition.manifest.segments[at]
                extents = await self._reader.index(segment)
                joined.extend(extents, array("q", (len(keys),)) * len(extents))
                keys.append(segment.key)
            runs.append(Run(*_key(partition), joined))
        return runs, keys

    # Retention.

    async def retain(self) -> int:
        """Advance log starts and drop segments that are below them: how many partitions changed."""
        async with self._lock:
            now_ms = self._clock.time_ms()
            changes = []
            for at, partition in enumerate(list(self._partitions.values())):
                partition.expire_producers(now_ms, self._settings.producer_expiration_ms)
                change = _retained(partition, now_ms)
                if change is not None:
                    changes.append(change)
                await _give_way(at)
            if not changes or not await self._commit(await self._with_refs(changes)):
                return 0
            return len(changes)


async def _give_way(number: int) -> None:
    """Let others on the loop have their turn, in a loop over partitions."""
    if number % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
        await asyncio.sleep(0)


def take_snapshot(partition: Partition) -> Snapshot:
    return Snapshot(
        partition,
        partition.next_offset,
        dict(partition.producer_entries),
        partition.epochs,
        dict(partition.ongoing),
        tuple(partition.aborted),
    )


def _key(partition: Partition) -> PartitionKey:
    return partition.topic_id, partition.index


def _unsettled_of(snapshot: Snapshot) -> Extents:
    """The extents that a snapshot covers, from the log start on. Extents end where flushes do."""
    extents = snapshot.partition.unsettled
    start = extents.find(snapshot.partition.log_start_offset)
    return extents.slice(start, max(start, extents.find(snapshot.end_offset)))


def _by_file(extents: Extents) -> Iterable[tuple[int, int, int]]:
    """Each file, and the first and last-plus-one extent in it. Files are numbered in the order of use."""
    start = 0
    while start < len(extents):
        file = extents.files[start]
        end = bisect_right(extents.files, file, start)
        yield file, start, end
        start = end


def _stretches(extents: Extents, adopted: set[int]) -> Iterable[Extents]:
    """The extents that are left to copy, where nothing adopted lies between."""
    start = 0
    for file, first, end in _by_file(extents):
        if file in adopted:
            if first > start:
                yield extents.slice(start, first)
            start = end
    if start < len(extents):
        yield extents.slice(start, len(extents)) if start else extents


def _settled(snapshot: Snapshot, written: Sequence[Written]) -> Change:
    partition = snapshot.partition
    base = partition.manifest
    if base is not None and base.end_offset == snapshot.end_offset and not written:
        return Change(partition, drop_logs=True)
    if base is None and not snapshot.end_offset:
        return Change(partition, drop_logs=True)
    log_start = partition.log_start_offset
    kept = [s for s in base.segments if s.end_offset > log_start] if base is not None else []
    new = sorted((w.segment for w in written), key=lambda segment: segment.base_offset)
    manifest = Manifest(
        partition.topic_id,
        partition.index,
        snapshot.end_offset,
        (*kept, *new),
        without_below(snapshot.epochs, log_start),
        snapshot.producers,
        snapshot.ongoing,
        tuple(t for t in snapshot.aborted if t.last_offset >= log_start),
        base.compacted_end if base is not None else 0,
    )
    return Change(partition, manifest, drop_logs=True, written=tuple(written))


def _merged(partition: Partition, found: range, new: Written) -> Change:
    base = partition.manifest
    assert base is not None
    segments: tuple[SegmentRef, ...] = (
        *base.segments[: found.start],
        new.segment,
        *base.segments[found.stop :],
    )
    return Change(partition, replace_segments(base, segments), written=(new,))


def replace_segments(base: Manifest, segments: tuple[SegmentRef, ...]) -> Manifest:
    return Manifest(
        base.topic_id,
        base.partition,
        base.end_offset,
        segments,
        base.epochs,
        base.producers,
        base.ongoing,
        base.aborted,
        base.compacted_end,
    )


def _retained(partition: Partition, now_ms: int) -> Change | None:
    log_start = partition.log_start_offset
    segments = partition.manifest.segments if partition.manifest is not None else ()
    policy = partition.policy
    total = partition.unsettled.total_bytes() + sum(
        segment.size_bytes
        for segment in segments[bisect_left(segments, log_start + 1, key=lambda s: s.end_offset) :]
    )
    oldest_first = chunks(segments, partition.unsettled, log_start, policy.segment_bytes)
    kept = kept_from(oldest_first, total, log_start, policy, now_ms)
    first_kept = bisect_left(segments, kept + 1, key=lambda segment: segment.end_offset)
    if kept == log_start and not first_kept:
        return None
    manifest = None
    if first_kept:
        assert partition.manifest is not None
        manifest = replace_segments(partition.manifest, segments[first_kept:])
    return Change(partition, manifest, log_start=kept if kept > log_start else None)
