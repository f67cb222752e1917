"""Plans for segments: retention, splitting, packing, merging, adopting."""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.extents import Extent, Extents
from penstock.log.manifest import SegmentRef
from penstock.log.policy import UNLIMITED, LogPolicy
from penstock.log.retention import Chunk, bytes_from, chunks, kept_from
from penstock.log.settling import (
    OWN_OBJECT_BYTES,
    SHARED_OBJECT_BYTES,
    Layout,
    Source,
    lifetime,
    merge_range,
    pack,
    split,
    worth_adopting,
)


def run(*extents: tuple[int, int, int]) -> Extents:
    """Extents of one offset each: (length, time, file), with gaps between them in the file."""
    made = Extents()
    for number, (length, time, file) in enumerate(extents):
        made.append(number, number, time, number * 10_000, length, file)
    return made


def segment(base: int, end: int, size: int, time: int = 0) -> SegmentRef:
    return SegmentRef(f"s{base}", base, end, size, time, f"s{base}", 0, 0, time, time)


def kept(all_chunks: list[Chunk], policy: LogPolicy, now_ms: int, log_start: int = 0) -> int:
    total = sum(chunk.size_bytes for chunk in all_chunks)
    return kept_from(iter(all_chunks), total, log_start, policy, now_ms)


def test_retention_by_time() -> None:
    some = [Chunk(10, 100, 1000), Chunk(20, 100, 3000), Chunk(30, 100, 2000)]
    policy = LogPolicy(retention_ms=1000)
    assert [kept(some, policy, now) for now in (2000, 2001, 3500, 4001, 9999)] == [0, 10, 10, 30, 30]
    assert kept(some, LogPolicy(retention_ms=-1), 10**15) == 0
    assert kept([Chunk(10, 100, -1)], policy, 10**15) == 0


def test_retention_by_size_keeps_at_least_so_much() -> None:
    some = [Chunk(10, 100, 0), Chunk(20, 100, 0), Chunk(30, 100, 0)]

    def by_size(size: int) -> int:
        return kept(some, LogPolicy(retention_ms=-1, retention_bytes=size), 0)

    assert [by_size(size) for size in (-1, 0, 1, 100, 101, 200, 201, 300, 999)] == [
        0, 30, 20, 20, 10, 10, 0, 0, 0,
    ]  # fmt: skip


def test_either_reason_is_enough_and_compaction_alone_deletes_nothing() -> None:
    some = [Chunk(10, 500, 9000), Chunk(20, 100, 0), Chunk(30, 100, 9000)]
    policy = LogPolicy(retention_ms=1000, retention_bytes=150)
    assert kept(some, policy, 9500) == 20
    assert kept(some, LogPolicy(retention_ms=1, retention_bytes=0, delete=False), 10**9) == 0


def test_unsettled_records_are_judged_in_pieces() -> None:
    unsettled = run(*((100, 50 + at, 0) for at in range(5)))
    segments = [segment(0, 3, 300, 7), segment(-5, 0, 100, -1)]
    found = list(chunks(segments[:1], unsettled, 0, 200))
    assert found == [Chunk(3, 300, 7), Chunk(2, 200, 51), Chunk(4, 200, 53), Chunk(5, 100, 54)]
    assert list(chunks([], unsettled, 3, 1000)) == [Chunk(5, 200, 54)]


@given(
    st.lists(st.integers(1, 500), max_size=12),
    st.lists(st.integers(1, 500), max_size=30),
    st.integers(1, 3000),
    st.integers(1, 1000),
    st.integers(0, 42),
)
@settings(derandomize=True, max_examples=300)
def test_retention_by_size_leaves_enough_and_is_done_at_once(
    settled: list[int], unsettled: list[int], retention_bytes: int, segment_bytes: int, log_start: int
) -> None:
    """Whatever of it was below the log start before."""
    segments = [segment(at, at + 1, size) for at, size in enumerate(settled)]
    extents = Extents()
    for at, size in enumerate(unsettled, len(settled)):
        extents.append(at, at, 0, at * 10_000, size, 0)
    end = len(settled) + len(unsettled)
    log_start = min(log_start, end)
    policy = LogPolicy(retention_ms=-1, retention_bytes=retention_bytes)

    def left(start: int) -> int:
        return sum([*settled, *unsettled][start:])

    def check(start: int) -> int:
        total = bytes_from(segments, extents, start)
        assert total == left(start)
        return kept_from(chunks(segments, extents, start, segment_bytes), total, start, policy, 0)

    kept = check(log_start)
    assert log_start <= kept <= end
    assert left(kept) >= min(retention_bytes, left(log_start))
    assert check(kept) == kept
    if kept > log_start:
        largest = max([*settled, *unsettled])
        assert left(kept) <= retention_bytes + max(segment_bytes + largest, largest)


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(0, 100), st.just(0)), max_size=30),
    st.integers(1, 2000),
    st.integers(0, 100),
)
@settings(derandomize=True, max_examples=100)
def test_split_keeps_everything_and_the_limits(
    items: list[tuple[int, int, int]], bytes_max: int, span: int
) -> None:
    whole = run(*items)
    pieces = list(split(whole, bytes_max, span))
    joined = [piece[at] for piece in pieces for at in range(len(piece))]
    assert joined == [whole[at] for at in range(len(whole))]
    for piece in pieces:
        assert len(piece) == 1 or piece.total_bytes() <= bytes_max


