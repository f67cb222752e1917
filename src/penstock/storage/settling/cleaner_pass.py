"""One pass of compaction over one partition: reads its segments twice and makes new ones in memory.

It first reads the dirty part and collects its keys, as many as memory allows. Then it goes again through
everything from the log start up to there, and puts the remaining records into groups: a group replaces some
neighbouring segments by new ones. Each group can be committed by itself, because the records that it leaves
out are superseded by records that are in the log. A segment that loses nothing stays as it is if it is large,
and is joined with its neighbours if it is small.

A thread looks at records, a window of the log at a time. A thread of pure Python keeps the event loop from
running while it holds the interpreter. So it rests after each batch, for a share of the time that it took,
and the interpreter is told to change threads more often than it does by default.
"""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from penstock.clock import Clock
from penstock.log.checking import Facts
from penstock.log.compaction import Dirt, newest, oldest
from penstock.log.compaction_batch import BatchSweep, KeyScan, Outcome, last_batches, place
from penstock.log.compaction_keys import LatestOffsets
from penstock.log.extents import Extents
from penstock.log.manifest import SegmentRef
from penstock.log.markers import AbortedTransaction
from penstock.log.policy import UNLIMITED, LogPolicy
from penstock.log.slicing import plan_ranges
from penstock.storage.partitions.partition import Partition
from penstock.storage.partitions.reading import Reader
from penstock.storage.settling.segment_writer import Written
from penstock.storage.stores.objects import DamagedObjectError
from penstock.wire.batch import BatchHeader, check_batch
from penstock.wire.errors import BatchError

WINDOW_BYTES = 2 * 1024 * 1024
"""Read at a time."""
SEGMENT_BYTES = 32 * 1024 * 1024
"""How large cleaned segments grow, and how much of them is held in memory."""
_STEP_EXTENTS = 1000  # Passed over before other work on the loop gets its turn.
_WORK_SECONDS = 0.0005
_REST_SHARE = 0.5
_REST_SECONDS_MAX = 0.01
_SWITCH_SECONDS = 0.0005
"""How long the event loop waits for the interpreter while a thread is at work; Python's default is ten times
that. It counts only where threads compete."""
_NO_LIMIT = 2**62
_SEGMENTS_PER_RETENTION = 8


class AbandonedError(Exception):
    """The partition is not led here any more."""


class Part:
    """Batches of a segment to be: in memory until they are written."""

    __slots__ = ("data", "extents", "written")

    def __init__(self) -> None:
        self.data = bytearray()
        self.extents = Extents()
        self.written: Written | None = None

    def add(self, header: BatchHeader, outcome: Outcome) -> None:
        assert outcome.batch is not None
        place(self.extents, header, outcome, len(self.data))
        self.data += outcome.batch


class Group:
    """Neighbouring segments, and the batches that stay of them."""

    __slots__ = ("changed", "parts", "sources")

    def __init__(self) -> None:
        self.sources: list[SegmentRef] = []
        self.parts: list[Part] = [Part()]
        self.changed = False

    @property
    def unwritten_bytes(self) -> int:
        return sum(len(part.data) for part in self.parts)

    def would_span_ms(self, segment: SegmentRef) -> int:
        """How much time the group covers with `segment` in it."""
        sources = (*self.sources, segment)
        return max(map(newest, sources)) - min(map(oldest, sources))


class _Piece(NamedTuple):
    """An extent that was read."""

    stored: memoryview
    base_offset: int
    last_offset: int


