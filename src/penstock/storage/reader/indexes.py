"""The index of a segment: where its batches lie."""

import logging

from penstock.log.extents import Extents, ExtentsError
from penstock.log.manifest import SegmentRef
from penstock.storage.stores.objects import DamagedObjectError, ObjectStore
from penstock.wire.buffers import Buffer
from penstock.wire.checksum import crc32c
from penstock.wire.correction import mended

logger = logging.getLogger(__name__)


async def read_index(store: ObjectStore, segment: SegmentRef) -> Extents:
    """DamagedObjectError if it is hurt beyond mending, and other StoreErrors."""
    stored = await store.get_range(segment.index_key, segment.index_start, segment.index_length)
    return decode_index(stored, segment)


def decode_index(stored: Buffer, segment: SegmentRef) -> Extents:
    """The index of a segment. A byte of it that is hurt is mended, if the result is one that the segment can
    have had. DamagedObjectError if it is beyond that, or whole and not this segment's."""
    try:
        extents = Extents.decode(stored)
    except ExtentsError as error:
        whole = mended_index(stored, segment)
        if whole is None:
            raise DamagedObjectError(f"the index of {segment.key} in {segment.index_key}: {error}") from error
        logger.warning(
            "a byte of an index was mended key=%s start=%d", segment.index_key, segment.index_start
        )
        return whole
    problem = disagreement(segment, extents)
    if problem is not None:
        raise DamagedObjectError(f"the index of {segment.key} in {segment.index_key}: {problem}")
    return extents


def disagreement(segment: SegmentRef, extents: Extents) -> str | None:
    """Why an index whose checksum is right cannot be this segment's. Objects that were swapped, or copied
    over each other, have whole indexes of other records."""
    if not extents:
        return "the index is empty"
    if (extents.base_offsets[0], extents.last_offsets[-1] + 1) != (segment.base_offset, segment.end_offset):
        return "the index is that of other offsets than the manifest says"
    if extents.total_bytes() != segment.size_bytes:
        return f"the index has {extents.total_bytes()} bytes of records, the manifest {segment.size_bytes}"
    if max(extents.max_timestamps) != segment.max_timestamp:
        return "the index is that of records of other times than the manifest says"
    return None


def mended_index(stored: Buffer, segment: SegmentRef) -> Extents | None:
    """What an index of a segment was before one byte of it was changed; None if it is beyond that."""
    body = mended(bytes(stored[:-4]), int.from_bytes(stored[-4:], "little"))
    if body is None:
        return None
    try:
        extents = Extents.decode(body + crc32c(body).to_bytes(4, "little"))
    except ExtentsError:
        return None
    fits = extents.is_of(segment.base_offset, segment.end_offset, segment.size_bytes)
    return extents if fits and disagreement(segment, extents) is None else None
