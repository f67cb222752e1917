"""Key compaction at work: keeps the last record of each key in partitions whose cleanup.policy says so.

A round looks at every compacted partition led here, and goes once through those that are due, the dirtiest
first. `log.compaction` decides which partitions are due, and `log.compaction_batch` decides on each batch.
After a round that cleaned something the next one follows at once, else after log.cleaner.backoff.ms.

Nothing is changed in place. The cleaner writes new segments beside the old ones. Then one command in the
metadata log makes manifests that name them true: all at once, for any number of partitions. Until then the
old segments count; afterwards they are garbage. So a broker may be killed at any moment: a later one sweeps
the segments that were never committed. Settling goes on meanwhile. Only merging and moving leave a partition
alone while it is being cleaned. If retention took one of its segments away, the cleaned copy is dropped.

Records must be settled before they can be compacted. If partitions would be due once their newest records
were settled, a round has them settled first. So compaction waits for log.cleaner.backoff.ms only.

Memory: the keys of one pass (log.cleaner.dedupe.buffer.size), a window of the log, and the new segments of a
group. If there are more keys, one pass cleans as far as memory allows, and the next goes on from there.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from penstock.clock import Clock
from penstock.log.compaction import Dirt, Replacement, assess, replaced
from penstock.log.manifest import Manifest, SegmentRef
from penstock.log.markers import AbortedTransaction
from penstock.log.settling import lifetime, split
from penstock.metadata.image import PartitionKey
from penstock.storage.partitions.holdings import Holdings
from penstock.storage.partitions.partition import Partition
from penstock.storage.partitions.reading import Reader
from penstock.storage.partitions.settings import CleanerSettings
from penstock.storage.settling.change import Base, Change, key_of
from penstock.storage.settling.cleaner_pass import (
    SEGMENT_BYTES,
    AbandonedError,
    CleaningPass,
    Group,
    Part,
    share_interpreter,
)
from penstock.storage.settling.committing import Committer
from penstock.storage.settling.segment_writer import Attempt, Run, SegmentWriter

logger = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_PAUSE_SECONDS_MIN = 0.001
_BACKOFF_SECONDS_MIN = 0.1  # Looking at every partition costs something, also with a backoff of 0.
_RETRY_FIRST_SECONDS = 15.0
_RETRY_MAX_SECONDS = 1800.0
_STEP_PARTITIONS = 100
_SHELF_GROUPS_MAX = 256
_SETTLE_SECONDS_MIN = 1.0
"""Settling moves the records of all partitions: it is not asked for more often than this."""


class _Finished(NamedTuple):
    """A group that waits to be committed."""

    partition: Partition
    group: Group
    compacted_end: int
    """Where the group ends: offsets may be missing up to there, and readers must know it."""
    forgotten: tuple[AbortedTransaction, ...]

    @property
    def ends_pass(self) -> bool:
        return not self.group.sources


class Throttle:
    """Spreads bytes over time: log.cleaner.io.max.bytes.per.second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._owed = 0.0
        self._since = clock.monotonic()

    def add(self, size: int) -> None:
        if not self._owed:
            self._since = self._clock.monotonic()  # Time that was not used is not saved up.
        self._owed += size

    def wait_seconds(self, rate: float) -> float:
        """How long to wait at this many bytes a second until all that was added is paid for."""
        now = self._clock.monotonic()
        elapsed, self._since = now - self._since, now
        if rate <= 0:
            return _TICK_SECONDS  # Until the setting is changed.
        owed_seconds = max(0.0, self._owed / rate - elapsed)
        self._owed = owed_seconds * rate
        return owed_seconds if owed_seconds >= _PAUSE_SECONDS_MIN else 0.0


