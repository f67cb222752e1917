"""Makes a hurt piece of a partition whole again, in memory: its batches are whole, corrected, restored or
cut.

The result is the piece's batches in their order, to be written into a new object.

Transactions. The manifest says which were aborted, so that is known whatever happens to batches. But
consumers also need the marker: without it they take the producer's next records for aborted, too. So an abort
marker is never cut out. It is written anew, from the manifest.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

from penstock.cluster.health.bench import Bench
from penstock.cluster.health.flushes import Window, any_flush, find_flush
from penstock.cluster.health.sources import Sources
from penstock.log.checking import Facts, Hurt, Whole, check_extent, correct_batch
from penstock.log.epochs import epoch_at
from penstock.log.extents import Extent, Extents, ExtentsError
from penstock.log.flush import FILE_HEADER_SIZE, iter_blocks
from penstock.log.manifest import SegmentRef
from penstock.log.markers import AbortedTransaction
from penstock.log.producers import ProducerEntry
from penstock.log.segment import PieceRef
from penstock.metadata.image import PartitionKey
from penstock.storage.reader.footers import named_in, place_of, read_footer
from penstock.storage.reader.indexes import disagreement, mended_index
from penstock.storage.stores.objects import DamagedObjectError, ObjectMissingError
from penstock.wire.batch import (
    HEADER_SIZE,
    LENGTH_FROM,
    NO_TIMESTAMP,
    STAMP,
    BatchHeader,
    check_batch,
    iter_records,
    read_header,
)
from penstock.wire.buffers import Buffer
from penstock.wire.errors import BatchError, WireError
from penstock.wire.markers import ABORT, marker_batch


class Part(NamedTuple):
    """A batch, or bytes in which some were and that stay as they are."""

    stored: Buffer
    base_offset: int
    last_offset: int
    max_timestamp: int


class Mended(NamedTuple):
    """The result for one hurt range."""

    start: int
    end: int
    how: str
    """One of the words below."""
    detail: str = ""
    """For a LEFT range: what a person can do, if that is not the usual."""
    hurt: Hurt | None = None
    stored: bytes = b""
    """The hurt bytes, as far as there are any."""


CORRECTED = "corrected"
RESTORED = "restored"
REBUILT = "rebuilt"
MOVED = "moved"
CUT = "cut"
LEFT = "left"

IN_TRANSACTIONS = (
    "Another object has it, but it holds records of transactions, and the state of these was decided without"
    " it. With --cut it is left out."
)
UNCLEAR = (
    "Another object has it as it was before compaction, with records of transactions, and which of these were"
    " aborted is not known any more. With --cut it is left out."
)


class Healed(NamedTuple):
    """A piece, and what was done to it."""

    parts: list[Part]
    mended: list[Mended]


class Mender:
    def __init__(
        self,
        bench: Bench,
        sources: Sources,
        *,
        cut: bool,
        aborted: Sequence[AbortedTransaction] = (),
        producers: Mapping[int, ProducerEntry] = MappingProxyType({}),
    ) -> None:
        """`aborted` and `producers`: those of the partition's manifest."""
        self._bench = bench
        self._sources = sources
        self._cut = cut
        self._aborted = aborted
        self._producers = producers

    async def piece(self, key: PartitionKey, segment: SegmentRef, facts: Facts, log_start: int) -> Healed:
        """The batches of a segment, as many as can be had. Raises StoreError if it cannot be read now."""
        mended: list[Mended] = []
        extents = await self._extents(key, segment, mended)
        if extents is None:
            whole = Hurt(0, 0, max(segment.base_offset, log_start), segment.end_offset, "it is not there")
            parts: list[Part] = []
            await self._mend(key, b"", whole, facts, parts, mended)
            return Healed(parts, mended)
        parts = []
        for extent in extents:
            if extent.last_offset < log_start:
                continue
            stored = memoryview(await self._read(segment.key, extent))
            for batch in check_extent(stored, 0, extent, facts):
                at = batch.position - extent.position
                if isinstance(batch, Whole):
                    header = batch.header
                    latest = min(header.max_timestamp, extent.max_timestamp)
                    span = (header.base_offset, header.last_offset, latest)
                    parts.append(Part(stored[at : at + header.size], *span))
                else:
                    hurt = bytes(stored[at : at + batch.length])
                    await self._mend(key, hurt, batch, facts, parts, mended)
        return Healed(parts, mended)

    async def lost(self, key: PartitionKey, start: int, end: int, facts: Facts) -> Healed:
        """The batches of a range of which nothing is left where it should be: all that are found. The rest of
        it may never have been written, where nobody knows how far the range goes.

        The manifest was written without them. So batches of transactions are not put back: if one was aborted
        there, the manifest does not say so, and if one was ended there, it is open in the manifest."""
        piece = Healed([], [])
        for run in await self._sources.runs(key, start, end, facts):
            if run.found is None:
                hurt = Hurt(0, 0, run.start, run.end, "it is lost")
                await self._mend(key, b"", hurt, facts, piece.parts, piece.mended)
                continue
            at = run.start
            copies = zip(run.found.batches, run.found.keys, strict=True)
            for in_transactions, some in groupby(copies, lambda copy: read_header(copy[0]).is_transactional):
                batches, keys = zip(*some, strict=True)
                hurt = Hurt(0, 0, at, read_header(batches[-1]).last_offset + 1, "it is lost")
                at = hurt.end
                if in_transactions:
                    how, detail = (CUT, "") if self._cut else (LEFT, IN_TRANSACTIONS)
                    piece.mended.append(Mended(hurt.start, hurt.end, how, detail))
                else:
                    piece.mended.append(Mended(hurt.start, hurt.end, RESTORED, _from(keys)))
                    piece.parts.extend(map(_part, batches))
        return piece

    async def _mend(
        self,
        key: PartitionKey,
        stored: bytes,
        hurt: Hurt,
        facts: Facts,
        parts: list[Part],
        mended: list[Mended],
    ) -> None:
        batches = None
        detail = ""
        found = await self._sources.find(key, hurt.start, hurt.end, facts)
        unclear = found is not None and hurt.start < facts.compacted_end and self._is_unclear(found.batches)
        if found is not None and not unclear:
            how, batches, detail = RESTORED, found.batches, _from(found.keys)
        else:
            batches = correct_batches(stored, hurt.start, hurt.end, facts)
            how = CORRECTED if batches is not None else CUT if self._cut else LEFT
            detail = UNCLEAR if unclear and how == LEFT else ""
        mended.append(Mended(hurt.start, hurt.end, how, detail, hurt, stored))
        if batches is not None:
            parts.extend(map(_part, batches))
        elif how == LEFT and stored:
            parts.append(Part(stored, hurt.start, hurt.end - 1, -1))
        elif how == CUT:
            self._write_markers(hurt, facts, parts, mended)

    def _is_unclear(self, batches: Sequence[bytes]) -> bool:
        """Whether batches from before compaction hold records of transactions that the manifest does not list
        as aborted. It forgets those whose records compaction took out."""
        for header in map(read_header, batches):
            listed = any(
                one.producer_id == header.producer_id
                and one.first_offset <= header.base_offset <= one.last_offset
                for one in self._aborted
            )
            if header.is_transactional and not header.is_control and not listed:
                return True
        return False

    def _write_markers(self, hurt: Hurt, facts: Facts, parts: list[Part], mended: list[Mended]) -> None:
        """Write the abort markers of a range that is cut out anew."""
        for one in self._aborted:
            offset = one.last_offset
            if hurt.start <= offset < hurt.end:
                entry = self._producers.get(one.producer_id)
                batch = marker_batch(ABORT, one.producer_id, entry.epoch if entry else 0, 0, NO_TIMESTAMP)
                length = len(batch) - LENGTH_FROM
                STAMP.pack_into(batch, 0, offset, length, max(epoch_at(facts.epochs, offset), 0))
                parts.append(Part(batch, offset, offset, NO_TIMESTAMP))
                mended.append(Mended(offset, offset + 1, REBUILT, "an abort marker, from the manifest"))

    async def _read(self, key: str, extent: Extent) -> Buffer:
        """Zeros for what an object that was cut short does not have."""
        try:
            return await self._bench.read(key, extent.position, extent.length)
        except ObjectMissingError:
            size = await self._bench.store.size(key) or 0
            there = max(0, min(extent.length, size - extent.position))
            part = bytes(await self._bench.read(key, extent.position, there)) if there else b""
            return part + bytes(extent.length - there)

    # The index.

    async def _extents(
        self, key: PartitionKey, segment: SegmentRef, mended: list[Mended]
    ) -> Sequence[Extent] | None:
        """Where the batches lie: by the index, or by looking. None if the object is gone or does not tell."""
        if await self._bench.store.size(segment.key) is None:
            return None
        span = (segment.base_offset, segment.end_offset)
        try:
            stored = await self._bench.read(segment.index_key, segment.index_start, segment.index_length)
        except ObjectMissingError:
            stored = b""
        if await self._is_of_others(key, segment):
            if segment.index_key == segment.key:
                return None
            stored = b""
        try:
            extents = Extents.decode(stored)
            if disagreement(segment, extents) is None:
                return list(_each(extents))
        except ExtentsError:
            pass
        corrected = mended_index(stored, segment)
        if corrected is not None:
            mended.append(Mended(*span, CORRECTED, "a byte of the index"))
            return list(_each(corrected))
        rebuilt = Mended(*span, REBUILT, "the index, from the batches")
        if segment.index_key != segment.key:
            mended.append(rebuilt)
            return list(_each(await self._extents_of_log(key, segment)))
        start = await self._start(segment)
        if start is None:
            start = await self._only_start(segment)
        if start is None:
            return None
        mended.append(rebuilt)
        # As if all lay in one extent: whole batches are found one after the other.
        return [Extent(segment.base_offset, segment.end_offset - 1, 1 << 62, start, segment.size_bytes)]

    async def _is_of_others(self, key: PartitionKey, segment: SegmentRef) -> bool:
        """Whether another object lies where the index of a segment should: its footer is whole, and does not
        name the segment."""
        size = await self._bench.store.size(segment.index_key)
        try:
            footer = await read_footer(self._bench.read, segment.index_key, size or 0)
        except (DamagedObjectError, ObjectMissingError):
            return False
        return place_of(key, segment) not in named_in(footer)

    async def _start(self, segment: SegmentRef) -> int | None:
        """Where a piece of an object begins: behind those that the footer names before it."""
        size = await self._bench.store.size(segment.key)
        assert size is not None
        try:
            footer = await read_footer(self._bench.read, segment.key, size)
            start = 0
            for piece in footer.pieces:
                if piece.index_start == segment.index_start:
                    return start
                start = await self._end(Window(self._bench, segment.key, size), start, piece)
        except (DamagedObjectError, BatchError, ObjectMissingError):
            pass
        return None

    async def _only_start(self, segment: SegmentRef) -> int | None:
        """Where a piece begins, if there is one place only at which one of its size and offsets does."""
        size = await self._bench.store.size(segment.key)
        window = Window(self._bench, segment.key, size or 0)
        bases: dict[int, int] = {}
        found: list[int] = []
        position = 0
        while position < segment.index_start:
            stored = await window.bytes(position, HEADER_SIZE)
            if len(stored) < HEADER_SIZE or not HEADER_SIZE <= read_header(stored).size <= window.size:
                break
            header = read_header(stored)
            bases[position] = header.base_offset
            position += header.size
            start = position - segment.size_bytes
            if header.last_offset + 1 == segment.end_offset and bases.get(start) == segment.base_offset:
                found.append(start)
        return found[0] if len(found) == 1 else None

    async def _end(self, window: Window, position: int, piece: PieceRef) -> int:
        """Where a piece ends that begins at a position: by its index, or by its batches. BatchError if
        neither tells."""
        try:
            stored = await window.bytes(piece.index_start, piece.index_length)
            return position + Extents.decode(stored).total_bytes()
        except ExtentsError:
            pass
        while True:
            size = read_header(await window.bytes(position, HEADER_SIZE)).size
            header = check_batch(await window.bytes(position, size))
            position += header.size
            if header.last_offset + 1 >= piece.end_offset:
                return position

    async def _extents_of_log(self, key: PartitionKey, segment: SegmentRef) -> Extents:
        """Of a write-ahead file that became a segment: its flushes tell."""
        size = await self._bench.store.size(segment.key)
        window = Window(self._bench, segment.key, size or 0)
        found = Extents()
        flush = await find_flush(window, FILE_HEADER_SIZE, -1, None)
        while flush is not None:
            for block in iter_blocks(flush.blocks):
                for header, at, _control in block.batches():
                    inside = segment.base_offset <= header.base_offset < segment.end_offset
                    if inside and (block.topic_id, block.partition) == key:
                        span = (header.base_offset, header.last_offset, header.max_timestamp)
                        found.append(*span, flush.position + at, header.size)
            number, nonce = flush.header.number, flush.header.nonce
            position = flush.position + flush.header.size
            flush = await any_flush(window, position, number + 1, nonce, in_file=True)
        return found