class CleaningPass:
    def __init__(
        self,
        partition: Partition,
        dirt: Dirt,
        *,
        reader: Reader,
        clock: Clock,
        keys_bytes_max: int,
        spend: Callable[[int], Awaitable[None]],
        write: Callable[[Partition, Sequence[Part]], Awaitable[None]],
    ) -> None:
        """`spend` is told how many bytes were read, and waits if that was too fast. `write` writes parts of
        a group that does not fit into memory."""
        assert partition.manifest is not None
        self._partition = partition
        self._segments = partition.manifest.segments[dirt.start : dirt.end]
        self._dirty = self._segments[dirt.dirty - dirt.start :]
        self._reader = reader
        self._clock = clock
        self._spend = spend
        self._write = write
        # Taken together with the last stable offset: what lies below it is decided.
        self._aborted = tuple(partition.aborted)
        # Offsets are missing wherever compaction has been, also if it did not get to an end.
        self._facts = Facts(partition.epochs, _NO_LIMIT)
        self._producers = last_batches(partition.producer_entries)
        self._scan = KeyScan(LatestOffsets(keys_bytes_max), self._aborted)
        self._sweep: BatchSweep | None = None
        self._part_bytes = min(partition.policy.segment_bytes, SEGMENT_BYTES)
        self.end_offset = self._dirty[-1].end_offset
        """Below this, everything is clean after this pass."""
        self.open = Group()
        """What is being put together: to be dropped if the pass fails."""
        self.bytes_read = 0

    @property
    def forgotten(self) -> tuple[AbortedTransaction, ...]:
        return tuple(self._sweep.forgotten) if self._sweep is not None else ()

    @property
    def records(self) -> tuple[int, int]:
        """How many records the second pass saw, as far as it had to look, and kept."""
        return (self._sweep.records_seen, self._sweep.records_kept) if self._sweep is not None else (0, 0)

    async def groups(self) -> AsyncGenerator[Group, None]:
        """Go through the partition: what is to be replaced, in the order of the log."""
        await self._collect_keys()
        span_ms_max = _span_ms_max(self._partition.policy)
        for segment in self._segments:
            if segment.base_offset >= self.end_offset:
                break
            if self.open.sources and self.open.would_span_ms(segment) > span_ms_max:
                yield self._finish_group()
            self.open.sources.append(segment)
            await self._clean(segment, self.open)
            if len(self.open.parts) > 1 or 2 * self.open.unwritten_bytes >= self._part_bytes:
                yield self._finish_group()
        if self.open.sources:
            yield self._finish_group()

    def _finish_group(self) -> Group:
        finished, self.open = self.open, Group()
        return finished

    async def _collect_keys(self) -> None:
        for segment in self._dirty:
            if not await self._collect_keys_of(segment):
                assert self._scan.end_offset is not None
                self.end_offset = self._scan.end_offset
                break
        dirty_offset = self._dirty[0].base_offset
        marks = await asyncio.to_thread(self._scan.marks, dirty_offset, self.end_offset, self._producers)
        self._sweep = BatchSweep(
            self._scan,
            marks,
            log_start=self._partition.log_start_offset,
            dirty_offset=dirty_offset,
            end_offset=self.end_offset,
            aborted=self._aborted,
            producers=self._producers,
            now_ms=self._clock.time_ms(),
            delete_retention_ms=self._partition.policy.delete_retention_ms,
        )

    async def _collect_keys_of(self, segment: SegmentRef) -> bool:
        """False if there is no room for more keys."""
        async with aclosing(self._windows(segment, lambda _base, _last: True)) as windows:
            async for pieces in windows:
                await asyncio.to_thread(self._see, pieces)
                if self._scan.latest.full:
                    return False
        return True

    def _see(self, pieces: Sequence[_Piece]) -> None:
        """In a thread: collect the keys of a window."""
        breathe = _Breathing(self._clock)
        for piece in pieces:
            for batch, header in _batches(piece, self._facts):
                self._scan.see(batch, header)
                if self._scan.latest.full:
                    return
                breathe()

    async def _clean(self, segment: SegmentRef, group: Group) -> None:
        """Go through one segment and add what is left of it to the group."""
        assert self._sweep is not None
        seen = 0
        async with aclosing(self._windows(segment, self._may_keep)) as windows:
            async for pieces in windows:
                seen += sum(len(piece.stored) for piece in pieces)
                await asyncio.to_thread(self._judge, pieces, group)
                if group.unwritten_bytes >= SEGMENT_BYTES and len(group.parts) > 1:
                    await self._write(self._partition, group.parts[:-1])  # The last one is not full yet.
        if seen != segment.size_bytes:
            group.changed = True  # Some of it was not even read.

    def _may_keep(self, base_offset: int, last_offset: int) -> bool:
        assert self._sweep is not None
        return last_offset >= self.end_offset or self._sweep.may_keep(base_offset, last_offset)

    def _judge(self, pieces: Sequence[_Piece], group: Group) -> None:
        """In a thread: decide on the batches of a window."""
        assert self._sweep is not None
        judge, end_offset = self._sweep.judge, self.end_offset
        breathe = _Breathing(self._clock)
        part = group.parts[-1]
        for piece in pieces:
            for batch, header in _batches(piece, self._facts):
                beyond = header.base_offset >= end_offset
                if beyond:
                    outcome = Outcome(batch, True, header.max_timestamp if header.record_count else -1)
                else:
                    outcome = judge(batch, header)
                group.changed = group.changed or outcome.changed
                if outcome.batch is not None:
                    if part.data and (
                        len(part.data) + len(outcome.batch) > self._part_bytes
                        # What is still dirty begins a segment of its own.
                        or (beyond and part.extents.last_offsets[-1] < end_offset)
                    ):
                        part = Part()
                        group.parts.append(part)
                    part.add(header, outcome)
                breathe()

    async def _windows(
        self, segment: SegmentRef, wanted: Callable[[int, int], bool]
    ) -> AsyncGenerator[list[_Piece], None]:
        """The wanted extents of a segment, some at a time."""
        extents = await self._reader.index(segment)
        start = 0
        while start < len(extents):
            if self._partition.closed:
                raise AbandonedError
            if not wanted(extents.base_offsets[start], extents.last_offsets[start]):
                start += 1
                if start % _STEP_EXTENTS == 0:
                    await asyncio.sleep(0)
                continue
            end, size = start, 0
            while (
                end < len(extents)
                and (end == start or size + extents.lengths[end] <= WINDOW_BYTES)
                and wanted(extents.base_offsets[end], extents.last_offsets[end])
            ):
                size += extents.lengths[end]
                end += 1
            yield await self._read(segment, extents.slice(start, end))
            start = end

    async def _read(self, segment: SegmentRef, extents: Extents) -> list[_Piece]:
        pieces: list[_Piece] = []
        for planned in plan_ranges(extents, 0, _NO_LIMIT, _NO_LIMIT):
            await self._spend(planned.length)
            self.bytes_read += planned.length
            stored = memoryview(await self._reader.fetch(segment.key, planned.position, planned.length))
            for piece in planned.pieces:
                at = len(pieces)
                view = stored[piece.start : piece.start + piece.length]
                pieces.append(_Piece(view, extents.base_offsets[at], extents.last_offsets[at]))
        return pieces


