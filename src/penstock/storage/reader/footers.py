"""The footer of a segment object: whose records it holds."""

from penstock.log.segment import TRAILER_SIZE, Footer, SegmentError, decode_footer, footer_size
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
