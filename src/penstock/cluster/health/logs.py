"""Checks write-ahead logs: those that partitions still need.

A sealed log must be whole up to its agreed end. Only the writer of an open log knows its end: bytes there
that are no flush, with nothing behind them, are a flush that was cut short or is being written just now. But
if a whole flush of a later number follows, the bytes before it were acknowledged, and are hurt.

Where nobody waits for the disk, a loss of power takes what was not settled: that is torn, not hurt (`torn`).

Flushes are numbered and batches have offsets. So missing ones are known by their neighbours, even if the
bytes that would name them are gone.
"""

import asyncio
import itertools
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from penstock.cluster.health.bench import STRETCH_BYTES, Bench
from penstock.cluster.health.findings import FLUSH, LOG_FILE, LOGGED_BATCH, RECORDS, TORN, Finding
from penstock.cluster.health.flushes import (
    FlushAt,
    Window,
    find_flush,
    read_flush,
    salvage_flush,
)
from penstock.cluster.health.torn import TornFlushes, torn_flushes
from penstock.cluster.leases import lease_key
from penstock.log.checking import logged_problem
from penstock.log.flush import (
    FILE_HEADER_SIZE,
    FLUSH_HEADER_SIZE,
    FlushedBatch,
    FlushError,
    decode_file_header,
    iter_blocks,
)
from penstock.log.salvage import mended_file_header
from penstock.metadata.image import PartitionKey, WalRef
from penstock.storage.stores.objects import ObjectMissingError, StoreError
from penstock.storage.wal.objects import SEAL
from penstock.storage.wal.port import NAME_DIGITS, SEAL_BYTES_MAX, WAL_PREFIX
from penstock.wire.buffers import Buffer

Span = tuple[int, int]

_TORN_REASON: Final = "torn, as a power cut leaves it with durability=os"
_INLINE_BYTES: Final = 64 * 1024
_PAUSE_SECONDS: Final = 0.2
"""A writer that was seen in the middle of a flush has finished it by then, or has died."""


class Need(NamedTuple):
    """A partition that needs a log, and from which offset on."""

    topic: str
    partition: int
    start: int


class LogFinding(NamedTuple):
    finding: Finding
    flush: int
    """The number of the last flush that it is about."""
    key: PartitionKey | None = None


class Logged(NamedTuple):
    """A batch in a flush that somebody needs."""

    need: Need
    key: PartitionKey
    batch: FlushedBatch


class Walk:
    """The contents of one log, and the damage in it."""

    def __init__(self, wal: WalRef, start: int, end: int | None, needs: Mapping[PartitionKey, Need]) -> None:
        """`end`: its agreed number of flushes; None while it is open."""
        self.wal = wal
        self.start = start
        self.end = end
        self.needs = needs
        self.prefix = f"{WAL_PREFIX}{wal.broker}/{wal.epoch}/"
        self.findings: list[LogFinding] = []
        self.seen = start
        """The number behind the last flush that was seen."""
        self.torn: TornFlushes = {}
        self._spans: dict[PartitionKey, list[Span]] = {}

    def holds(self, key: PartitionKey, start: int, end: int) -> None:
        spans = self._spans.setdefault(key, [])
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))

    def spans(self, key: PartitionKey) -> Sequence[Span]:
        """The offsets that the log has of a partition, in their order."""
        return sorted(self._spans.get(key, ()))

    def lost(
        self, key: str, first: int, last: int, reason: str, position: int = -1, length: int = -1
    ) -> None:
        is_torn = all(number in self.torn for number in range(first, last + 1))
        kind, reason = (TORN, _TORN_REASON) if is_torn else (FLUSH, reason)
        what = f"flush {first}" if first == last else f"flushes {first} to {last}"
        self.findings.append(LogFinding(Finding(kind, key, f"{what}: {reason}", position, length), last))

    def require(self, said: int) -> None:
        """An open log has as many flushes as its broker said to be durable before it was walked over."""
        if self.end is None and self.seen < said:
            reason = f"it is not there, and {lease_key(self.wal.broker)} says that it was durable"
            self.lost(self.prefix, self.seen, said - 1, reason)

    def is_torn(self, flush: int, position: int) -> bool:
        """Whether a loss of power took the batch at a position of a flush."""
        return flush in self.torn and position not in self.torn[flush]

    def needed(self, flush: FlushAt) -> Iterator[Logged]:
        for block in iter_blocks(flush.blocks):
            key = (block.topic_id, block.partition)
            need = self.needs.get(key)
            if need is not None:
                for batch in block.batches():
                    if batch.header.last_offset >= need.start:
                        yield Logged(need, key, batch)


