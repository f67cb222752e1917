"""Settling: moves records from write-ahead logs into segments, and keeps segments few.

All of it runs in the background, and ends in one command in the metadata log (`committing`). Until
that is committed, the write-ahead log counts. The objects of a failed or refused attempt are garbage.

    settle    everything that is durable when it begins: the partitions' state is taken at one moment
              between two flushes, so a manifest holds exactly the state at its end offset
    merge     small neighbouring segments into larger ones
    retain    advances log starts by retention.ms and retention.bytes, and drops segments below them

The kernel or threads copy the bytes. The work on the loop is short: columns of integers, in steps.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from penstock.log.extents import Extents
from penstock.log.settling import lifetime, merge_range, split, worth_adopting
from penstock.metadata.image import PartitionKey
from penstock.storage.partitions.holdings import Holdings
from penstock.storage.partitions.partition import Partition
from penstock.storage.partitions.reading import facts_of
from penstock.storage.settling.change import Change, Fold, key_of
from penstock.storage.settling.committing import Committer
from penstock.storage.settling.jobs import (
    Job,
    PartitionState,
    begin_job,
    by_file,
    retained,
    settled,
    state_of,
    stretches,
)
from penstock.storage.settling.rewriting import Rewriter, Stretch
from penstock.storage.settling.segment_writer import Attempt, Run, SegmentWriter, Written
from penstock.storage.wal.port import WalWriter

_MERGE_BYTES_PER_PASS = 64 * 1024 * 1024
_PARTITIONS_PER_STEP = 50  # Handled before other work on the loop gets its turn: about a millisecond.


class Flushes(Protocol):
    """The flushes of this incarnation, as far as settling must know them."""

    @property
    def ended(self) -> bool:
        """True once this incarnation can write no more."""

    @property
    def next_number(self) -> int: ...

    async def reached(self, number: int) -> bool:
        """Wait until the flushes below `number` are durable; False if one of them failed instead."""


class Settler:
    def __init__(
        self, holdings: Holdings, writer: SegmentWriter, committer: Committer, rewriter: Rewriter
    ) -> None:
        self._own = holdings.own
        self._settings = holdings.settings
        self._clock = holdings.clock
        self._partitions = holdings.partitions
        self._files = holdings.files
        self._writer = writer
        self._committer = committer
        self._rewriter = rewriter
        self._settling = asyncio.Lock()
        self._surrendered: dict[PartitionKey, Attempt] = {}
        self.cleaning: set[PartitionKey] = set()
        """Partitions whose segments compaction is on: they are not merged meanwhile."""
        self.settles = 0
        self.merges = 0
        self.files_adopted = 0

    # Settling.

    async def settle(self, flushes: Flushes, wal: WalWriter) -> bool:
        """Settle everything up to now. False if a flush failed meanwhile, the command was refused, or some
        of it is still unsettled."""
        async with self._settling:
            if flushes.ended:
                # The partitions are closed and will not be settled here: their records are still needed.
                return False
            stop = flushes.next_number
            wal.rotate(stop)
            states = []
            surrendered = False
            for partition in self._partitions.values():
                if partition.closed:
                    surrendered = True
                elif (
                    partition.unsettled
                    or partition.next_offset > partition.high_watermark
                    or len(partition.wals) > 1
                ):
                    states.append(state_of(partition))
            if not await flushes.reached(stop):
                return False
            with self._committer.attempt() as attempt:
                fold = await self._prepare(states, attempt)
                keys = [key_of(state.partition) for state in states]
                done = await self._committer.commit(attempt, keys, fold, None if surrendered else stop)
            if done is None:
                return False
            self.settles += 1
            return not self._committer.needs_log(keys, done)

    async def _prepare(self, states: Sequence[PartitionState], attempt: Attempt) -> Fold:
        """Write segments for what the states hold beyond their manifests."""
        jobs: dict[PartitionKey, Job] = {}
        for number, state in enumerate(states):
            await _give_way(number)
            jobs[key_of(state.partition)] = begin_job(state)
        adopted = self._adoptable(jobs)
        segments = await self._adopt(jobs, adopted, attempt)
        runs: list[Run] = []
        for number, (key, job) in enumerate(jobs.items()):
            await _give_way(number)
            for stretch in stretches(job.extents, adopted):
                runs += _runs(key, job, stretch)
        copies = await self._writer.copy(runs, self._files.key, attempt, self._rewriter.hurt.give_up)
        for run, written in zip(runs, copies, strict=True):
            segments.setdefault((run.topic_id, run.partition), []).append(written)

        def fold(keys: Collection[PartitionKey]) -> list[Change]:
            folded = (settled(jobs[key], segments.get(key, ()), self._own) for key in keys)
            return [
                change for change in folded if change is not None and self._committer.is_led(change.partition)
            ]

        return fold

    # Files that become segments as they are.

    def _adoptable(self, jobs: Mapping[PartitionKey, Job]) -> set[int]:
        live_bytes: dict[int, int] = {}
        extent_counts: dict[int, int] = {}
        partition_counts: dict[int, int] = {}
        for job in jobs.values():
            for file, start, end in by_file(job.extents):
                live_bytes[file] = live_bytes.get(file, 0) + sum(job.extents.lengths[start:end])
                extent_counts[file] = extent_counts.get(file, 0) + end - start
                partition_counts[file] = partition_counts.get(file, 0) + 1
        return {
            file
            for file, live in live_bytes.items()
            if self._files.may_be_adopted(file)
            and worth_adopting(self._files.size(file), live, extent_counts[file], partition_counts[file])
        }

    async def _adopt(
        self, jobs: Mapping[PartitionKey, Job], adoptable: set[int], attempt: Attempt
    ) -> dict[PartitionKey, list[Written]]:
        """Adopt the files in `adoptable`; those that cannot be are taken out of it."""
        segments: dict[PartitionKey, list[Written]] = {}
        for file in sorted(adoptable):
            runs: list[Run] = []
            for key, job in jobs.items():
                files = job.extents.files
                start, end = bisect_left(files, file), bisect_right(files, file)
                runs += _runs(key, job, job.extents.slice(start, end))
            written = await self._writer.adopt(self._files.key(file), self._files.size(file), runs, attempt)
            if written is None:
                adoptable.discard(file)
                self._files.is_not_on_disk(file)
                continue
            self.files_adopted += 1
            for run, segment in zip(runs, written, strict=True):
                segments.setdefault((run.topic_id, run.partition), []).append(segment)
        return segments

    # Handing partitions over.

    async def surrender(self, flushes: Flushes, partitions: Sequence[Partition]) -> list[Change]:
        """Settle all of these partitions, which accept no more, without committing: the manifests go into
        the command that gives them away. Until `release`, nothing else changes them."""
        async with self._settling:
            await flushes.reached(flushes.next_number)
            # What is in doubt could take effect after this is computed, and be undone by it.
            await self._committer.be_certain()
            attempt = self._committer.begin()
            try:
                fold = await self._prepare([state_of(partition) for partition in partitions], attempt)
                keys = [key_of(partition) for partition in partitions]
                changes = await self._committer.with_refs(fold(keys), attempt)
            except BaseException:
                self._committer.end(attempt)
                raise
            # One whose topic was deleted meanwhile is released already.
            changes = [change for change in changes if self._committer.is_led(change.partition)]
            self._surrendered.update((key_of(change.partition), attempt) for change in changes)
            if not changes:
                self._committer.end(attempt)
            return changes

    def release(self, key: PartitionKey) -> None:
        """A surrendered partition was given away, or it was not and stays."""
        attempt = self._surrendered.pop(key, None)
        if attempt is not None and attempt not in self._surrendered.values():
            attempt.proposed.update(attempt.made)
            self._committer.end(attempt)

    # Merging.

    async def merge(self) -> bool:
        """Merge small segments, a bounded amount at a time. True if there may be more to merge."""
        chosen: list[Stretch] = []
        size = 0
        unmerged = self._committer.unmerged
        while unmerged and size < _MERGE_BYTES_PER_PASS:
            key = next(iter(unmerged))
            del unmerged[key]
            partition = self._partitions.get(key)
            if partition is None or partition.closed or key in self.cleaning:
                continue
            stretch = self._mergeable(partition)
            if stretch is not None:
                chosen.append(stretch)
                size += sum(segment.size_bytes for segment in stretch.segments)
        if not chosen:
            return False
        if await self._rewriter.rewrite(chosen):
            self.merges += 1
        return bool(unmerged)

    def _mergeable(self, partition: Partition) -> Stretch | None:
        if partition.manifest is None:
            return None
        policy = partition.policy
        limit = min(self._settings.merge_bytes_max, policy.segment_bytes)
        segments = partition.manifest.segments
        # What is clean stays apart from what is dirty; compaction itself keeps it in few segments.
        clean_end = partition.manifest.compacted_end if policy.compact else 0
        first = bisect_right(segments, clean_end, key=lambda segment: segment.end_offset)
        # What is hurt is not copied; what follows it is merged on.
        first = max(first, self._rewriter.hurt.after(segments))
        found = merge_range(segments[first:], self._settings.merge_count, limit, policy.segment_ms)
        if found is None:
            return None
        return Stretch(partition, segments[first + found.start : first + found.stop])

    # Retention.

    async def retain(self) -> int:
        """Advance log starts and drop segments that are below them: how many partitions changed."""
        now_ms = self._clock.time_ms()
        keys = []
        for at, partition in enumerate(list(self._partitions.values())):
            partition.expire_producers(now_ms, partition.policy.producer_expiration_ms)
            if retained(partition, now_ms) is not None:
                keys.append(key_of(partition))
            await _give_way(at)

        def fold(wanted: Collection[PartitionKey]) -> list[Change]:
            open_now = (self._partitions.get(key) for key in wanted)
            changes = (retained(p, now_ms) for p in open_now if p is not None and not p.closed)
            return [change for change in changes if change is not None]

        with self._committer.attempt() as attempt:
            return len(await self._committer.commit(attempt, keys, fold) or ())


async def _give_way(number: int) -> None:
    """Let others on the loop have their turn, in a loop over partitions."""
    if number % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
        await asyncio.sleep(0)


def _runs(key: PartitionKey, job: Job, extents: Extents) -> list[Run]:
    policy = job.state.partition.policy
    kind, facts = lifetime(policy), facts_of(job.state.partition)
    return [
        Run(*key, piece, kind, facts) for piece in split(extents, policy.segment_bytes, policy.segment_ms)
    ]
