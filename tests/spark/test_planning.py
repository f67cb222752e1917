"""Which records a query reads, and how they are dealt out: decisions that need no store."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.arrow.asked import Selection
from penstock.arrow.errors import MissingTopicError
from penstock.arrow.planning import Deal, OffsetRange, choose, offset_after, size_of, splits
from penstock.log.manifest import Manifest, SegmentRef
from penstock.metadata.image import ClusterImage, ManifestRef, PartitionInfo, TopicInfo
from penstock.spark.read.admission import (
    TopicPosition,
    admit_bytes,
    admit_records,
    decode_positions,
    encode_positions,
)
from penstock.storage.reader.stretches import Stretch
from penstock.storage.reader.view import PartitionView

MB = 1024 * 1024


def partition(sizes: Sequence[tuple[int, int]], index: int = 0) -> PartitionView:
    """A partition of segments, each given by its offsets and bytes."""
    segments = []
    offset = 0
    for number, (count, size) in enumerate(sizes):
        segments.append(SegmentRef(f"segments/{number}", offset, offset + count, size, -1, "i", 0, 1))
        offset += count
    view = PartitionView("events", b"i" * 16, index)
    ref = ManifestRef("manifests/1", 0, 1)
    view.begin(PartitionInfo(1, 1, (1,), manifest=ref), Manifest(b"i" * 16, index, offset, tuple(segments)))
    return view


def whole(view: PartitionView) -> OffsetRange:
    return OffsetRange(view, 0, view.end)


def image(**topics: int) -> ClusterImage:
    return ClusterImage(
        topics={
            name: TopicInfo(name.encode().ljust(16), name, (PartitionInfo(1, 1, (1,)),) * count)
            for name, count in topics.items()
        }
    )


def names(selection: Selection, cluster: ClusterImage, **options: bool) -> list[tuple[str, int]]:
    return [(one.topic.name, one.number) for one in choose(selection, cluster, **options).values()]


def test_topics_by_name_pattern_and_partition() -> None:
    cluster = image(b=2, a=1, ab=1, __consumer_offsets=1)
    assert names(Selection(names=("b", "a")), cluster) == [("a", 0), ("b", 0), ("b", 1)]
    assert names(Selection(pattern="a.*"), cluster) == [("a", 0), ("ab", 0)]
    assert names(Selection(pattern=".*"), cluster) == [("a", 0), ("ab", 0), ("b", 0), ("b", 1)]
    assert names(Selection(partitions={"b": (1,)}), cluster) == [("b", 1)]
    assert names(Selection(pattern="nothing"), cluster) == []


def test_topics_that_do_not_exist() -> None:
    cluster = image(a=1)
    with pytest.raises(MissingTopicError, match="The topic 'b' does not exist"):
        choose(Selection(names=("a", "b")), cluster)
    with pytest.raises(MissingTopicError, match="The topic 'a' has no partition 3: it has 1"):
        choose(Selection(partitions={"a": (0, 3)}), cluster)
    assert names(Selection(names=("a", "b")), cluster, missing_ok=True) == [("a", 0)]


def stretches(tasks: Sequence[Sequence[Stretch]]) -> list[tuple[int, int, int]]:
    return [(one.partition, one.low, one.high) for task in tasks for one in task]


def test_large_partitions_are_cut_and_small_ones_share_a_task() -> None:
    large = partition([(1000, 200 * MB), (1000, 30 * MB)])
    small = [partition([(10, 1000)], index) for index in range(1, 50)]
    tasks = splits([whole(large), *map(whole, small)], Deal(64 * MB, 2))
    assert len(tasks) == 5
    assert [one.low for one in tasks[0]] == [0]
    assert sum(high - low for _p, low, high in stretches(tasks)) == 2000 + 490
    assert len(tasks[-1]) >= 49


def test_a_session_with_more_cores_gets_more_tasks() -> None:
    view = partition([(1000, 40 * MB)])
    assert len(splits([whole(view)], Deal(64 * MB, 1))) == 1
    assert len(splits([whole(view)], Deal(64 * MB, 8))) == 8
    # But not for next to nothing.
    assert len(splits([whole(partition([(1000, 100_000)]))], Deal(64 * MB, 8))) == 1


def test_min_partitions_and_max_records() -> None:
    view = partition([(1000, 10_000)])
    assert len(splits([whole(view)], Deal(64 * MB, 1, min_partitions=7))) >= 7
    tasks = splits([whole(view)], Deal(64 * MB, 1, max_records=300))
    assert len(tasks) == 4
    assert all(sum(one.high - one.low for one in task) <= 300 for task in tasks)
    assert len(splits([whole(partition([(3, 10)]))], Deal(64 * MB, 1, min_partitions=10))) == 3


def test_a_task_carries_only_the_segments_that_it_reads() -> None:
    view = partition([(100, 10 * MB)] * 10)
    tasks = splits([whole(view)], Deal(10 * MB, 1))
    assert [len(task[0].segments) for task in tasks] == [1] * 10


segments = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 100 * MB)), min_size=1, max_size=6)


@given(
    st.lists(segments, max_size=5),
    st.integers(1, 64 * MB),
    st.integers(1, 16),
    st.integers(0, 20),
    st.sampled_from((0, 0, 1, 10, 1000)),
    st.data(),
)
def test_every_record_is_dealt_out_once_and_in_order(
    sizes: list[list[tuple[int, int]]],
    split_bytes: int,
    parallelism: int,
    min_partitions: int,
    max_records: int,
    data: st.DataObject,
) -> None:
    ranges = []
    for index, pieces in enumerate(sizes):
        view = partition(pieces, index)
        low = data.draw(st.integers(0, view.end))
        ranges.append(OffsetRange(view, low, data.draw(st.integers(low, view.end))))
    deal = Deal(
        max(split_bytes, sum(size for pieces in sizes for _count, size in pieces) // 200),
        parallelism,
        min_partitions,
        max_records,
    )
    tasks = splits(ranges, deal)
    assert all(tasks)
    for one in ranges:
        at = one.low
        for number, low, high in stretches(tasks):
            if number == one.view.index:
                assert low == at < high
                at = high
        assert at == one.high
    if max_records:
        assert all(sum(one.high - one.low for one in task) <= max_records for task in tasks)


def test_admission_by_records_is_in_proportion() -> None:
    ranges = [
        whole(partition([(900, 1000)])),
        whole(partition([(100, 1000)], 1)),
        whole(partition([(1, 10)], 2)),
    ]
    admitted = admit_records(ranges, 100)
    assert [one.high for one in admitted] == [89, 9, 1]
    assert admit_records(ranges, 1001) == ranges


def test_admission_by_bytes_is_in_proportion() -> None:
    ranges = [whole(partition([(1000, 9 * MB)])), whole(partition([(1000, MB)], 1))]
    admitted = admit_bytes(ranges, MB)
    assert [one.high for one in admitted] == [99, 99]
    assert [one.high for one in admit_bytes(ranges, 1)] == [1, 1]


@given(segments, st.integers(1, 2**40), st.data())
def test_admission_always_advances(sizes: list[tuple[int, int]], limit: int, data: st.DataObject) -> None:
    view = partition(sizes)
    low = data.draw(st.integers(0, view.end - 1))
    high = offset_after(view, low, view.end, limit)
    assert low < high <= view.end
    assert size_of(view, low, high) <= max(limit, size_of(view, low, low + 1)) + len(sizes)


def test_positions_are_written_as_by_the_connector_and_with_the_topic_id() -> None:
    positions = {"b": TopicPosition("xyz", {1: 5, 0: 3, 10: 7}), "a": TopicPosition("", {0: 1})}
    stored = encode_positions(positions)
    assert list(stored) == ["a", "b"]
    assert stored["b"] == {"id": "xyz", "0": 3, "1": 5, "10": 7}
    assert list(stored["b"]) == ["id", "0", "1", "10"]
    assert decode_positions(stored) == positions
    # A checkpoint of Spark's own connector.
    assert decode_positions({"a": {"0": 12}}) == {"a": TopicPosition("", {0: 12})}
