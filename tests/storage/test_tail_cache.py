"""A read from the tail cache is what a walk over its batches would give, wherever it begins and ends."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.partitions.tail_cache import JOINED_BYTES_MAX, Tail, TailCache

Stored = tuple[int, int, bytes]
"""Base offset, last offset, contents."""

batches = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 3 * JOINED_BYTES_MAX)), min_size=1, max_size=30
)


def walked(stored: list[Stored], offset: int, max_bytes: int, limit_offset: int) -> tuple[bytes, int]:
    """Batch after batch: from the one that holds `offset`, below the limit, the first one always."""
    found, next_offset = b"", offset
    for _base, last, contents in stored:
        if last < offset:
            continue
        if last >= limit_offset or (found and len(found) + len(contents) > max_bytes):
            break
        found += contents
        next_offset = last + 1
    return found, next_offset


@given(batches, st.integers(1, 100_000), st.data())
def test_a_read_is_a_walk(shapes: list[tuple[int, int]], cache_bytes: int, data: st.DataObject) -> None:
    cache, tail = TailCache(cache_bytes), Tail()
    stored: list[Stored] = []
    end = 0
    for number, (records, size) in enumerate(shapes):
        contents = bytes([number]) * size
        batch = bytearray(contents) if number % 2 else memoryview(bytearray(contents))
        cache.append_batches(tail, [(batch, (end, end + records - 1, 0, -1), None)])
        stored.append((end, end + records - 1, contents))
        end += records
    offset = data.draw(st.integers(tail.start, end - 1))
    limit_offset = data.draw(st.integers(offset, end))
    max_bytes = data.draw(st.integers(0, 200_000))
    buffers, size, next_offset = tail.read(offset, max_bytes, limit_offset)
    found = b"".join(buffers)
    assert (found, next_offset) == walked(stored, offset, max_bytes, limit_offset)
    assert size == len(found)
