"""Checks settled records: the index of each piece, and every batch that it points to.

A piece is the records of one partition in one segment object. The check skips records below the log start:
nobody can read them.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.cluster.health.bench import STRETCH_BYTES, Bench
from penstock.cluster.health.findings import BATCH, FOOTER, INDEX, SEGMENT, Finding
from penstock.log.checking import Facts, Hurt, check_extent
from penstock.log.extents import Extent, Extents, ExtentsError
from penstock.log.manifest import Manifest, SegmentRef
from penstock.log.segment import TRAILER_SIZE
from penstock.metadata.image import PartitionInfo
from penstock.storage.reader.footers import named_in, place_of, read_footer
from penstock.storage.reader.indexes import disagreement
from penstock.storage.stores.objects import DamagedObjectError, ObjectMissingError, StoreError
from penstock.wire.buffers import Buffer


class Piece(NamedTuple):
    topic: str
    topic_id: bytes
    partition: int
    segment: SegmentRef

    def finding(self, what: str, key: str, reason: str, hurt: Hurt | None = None) -> Finding:
        """Of a part of the piece, or of all its records."""
        if hurt is None:
            span = (self.segment.base_offset, self.segment.end_offset)
            return Finding(what, key, reason, -1, -1, self.topic, self.partition, *span)
        place = (hurt.position, hurt.length, self.topic, self.partition, hurt.start, hurt.end)
        return Finding(what, key, reason, *place)


class Checked(NamedTuple):
    batches: int
    records: int
    hurt: list[Hurt]


def facts_of(manifest: Manifest) -> Facts:
    return Facts(manifest.epochs, manifest.compacted_end)


async def check_piece(bench: Bench, piece: Piece, info: PartitionInfo, manifest: Manifest) -> list[Finding]:
    """What is hurt of a piece. What could not be read is noted on the bench."""
    segment = piece.segment
    try:
        extents = await read_index(bench, segment)
    except ObjectMissingError as error:
        return [piece.finding(INDEX, segment.index_key, f"the index is not there: {error}")]
    except ExtentsError as error:
        return [_at(piece.finding(INDEX, segment.index_key, str(error)), segment)]
    except StoreError as error:
        bench.unread(segment.index_key, error)
        return []
    problem = disagreement(segment, extents) or _disorder(extents)
    if problem is not None:
        return [_at(piece.finding(INDEX, segment.index_key, problem), segment)]
    facts = facts_of(manifest)
    found: list[Finding] = []
    for stretch in stretches(extents, info.log_start):
        try:
            stored = await _read_stretch(bench, segment.key, stretch)
        except ObjectMissingError:
            return [piece.finding(SEGMENT, segment.key, "the object is not there")]
        except StoreError as error:
            bench.unread(segment.key, error)
            continue
        checked = await bench.check(check_stretch, stored, stretch, facts)
        bench.report.totals.batches += checked.batches
        bench.report.totals.records += checked.records
        found += (piece.finding(BATCH, segment.key, hurt.reason, hurt) for hurt in checked.hurt)
    return found


def _at(finding: Finding, segment: SegmentRef) -> Finding:
    place = (segment.index_start, segment.index_length)
    return Finding(finding.what, finding.key, finding.reason, *place, finding.topic, finding.partition,
                   finding.start, finding.end)  # fmt: skip


async def read_index(bench: Bench, segment: SegmentRef) -> Extents:
    return Extents.decode(await bench.read(segment.index_key, segment.index_start, segment.index_length))


def _disorder(extents: Extents) -> str | None:
    following = zip(extents.last_offsets, extents.base_offsets[1:], strict=False)
    if any(last >= base for last, base in following):
        return "the offsets in the index do not grow"
    return None


def stretches(extents: Extents, log_start: int) -> Iterator[list[Extent]]:
    """Extents that lie side by side, to be read in one go."""
    together: list[Extent] = []
    size = 0
    for at in range(extents.find(log_start), len(extents)):
        extent = extents[at]
        last = together[-1] if together else None
        if last is not None and (
            last.position + last.length != extent.position or size + extent.length > STRETCH_BYTES
        ):
            yield together
            together, size = [], 0
        together.append(extent)
        size += extent.length
    if together:
        yield together


async def _read_stretch(bench: Bench, key: str, stretch: Sequence[Extent]) -> Buffer:
    """The bytes of a stretch; zeros for those that an object which was cut short does not have."""
    start = stretch[0].position
    length = stretch[-1].position + stretch[-1].length - start
    try:
        return await bench.read(key, start, length)
    except ObjectMissingError:
        size = await bench.store.size(key)
        if size is None:
            raise
        there = max(0, min(length, size - start))
        part = bytes(await bench.read(key, start, there)) if there else b""
        return part + bytes(length - there)


def check_stretch(stored: Buffer, stretch: Sequence[Extent], facts: Facts) -> Checked:
    batches = records = 0
    found: list[Hurt] = []
    for extent in stretch:
        for batch in check_extent(stored, extent.position - stretch[0].position, extent, facts):
            if isinstance(batch, Hurt):
                found.append(batch)
            else:
                batches += 1
                records += batch.header.record_count
    return Checked(batches, records, found)


async def check_footer(bench: Bench, key: str, size: int, pieces: Sequence[Piece]) -> list[Finding]:
    """The footer of an object that holds the indexes of these pieces, and maybe of others."""
    try:
        footer = await read_footer(bench.read, key, size)
    except DamagedObjectError as error:
        return [Finding(FOOTER, key, str(error), max(0, size - TRAILER_SIZE), TRAILER_SIZE)]
    except ObjectMissingError as error:
        return [Finding(FOOTER, key, str(error))]
    except StoreError as error:
        bench.unread(key, error)
        return []
    named = named_in(footer)
    return [
        piece.finding(SEGMENT, key, "another object lies in its place: the footer does not name this piece")
        for piece in pieces
        if place_of(piece[1:3], piece.segment) not in named
    ]