class Cleaner:
    def __init__(
        self,
        holdings: Holdings,
        committer: Committer,
        reader: Reader,
        writer: SegmentWriter,
        *,
        cleaning: set[PartitionKey],
        settings: Callable[[], CleanerSettings],
        settle: Callable[[], Awaitable[bool]],
    ) -> None:
        """`cleaning` is told which partitions are being cleaned."""
        self._partitions = holdings.partitions
        self._cleaning = cleaning
        self._committer = committer
        self._reader = reader
        self._writer = writer
        self._clock = holdings.clock
        self._ledger_settings = holdings.settings
        self._settings = settings
        self._settle = settle
        self._settled_at = -_SETTLE_SECONDS_MIN
        self._throttle = Throttle(holdings.clock)
        self._shelf: list[_Finished] = []
        self._attempt: Attempt | None = None
        """What was written in this round."""
        self._failures: dict[PartitionKey, tuple[float, float]] = {}
        """Partitions that could not be cleaned: when to try again, and how long to wait after that."""
        self._one_at_a_time = asyncio.Lock()
        self.passes = 0
        self.bytes_read = 0
        self.bytes_written = 0

    async def run(self) -> None:
        """Until cancelled."""
        share_interpreter()
        while True:
            cleaned = 0
            try:
                cleaned = await self.clean()
            except Exception as error:
                # The store or the metadata log may be out of reach, or full.
                logger.warning("cleaning failed and will be tried again: %s: %s", type(error).__name__, error)
            if not cleaned:
                await self._rest()

    async def _rest(self) -> None:
        since = self._clock.monotonic()
        while True:
            # Looked at again and again, because it may be changed meanwhile.
            backoff = max(self._settings().backoff_ms / 1000, _BACKOFF_SECONDS_MIN)
            left = since + backoff - self._clock.monotonic()
            if left <= 0:
                return
            await asyncio.sleep(min(left, _TICK_SECONDS))

    # A round.

    async def clean(self) -> int:
        """Go once through every partition that is due: how many were cleaned."""
        async with self._one_at_a_time:
            cleaned = 0
            try:
                due, unsettled = await self._due()
                if unsettled and self._clock.monotonic() - self._settled_at >= _SETTLE_SECONDS_MIN:
                    self._settled_at = self._clock.monotonic()
                    await self._settle_first()
                    due, unsettled = await self._due()
                for partition in due:
                    await self._clean_one(partition)
                    if self._shelf_is_full():
                        cleaned += await self._empty_shelf()
                cleaned += await self._empty_shelf()
            finally:
                self._cleaning.clear()
                self._shelf.clear()
                if self._attempt is not None:
                    self._committer.end(self._attempt)
                    self._attempt = None
            return cleaned

    async def _settle_first(self) -> None:
        try:
            await self._settle()
        except Exception as error:
            # The store or the metadata log may be out of reach, or full. What is settled can be cleaned.
            logger.warning("records were not settled to be cleaned: %s: %s", type(error).__name__, error)

    async def _due(self) -> tuple[list[Partition], bool]:
        """The partitions that are due, the dirtiest first, and whether settling would make more of them
        so."""
        found: list[tuple[float, Partition]] = []
        unsettled = False
        self._failures = {key: one for key, one in self._failures.items() if key in self._partitions}
        now = self._clock.monotonic()
        for at, (key, partition) in enumerate(list(self._partitions.items())):
            if at % _STEP_PARTITIONS == _STEP_PARTITIONS - 1:
                await asyncio.sleep(0)
            if not partition.policy.compact or partition.closed:
                continue
            if key in self._failures and now < self._failures[key][0]:
                continue
            dirt = self._assess(partition)
            if dirt is not None and dirt.is_due(partition.policy):
                found.append((dirt.ratio, partition))
            elif not unsettled and partition.unsettled:
                unsettled = self._assess_settled(partition).is_due(partition.policy)
        found.sort(key=lambda one: one[0], reverse=True)
        return [partition for _ratio, partition in found], unsettled

    def _assess(self, partition: Partition) -> Dirt | None:
        if partition.manifest is None:
            return None
        return self._dirt(partition, partition.manifest, partition.unsettled.total_bytes())

    def _assess_settled(self, partition: Partition) -> Dirt:
        """How dirty the partition would be if all of it were settled now."""
        manifest = partition.manifest or Manifest(partition.topic_id, partition.index, 0)
        unsettled, policy = partition.unsettled, partition.policy
        kept = unsettled.slice(unsettled.find(partition.log_start_offset), len(unsettled))
        now_ms = self._clock.time_ms()
        segments = tuple(
            SegmentRef(
                "",
                piece.base_offsets[0],
                piece.last_offsets[-1] + 1,
                piece.total_bytes(),
                max(piece.max_timestamps),
                "",
                0,
                0,
                min(piece.max_timestamps),
                now_ms,
            )
            for piece in split(kept, policy.segment_bytes, policy.segment_ms)
        )
        settled = msgspec.structs.replace(manifest, segments=(*manifest.segments, *segments))
        return self._dirt(partition, settled, 0)

    def _dirt(self, partition: Partition, manifest: Manifest, unsettled_bytes: int) -> Dirt:
        return assess(
            manifest,
            log_start=partition.log_start_offset,
            stable_offset=partition.last_stable_offset,
            unsettled_bytes=unsettled_bytes,
            policy=partition.policy,
            active_bytes_max=self._ledger_settings.merge_bytes_max,
            now_ms=self._clock.time_ms(),
        )

    async def _clean_one(self, partition: Partition) -> None:
        key = key_of(partition)
        self._cleaning.add(key)
        try:
            await self._pass(partition)
        except AbandonedError:
            self._drop(partition)
        except Exception as error:
            self._drop(partition)
            pause = self._failures[key][1] if key in self._failures else _RETRY_FIRST_SECONDS
            self._failures[key] = (self._clock.monotonic() + pause, min(2 * pause, _RETRY_MAX_SECONDS))
            logger.warning(
                "a partition could not be cleaned topic=%s partition=%d: %s: %s",
                partition.topic, partition.index, type(error).__name__, error,
            )  # fmt: skip
        else:
            self._failures.pop(key, None)

    async def _pass(self, partition: Partition) -> None:
        dirt = self._assess(partition)  # Things may have changed since the round began.
        if dirt is None or not dirt.is_due(partition.policy) or partition.closed:
            return
        one = CleaningPass(
            partition,
            dirt,
            reader=self._reader,
            clock=self._clock,
            keys_bytes_max=self._settings().dedupe_buffer_bytes,
            spend=self._spend,
            write=self._write_parts,
        )
        try:
            async with aclosing(one.groups()) as groups:
                async for group in groups:
                    if group.changed or len(group.sources) > 1:
                        clean_end = min(group.sources[-1].end_offset, one.end_offset)
                        self._shelf.append(_Finished(partition, group, clean_end, ()))
                        if self._shelf_is_full():
                            await self._empty_shelf()
        finally:
            self.bytes_read += one.bytes_read
        # Only now: the groups before this one count also if the broker is killed before it gets here.
        self._shelf.append(_Finished(partition, Group(), one.end_offset, one.forgotten))
        seen, kept = one.records
        logger.info(
            "cleaned topic=%s partition=%d end_offset=%d bytes_read=%d records_seen=%d records_kept=%d",
            partition.topic, partition.index, one.end_offset, one.bytes_read, seen, kept,
        )  # fmt: skip

    async def _spend(self, size: int) -> None:
        self._throttle.add(size)
        while True:
            left = self._throttle.wait_seconds(self._settings().io_bytes_per_second)
            if not left:
                return
            await asyncio.sleep(min(left, _TICK_SECONDS))

    # Writing and committing.

    def _shelf_is_full(self) -> bool:
        if len(self._shelf) >= _SHELF_GROUPS_MAX:
            return True
        return sum(finished.group.unwritten_bytes for finished in self._shelf) >= SEGMENT_BYTES

    async def _write_parts(self, partition: Partition, parts: Sequence[Part]) -> None:
        await self._write([(partition, part) for part in parts])

    async def _write(self, wanted: Iterable[tuple[Partition, Part]]) -> None:
        """Write what is in memory into new objects."""
        waiting = [(partition, part) for partition, part in wanted if part.data]
        if not waiting:
            return
        size = sum(len(part.data) for _partition, part in waiting)
        await self._spend(size)
        runs = [
            Run(*key_of(partition), part.extents, lifetime(partition.policy)) for partition, part in waiting
        ]
        data = [part.data for _partition, part in waiting]
        written = await self._writer.write(runs, data, self._begun())
        self.bytes_written += size
        for (_partition, part), segment in zip(waiting, written, strict=True):
            part.written = segment
            part.data = bytearray()

    async def _empty_shelf(self) -> int:
        """Write and commit everything on the shelf: how many partitions are clean now."""
        shelf = self._shelf
        if not shelf:
            return 0
        by_partition: dict[PartitionKey, list[_Finished]] = {}
        for finished in shelf:
            by_partition.setdefault(key_of(finished.partition), []).append(finished)
        await self._write((f.partition, part) for f in shelf for part in f.group.parts)
        shelf.clear()

        def fold(keys: Collection[PartitionKey]) -> list[Change]:
            folded = (self._fold(by_partition[key]) for key in keys)
            return [change for change in folded if change is not None]

        done = 0
        for change in await self._committer.commit(self._begun(), by_partition, fold) or ():
            together = by_partition[key_of(change.partition)]
            done += any(one.ends_pass for one in together)
        self.passes += done
        return done

    def _begun(self) -> Attempt:
        """The attempt of this round; a new one after a commit whose fate is in doubt."""
        if self._attempt is None or self._attempt.doubtful:
            self._attempt = self._committer.begin()
        return self._attempt

    def _fold(self, together: Sequence[_Finished]) -> Change | None:
        """What becomes of one partition, laid over its manifest as it is now; None if that has changed too
        much since, or another broker leads it."""
        partition = together[0].partition
        base = Base.of(partition)
        if base.manifest is None or not self._committer.is_open(partition):
            return None
        manifest = replaced(base.manifest, [_replacement(finished) for finished in together])
        if manifest is None:
            return None
        written = tuple(p.written for f in together for p in f.group.parts if p.written is not None)
        forgotten = tuple(one for finished in together for one in finished.forgotten)
        return Change(partition, base, manifest, written=written, forgotten=forgotten)

    def _drop(self, partition: Partition) -> None:
        """Take back what waits to be committed for a partition."""
        self._shelf[:] = [finished for finished in self._shelf if finished.partition is not partition]


def _replacement(finished: _Finished) -> Replacement:
    sources = finished.group.sources
    settled_ms = max((segment.settled_ms for segment in sources), default=-1)
    segments = tuple(
        # Records without a time are as old as before.
        msgspec.structs.replace(part.written.segment, settled_ms=settled_ms)
        for part in finished.group.parts
        if part.written is not None
    )
    return Replacement(tuple(sources), segments, finished.compacted_end, finished.forgotten)