def test_a_layout_packs_and_joins_sources() -> None:
    layout = Layout(1000)
    whole = Extents()
    whole.append(0, 4, 9, 500, 70_000, 1)
    whole.append(5, 5, 8, 70_500, 100, 1)
    whole.append(6, 6, 7, 90_000, 100, 1)
    whole.append(7, 7, 6, 0, 100, 2)
    layout.add(whole, 0, 2)
    layout.add(whole, 2, 4)
    assert layout.sources == [
        Source(1, 500, 70_100, 0, 5),
        Source(1, 90_000, 100, 6, 6),
        Source(2, 0, 100, 7, 7),
    ]
    assert layout.position == 1000 + 70_300
    assert [layout.extents[at] for at in (0, 1)] == [
        Extent(0, 4, 9, 1000, 70_000),
        Extent(5, 7, 8, 71_000, 300),
    ]


def test_sources_that_do_not_join_or_are_large_are_copied_by_themselves() -> None:
    """Each is checked as a whole, in memory."""
    layout = Layout(0)
    whole = Extents()
    whole.append(0, 4, 9, 0, 600_000, 1)
    whole.append(5, 5, 8, 600_000, 600_000, 1)
    whole.append(9, 9, 7, 1_200_000, 70_000, 1)
    layout.add(whole, 0, 3)
    assert layout.sources == [
        Source(1, 0, 600_000, 0, 4),
        Source(1, 600_000, 600_000, 5, 5),
        Source(1, 1_200_000, 70_000, 9, 9),
    ]


def test_large_runs_get_an_object_of_their_own() -> None:
    large, small = OWN_OBJECT_BYTES, OWN_OBJECT_BYTES - 1
    assert list(pack([small, large, small, 3 * large])) == [[1], [3], [0, 2]]
    together = SHARED_OBJECT_BYTES // small
    groups = list(pack([small] * (2 * together + 5)))
    assert [len(group) for group in groups] == [together, together, 5]
    assert list(pack([])) == []


def test_what_lives_differently_long_does_not_share_an_object() -> None:
    day_ms = 86_400_000
    topics = [
        LogPolicy(),
        LogPolicy(compact=True, delete=False),
        LogPolicy(retention_bytes=1000),
        LogPolicy(retention_ms=6 * day_ms),
        LogPolicy(retention_ms=60_000),
        LogPolicy(retention_ms=UNLIMITED),
        LogPolicy(compact=True, delete=False, segment_bytes=5),
    ]
    assert list(pack([1] * 7, [lifetime(policy) for policy in topics])) == [[0, 3], [1, 6], [2], [4], [5]]


def test_few_partitions_in_large_pieces_are_worth_adopting() -> None:
    mb = 1024 * 1024
    assert worth_adopting(64 * mb, 63 * mb, 1000, 1)
    assert worth_adopting(64 * mb, 63 * mb, 1000, 8)
    assert not worth_adopting(64 * mb, 63 * mb, 1000, 9)
    assert not worth_adopting(64 * mb, 50 * mb, 1000, 1)
    assert not worth_adopting(64 * mb, 63 * mb, 60_000, 1)
    assert not worth_adopting(mb // 2, mb // 2, 1, 1)


def test_neighbours_of_one_size_are_merged() -> None:
    def plan(*sizes: int) -> range | None:
        segments = [segment(at, at + 1, size) for at, size in enumerate(sizes)]
        return merge_range(segments, 4, 64 * 1024 * 1024, 10**9)

    mb = 1024 * 1024
    assert plan(*[1000] * 3) is None
    assert plan(*[1000] * 4) == range(0, 4)
    assert plan(8 * mb, *[1000] * 4) == range(1, 5)
    assert plan(*[8 * mb] * 4, 1000) == range(0, 4)
    assert plan(*[32 * mb] * 4) is None
    times = [segment(at, at + 1, 1000, at * 100) for at in range(4)]
    assert merge_range(times, 4, mb, 299) is None and merge_range(times, 4, mb, 300) == range(0, 4)


@given(st.lists(st.integers(100, 10_000), min_size=1, max_size=150))
@settings(derandomize=True, max_examples=50)
def test_merging_keeps_segments_few_and_copies_little(sizes: list[int]) -> None:
    segments: list[SegmentRef] = []
    copied = 0
    for offset, size in enumerate(sizes):
        segments.append(segment(offset, offset + 1, size))
        while (found := merge_range(segments, 4, 1 << 30, 10**9)) is not None:
            merged = [segments[at] for at in found]
            total = sum(s.size_bytes for s in merged)
            copied += total
            new = segment(merged[0].base_offset, merged[-1].end_offset, total)
            segments[found.start : found.stop] = [new]
    assert [s.end_offset for s in segments[:-1]] == [s.base_offset for s in segments[1:]]
    assert len(segments) <= 24
    assert copied <= 8 * sum(sizes)
