"""Reads cut from extents: whole batches, from the right one, within the limits."""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.extents import Extents
from penstock.log.slicing import GAP_BYTES_MAX, cut, plan_ranges
from penstock.wire.batch import Record, build_batch, iter_batches
from penstock.wire.buffers import Buffer


def stored_log(counts: list[int], sizes: list[int], gaps: list[int]) -> tuple[Extents, bytes, list[range]]:
    """Batches of so many records, so large, with so many other bytes after each."""
    extents = Extents()
    content = bytearray()
    offsets = []
    offset = 0
    for count, size, gap in zip(counts, sizes, gaps, strict=True):
        records = [Record(offset + at, offset + at, None, b"v" * size) for at in range(count)]
        one = build_batch(records)
        extents.append(offset, offset + count - 1, offset + count - 1, len(content), len(one))
        offsets.append(range(offset, offset + count))
        content += one + b"?" * gap
        offset += count
    return extents, bytes(content), offsets


def read(
    extents: Extents, content: bytes, offset: int, max_bytes: int, limit: int
) -> tuple[list[range], int]:
    pieces = []
    ranges = plan_ranges(extents, extents.find(offset), max_bytes, limit)
    for wanted in ranges:
        buffer = memoryview(content)[wanted.position : wanted.position + wanted.length]
        pieces += [buffer[piece.start : piece.start + piece.length] for piece in wanted.pieces]
    buffers, size, next_offset = cut(pieces, offset, max_bytes, limit)
    joined = b"".join(buffers)
    assert size == len(joined)
    found = [range(h.base_offset, h.last_offset + 1) for _, h in iter_batches(joined)]
    assert not found or next_offset == found[-1].stop
    return found, size


_batches = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 3000), st.sampled_from([0, 0, 0, 7, 40_000])),
    min_size=1,
    max_size=40,
)


@given(_batches, st.integers(0, 200), st.integers(0, 200_000), st.integers(0, 200))
@settings(derandomize=True, max_examples=300, deadline=None)
def test_a_read_gives_the_batches_that_it_should(
    batches: list[tuple[int, int, int]], offset: int, max_bytes: int, limit: int
) -> None:
    extents, content, offsets = stored_log(*(list(column) for column in zip(*batches, strict=True)))
    found, size = read(extents, content, offset, max_bytes, limit)
    wanted = [batch for batch in offsets if batch.stop > offset and batch.stop <= limit]
    assert found == wanted[: len(found)]
    if wanted:
        assert found, "at least one batch"
        assert size <= max_bytes or len(found) == 1


def test_a_read_gets_as_much_as_fits() -> None:
    extents, content, offsets = stored_log([1] * 50, [1000] * 50, [0] * 50)
    found, size = read(extents, content, 10, 20_000, 50)
    assert found == offsets[10:28] and 18_000 < size <= 20_000


def test_near_extents_are_read_in_one_go() -> None:
    extents = Extents()
    for number, position in enumerate((0, 1000, 1000 + 2 * GAP_BYTES_MAX)):
        extents.append(number, number, 0, position, 500)
    ranges = plan_ranges(extents, 0, 1 << 20, 100)
    assert [(r.position, r.length, len(r.pieces)) for r in ranges] == [
        (0, 1500, 2),
        (1000 + 2 * GAP_BYTES_MAX, 500, 1),
    ]
    assert plan_ranges(extents, 3, 100, 100) == []


def test_nothing_is_cut_from_nothing() -> None:
    nothing: list[memoryview] = []
    empty: list[Buffer] = []
    assert cut(nothing, 5, 100, 100) == (empty, 0, 5)