class LogCheck:
    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    async def works(self, walk: Walk) -> list[Callable[[], Awaitable[None]]]:
        """What is to be done to walk over one log. Each may be done beside the others."""
        try:
            found = {info.key: info.size async for info in self._bench.store.list(walk.prefix)}
        except StoreError as error:
            self._bench.unread(walk.prefix, error)
            return []
        names = ((key.rpartition("/")[2], size) for key, size in found.items())
        sizes = {int(name): size for name, size in names if name.isdecimal() and len(name) == NAME_DIGITS}
        self._bench.planned_bytes += sum(sizes.values())
        if self._bench.store.local is not None:
            return [partial(self._guarded, walk, walk.prefix, partial(self._walk_files, walk, sizes))]
        return list(self._object_works(walk, sizes))

    async def _guarded(self, walk: Walk, key: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except ObjectMissingError as error:
            # Deleted since it was listed. If it is needed still, another look tells.
            walk.lost(key, walk.start, walk.start, f"it is gone: {error}")
        except StoreError as error:
            self._bench.unread(key, error)

    # Files of many flushes.

    async def _walk_files(self, walk: Walk, sizes: Mapping[int, int]) -> None:
        assert self._bench.store.local is not None
        walk.torn = await torn_flushes(self._bench.store.local, walk.wal, walk.end)
        firsts = sorted(sizes)
        firsts = firsts[max(bisect_right(firsts, walk.start) - 1, 0) :]
        begin = firsts[0] if firsts else walk.end
        if begin is not None and begin > walk.start:
            last = begin - 1 if walk.end is None else min(begin, walk.end) - 1
            walk.lost(walk.prefix, walk.start, last, "the file is not there")
        for first, following in itertools.zip_longest(firsts, firsts[1:]):
            if walk.end is not None and first >= walk.end:
                break
            stops = [stop for stop in (following, walk.end) if stop is not None]
            await self._walk_file(walk, first, sizes[first], min(stops, default=None))

    async def _walk_file(self, walk: Walk, first: int, size: int, stop: int | None) -> None:
        """`stop`: the flush before which this file ends; None if only the writer knows."""
        window = Window(self._bench, f"{walk.prefix}{first:020d}", size)
        nonce = await self._nonce(walk, window, first, stop)
        position, number = FILE_HEADER_SIZE, first
        while stop is None or number < stop:
            flush = await read_flush(window, position, number, nonce)
            if flush is None:
                flush = await self._broken(walk, window, position, number, nonce, stop)
            if flush is None:
                return
            await self._check_flush(walk, window, flush)
            nonce = flush.header.nonce
            position, number = flush.position + flush.header.size, flush.header.number + 1

    async def _nonce(self, walk: Walk, window: Window, first: int, stop: int | None) -> bytes | None:
        """What the flushes of a file repeat; None if the file's header does not tell."""
        stored = await window.bytes(0, FILE_HEADER_SIZE)
        self._bench.count(window.key, len(stored))
        try:
            header = decode_file_header(stored)
            if header.first_flush == first:
                return header.nonce
            problem = f"the file says that it begins with flush {header.first_flush}"
        except FlushError as error:
            problem = str(error)
        if window.size <= FILE_HEADER_SIZE and stop is None:
            return None  # Begun a moment ago.
        kind, problem = (TORN, _TORN_REASON) if walk.torn and not any(stored) else (LOG_FILE, problem)
        finding = Finding(kind, window.key, problem, 0, FILE_HEADER_SIZE)
        walk.findings.append(LogFinding(finding, first if stop is None else stop - 1))
        corrected = mended_file_header(stored, first)
        return corrected.nonce if corrected is not None else None

    async def _broken(
        self, walk: Walk, window: Window, position: int, number: int, nonce: bytes | None, stop: int | None
    ) -> FlushAt | None:
        """No whole flush `number` begins here. What it was before a bit was flipped, or the next one that is
        whole; None if there is none."""
        following = await find_flush(window, position + 1, number, nonce)
        end = following.position if following is not None else window.size
        flush = await salvage_flush(window, position, end, number, nonce)
        if flush is None and following is None and stop is None:
            return None  # Cut short, or being written.
        if walk.end is None:
            await asyncio.sleep(_PAUSE_SECONDS)
            window.forget()
            again = await read_flush(window, position, number, nonce)
            if again is not None:
                return again
        if flush is not None:
            self._hurt(walk, window.key, flush)
            return flush
        if following is not None:
            last, until = following.header.number - 1, following.position
        else:
            assert stop is not None
            last, until = stop - 1, window.size
        walk.lost(window.key, number, last, "what is there is no flush", position, max(0, until - position))
        return following

    def _hurt(self, walk: Walk, key: str, flush: FlushAt) -> None:
        """A flush that can be read once its header or index is corrected."""
        reason = f"the header or the index of flush {flush.header.number} is hurt, and can be corrected"
        place = (flush.position, FLUSH_HEADER_SIZE)
        spans: dict[PartitionKey, tuple[Need, int, int]] = {}
        for need, key_of, batch in walk.needed(flush):
            _need, start, _end = spans.get(key_of, (need, batch.header.base_offset, 0))
            spans[key_of] = (need, start, batch.header.last_offset + 1)
        for key_of, (need, start, end) in spans.items():
            finding = Finding(FLUSH, key, reason, *place, need.topic, need.partition, start, end)
            walk.findings.append(LogFinding(finding, flush.header.number, key_of))
        if not spans:
            walk.findings.append(LogFinding(Finding(FLUSH, key, reason, *place), flush.header.number))

    # Objects of one flush each.

    def _object_works(self, walk: Walk, sizes: Mapping[int, int]) -> Iterator[Callable[[], Awaitable[None]]]:
        number = walk.start
        while walk.end is None or number < walk.end:
            # Object 0 begins the log, so flush n is object n + 1.
            size = sizes.get(number + 1)
            if size is None or (walk.end is None and size <= SEAL_BYTES_MAX):
                if walk.end is None:
                    return
                walk.lost(f"{walk.prefix}{number + 1:020d}", number, number, "the object is not there")
            else:
                window = Window(self._bench, f"{walk.prefix}{number + 1:020d}", size)
                work = partial(self._walk_object, walk, window, number)
                yield partial(self._guarded, walk, window.key, work)
            number += 1
        seal = f"{walk.prefix}{number + 1:020d}"
        yield partial(self._guarded, walk, seal, partial(self._check_seal, walk, seal, number))

    async def _walk_object(self, walk: Walk, window: Window, number: int) -> None:
        flush = await read_flush(window, 0, number, None)
        if flush is None:
            flush = await salvage_flush(window, 0, window.size, number, None)
            if flush is None:
                walk.lost(window.key, number, number, "what is there is no flush", 0, window.size)
                return
            self._hurt(walk, window.key, flush)
        if flush.header.size != window.size:
            reason = f"the object has {window.size} bytes, and the flush {flush.header.size}"
            walk.lost(window.key, number, number, reason, 0, window.size)
        await self._check_flush(walk, window, flush)

    async def _check_seal(self, walk: Walk, key: str, number: int) -> None:
        stored = await self._bench.store.get(key)
        self._bench.count(key, len(stored or b""))
        if stored != SEAL:
            walk.lost(key, number, number, "the seal is not there" if stored is None else "this is no seal")

    # Batches.

    async def _check_flush(self, walk: Walk, window: Window, flush: FlushAt) -> None:
        self._bench.count(window.key, flush.header.size)
        walk.seen = max(walk.seen, flush.header.number + 1)
        if flush.header.number < walk.start:
            return
        for together in _side_by_side(walk.needed(flush)):
            for _need, key, batch in together:
                walk.holds(key, batch.header.base_offset, batch.header.last_offset + 1)
            start = together[0].batch.position
            length = together[-1].batch.position + together[-1].batch.header.size - start
            hurt = await self._hurt_batches(window, flush.position + start, length, together)
            if hurt and walk.end is None:
                await asyncio.sleep(_PAUSE_SECONDS)
                window.forget()
                hurt = await self._hurt_batches(window, flush.position + start, length, together)
            totals = self._bench.report.totals
            totals.batches += len(together) - len(hurt)
            totals.records += sum(one.batch.header.record_count for one in together)
            for one, problem in hurt:
                header = one.batch.header
                totals.records -= header.record_count
                place = (flush.position + one.batch.position, header.size, one.need.topic, one.need.partition)
                span = (header.base_offset, header.last_offset + 1)
                is_torn = walk.is_torn(flush.header.number, one.batch.position)
                kind, reason = (TORN, _TORN_REASON) if is_torn else (LOGGED_BATCH, problem)
                finding = Finding(kind, window.key, reason, *place, *span)
                walk.findings.append(LogFinding(finding, flush.header.number, one.key))

    async def _hurt_batches(
        self, window: Window, position: int, length: int, together: Sequence[Logged]
    ) -> list[tuple[Logged, str]]:
        stored = await window.bytes(position, length)
        if len(stored) <= _INLINE_BYTES:
            return check_logged(stored, together)
        return await self._bench.check(check_logged, stored, together)


def check_logged(stored: Buffer, together: Sequence[Logged]) -> list[tuple[Logged, str]]:
    """Those batches that are hurt, and why. They lie side by side from the beginning of `stored` on."""
    found = []
    first = together[0].batch.position
    view = memoryview(stored)
    for one in together:
        reason = logged_problem(view[one.batch.position - first :], one.batch.header)
        if reason is not None:
            found.append((one, reason))
    return found


def _side_by_side(batches: Iterable[Logged]) -> Iterator[list[Logged]]:
    """Batches that lie one after the other, to be read in one go."""
    together: list[Logged] = []
    end = size = 0
    for one in batches:
        position, length = one.batch.position, one.batch.header.size
        if together and (position != end or size + length > STRETCH_BYTES):
            yield together
            together, size = [], 0
        together.append(one)
        end = position + length
        size += length
    if together:
        yield together


def missing_records(key: PartitionKey, need: Need, walks: Sequence[Walk]) -> Iterator[LogFinding]:
    """What is missing of a partition between what its logs hold. They come in the order of `wals`."""
    expected = need.start
    torn = False
    for walk in walks:
        # A flush that is lost in another way is told by itself.
        torn = torn or bool(walk.torn)
        for start, end in walk.spans(key):
            if start > expected:
                kind, reason = RECORDS, "no log holds these records, and later ones are there"
                if torn:
                    kind, reason = TORN, _TORN_REASON
                place = (-1, -1, need.topic, need.partition, expected, start)
                yield LogFinding(Finding(kind, walk.prefix, reason, *place), 1 << 62, key)
            expected = max(expected, end)
