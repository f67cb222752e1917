"""The footer of a segment object: whose records it holds."""

from penstock.log.manifest import SegmentRef
from penstock.log.segment import TRAILER_SIZE, Footer, SegmentError, decode_footer, footer_size
from penstock.metadata.image import PartitionKey
from penstock.storage.stores.objects import DamagedObjectError, ReadRange


async def read_footer(read: ReadRange, key: str, size: int) -> Footer:
    """The footer of the object `key` of `size` bytes: a segment, or the index of an adopted file. Raises
    DamagedObjectError if it is provably not what was written, and other errors of the store."""
    try:
        trailer = await read(key, max(size - TRAILER_SIZE, 0), min(size, TRAILER_SIZE))
        length = footer_size(trailer)
        if length > size:
            raise SegmentError("the footer is larger than the object")
        return decode_footer(await read(key, size - length, length))
    except SegmentError as error:
        raise DamagedObjectError(f"{key}: {error}") from error


Place = tuple[bytes, int, int, int, int, int]
"""Whose records an index is of, from which offset up to which other, and where it lies in its object."""


def place_of(owner: PartitionKey, segment: SegmentRef) -> Place:
    span = (segment.base_offset, segment.end_offset)
    return (*owner, *span, segment.index_start, segment.index_length)


def named_in(footer: Footer) -> set[Place]:
    """The indexes in an object. If a segment's is not one of them, another object lies in its place."""
    return {
        (one.topic_id, one.partition, one.base_offset, one.end_offset, one.index_start, one.index_length)
        for one in footer.pieces
    }
