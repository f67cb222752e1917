"""Finds other whole copies of batches, in write-ahead logs and segments that are not deleted yet.

Settling, merging and compaction write new objects and leave the old ones for a while. So a batch that is hurt
in one is often whole in another. A copy is taken only if it is surely the same batch: it matches its CRC, its
offsets are the wanted ones, and its leader epoch is the one in the partition's table of epochs. A batch that
a fenced leader wrote and never acknowledged has another epoch.
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from penstock.cluster.health.bench import Bench
from penstock.cluster.health.flushes import Window, any_flush
from penstock.cluster.health.logs import Span
from penstock.log.checking import Facts, Whole, check_extent
from penstock.log.extents import Extent, Extents, ExtentsError
from penstock.log.flush import FILE_HEADER_SIZE, FlushError, iter_blocks
from penstock.log.segment import PieceRef
from penstock.metadata.image import PartitionKey
from penstock.storage.reader.footers import read_footer
from penstock.storage.settling.segment_writer import SEGMENT_PREFIX
from penstock.storage.stores.objects import StoreError
from penstock.storage.wal.port import SEAL_BYTES_MAX, WAL_PREFIX
from penstock.wire.batch import check_batch
from penstock.wire.errors import BatchError


class Copy(NamedTuple):
    """A batch whose header says that it is the wanted one. It is not known yet whether it is whole."""

    key: str
    position: int
    size: int
    last_offset: int


class Found(NamedTuple):
    """Whole batches that fill a range of offsets, and where they were found."""

    batches: list[bytes]
    keys: list[str]


class Run(NamedTuple):
    """Offsets from `start` up to, not including, `end`, and what fills them, if it was found."""

    start: int
    end: int
    found: Found | None


class Sources:
    def __init__(self, bench: Bench, wanted: Mapping[PartitionKey, Iterable[Span]]) -> None:
        self._bench = bench
        self._wanted = {key: list(spans) for key, spans in wanted.items()}
        self._copies: dict[PartitionKey, dict[int, list[Copy]]] = {}
        """By partition and base offset."""

    async def look(self) -> None:
        """Learn where copies are. What cannot be read has none."""
        works: list[Callable[[], Awaitable[None]]] = []
        async for info in self._bench.store.list(WAL_PREFIX):
            name = info.key.rpartition("/")[2]
            if name.isdecimal() and info.size > SEAL_BYTES_MAX:
                window = Window(self._bench, info.key, info.size)
                works.append(partial(self._look_at_log, window, int(name)))
        async for info in self._bench.store.list(SEGMENT_PREFIX):
            works.append(partial(self._look_at_segment, info.key, info.size))

        async def tolerant(work: Callable[[], Awaitable[None]]) -> None:
            with contextlib.suppress(StoreError, FlushError, ExtentsError):
                await work()

        await self._bench.at_once(partial(tolerant, work) for work in works)

    def _is_wanted(self, key: PartitionKey, start: int, end: int) -> bool:
        return any(start < stop and begin < end for begin, stop in self._wanted.get(key, ()))

    def _add(self, key: PartitionKey, base_offset: int, copy: Copy) -> None:
        if self._is_wanted(key, base_offset, copy.last_offset + 1):
            self._copies.setdefault(key, {}).setdefault(base_offset, []).append(copy)

    async def _look_at_log(self, window: Window, name: int) -> None:
        in_file = self._bench.store.local is not None
        position = FILE_HEADER_SIZE if in_file else 0
        number = name if in_file else name - 1
        flush = await any_flush(window, position, number, None, in_file=in_file)
        while flush is not None:
            for block in iter_blocks(flush.blocks):
                key = (block.topic_id, block.partition)
                if key in self._wanted:
                    for header, at, _control in block.batches():
                        copy = Copy(window.key, flush.position + at, header.size, header.last_offset)
                        self._add(key, header.base_offset, copy)
            if not in_file:
                return
            number, nonce = flush.header.number, flush.header.nonce
            position = flush.position + flush.header.size
            flush = await any_flush(window, position, number + 1, nonce, in_file=True)

    async def _look_at_segment(self, key: str, size: int) -> None:
        footer = await read_footer(self._bench.read, key, size)
        for piece in footer.pieces:
            if self._is_wanted((piece.topic_id, piece.partition), piece.base_offset, piece.end_offset):
                await self._look_at_piece(key, piece)

    async def _look_at_piece(self, key: str, piece: PieceRef) -> None:
        owner = (piece.topic_id, piece.partition)
        stored = await self._bench.read(key, piece.index_start, piece.index_length)
        wanted = Extents()
        for extent in _each(Extents.decode(stored)):
            if self._is_wanted(owner, extent.base_offset, extent.last_offset + 1):
                wanted.append(*extent[:5])
        data_key = piece.data_key or key
        anything = Facts((), 1 << 62)
        for extent in _each(wanted):
            data = await self._bench.read(data_key, extent.position, extent.length)
            for batch in check_extent(data, 0, extent, anything):
                if isinstance(batch, Whole):
                    header = batch.header
                    copy = Copy(data_key, batch.position, header.size, header.last_offset)
                    self._add(owner, header.base_offset, copy)

    async def find(self, key: PartitionKey, start: int, end: int, facts: Facts) -> Found | None:
        """Whole batches that fill the offsets from `start` up to, not including, `end`."""
        runs = await self.runs(key, start, end, facts)
        return runs[0].found if len(runs) == 1 else None

    async def runs(self, key: PartitionKey, start: int, end: int, facts: Facts) -> list[Run]:
        """The same range in pieces: those that whole batches fill, and those of which nothing was found."""
        runs: list[Run] = []
        at = start
        for base in sorted(self._copies.get(key, ())):
            if not at <= base < end:
                continue
            copy, batch = await self._first_whole(key, base, end, facts)
            if copy is None:
                continue
            if at < base:
                runs.append(Run(at, base, None))
            found = runs[-1].found if runs else None
            if found is None:
                runs.append(Run(base, base, found := Found([], [])))
            found.batches.append(batch)
            found.keys.append(copy.key)
            at = copy.last_offset + 1
            runs[-1] = runs[-1]._replace(end=at)
        if at < end:
            runs.append(Run(at, end, None))
        return runs

    async def _first_whole(
        self, key: PartitionKey, base: int, end: int, facts: Facts
    ) -> tuple[Copy, bytes] | tuple[None, bytes]:
        for copy in self._copies[key][base]:
            batch = await self._whole(copy, base, end, facts)
            if batch is not None:
                return copy, batch
        return None, b""

    async def _whole(self, copy: Copy, start: int, end: int, facts: Facts) -> bytes | None:
        try:
            stored = bytes(await self._bench.read(copy.key, copy.position, copy.size))
            header = check_batch(stored)
        except (StoreError, BatchError):
            return None
        if header.size != len(stored) or header.base_offset != start:
            return None
        return stored if facts.problem(header, start, end - 1) is None else None


def _each(extents: Extents) -> Iterable[Extent]:
    return (extents[at] for at in range(len(extents)))