def _part(batch: bytes) -> Part:
    header = read_header(batch)
    return Part(batch, header.base_offset, header.last_offset, header.max_timestamp)


def _from(keys: Sequence[str]) -> str:
    return "from " + ", ".join(dict.fromkeys(keys))


def correct_batches(stored: bytes, start: int, end: int, facts: Facts) -> list[bytes] | None:
    """The batches that fill hurt bytes, if each is whole but for one bit."""
    if len(stored) < HEADER_SIZE:
        return None

    def fits(header: BatchHeader) -> bool:
        return facts.problem(header, start, end - 1) is None

    def fills(header: BatchHeader) -> bool:
        # Where compaction has been, what follows may begin later.
        return fits(header) and (header.last_offset + 1 == end or end <= facts.compacted_end)

    batch = correct_batch(stored, fills)
    if batch is not None:
        return [batch] if _is_readable(batch) else None
    size = read_header(stored).size
    if not HEADER_SIZE <= size <= len(stored) - HEADER_SIZE:
        return None
    first = correct_batch(stored[:size], fits)
    if first is None or not _is_readable(first):
        return None
    rest = correct_batches(stored[size:], read_header(first).last_offset + 1, end, facts)
    return None if rest is None else [first, *rest]


def _is_readable(batch: bytes) -> bool:
    try:
        return sum(1 for _ in iter_records(batch)) == read_header(batch).record_count
    except WireError:
        return False


def _each(extents: Extents) -> Iterator[Extent]:
    return (extents[at] for at in range(len(extents)))