def _span_ms_max(policy: LogPolicy) -> int:
    """How much time a cleaned segment may cover. Where old records are deleted, they are in whole segments;
    elsewhere only size counts, because segment.ms is often set low to have records compacted early."""
    if not policy.delete or policy.retention_ms == UNLIMITED:
        return _NO_LIMIT
    return max(policy.segment_ms, policy.retention_ms // _SEGMENTS_PER_RETENTION)


def _batches(piece: _Piece, facts: Facts) -> Iterator[tuple[memoryview, BatchHeader]]:
    """The batches of an extent, which must be those that the index promises: whatever is passed over here is
    gone from the log afterwards."""
    stored = piece.stored
    at, next_offset = 0, piece.base_offset
    while at < len(stored):
        try:
            header = check_batch(stored, at)
        except BatchError as error:
            raise DamagedObjectError(f"the batch at offset {next_offset}: {error}") from error
        problem = facts.problem(header, next_offset, piece.last_offset)
        if problem is not None:
            raise DamagedObjectError(f"from offset {next_offset} on: {problem}")
        yield stored[at : at + header.size], header
        at += header.size
        next_offset = header.last_offset + 1


def share_interpreter() -> None:
    """Let the event loop have the interpreter soon when it wants it: once compaction runs, it competes."""
    sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_SECONDS))


class _Breathing:
    """Called after each batch: rests now and then, the longer the more the thread had to wait itself."""

    __slots__ = ("_clock", "_since")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()

    def __call__(self) -> None:
        took = self._clock.monotonic() - self._since
        if took >= _WORK_SECONDS:
            time.sleep(min(took * _REST_SHARE, _REST_SECONDS_MAX))
            self._since = self._clock.monotonic()
