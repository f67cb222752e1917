"""Which records a reader reads, and how they are dealt out to tasks. Decisions only: no input or output.

Sizes. Records in write-ahead logs are known batch by batch. For a segment, the manifest tells its offsets and
bytes; planning takes the bytes to be spread evenly over the offsets. That is exact enough to deal out and to
admit records, and so planning a terabyte reads no index.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.arrow.asked import Selection
from penstock.arrow.errors import MissingTopicError
from penstock.log.isolation import Isolation
from penstock.metadata.image import ClusterImage, PartitionKey
from penstock.storage.reader.stretches import Stretch, hurt_in, lost_stretch, stretch_of
from penstock.storage.reader.view import Chosen, PartitionView

SPLIT_BYTES_MIN = 1024 * 1024
"""Less work than this is not worth another task."""
OPEN_BYTES = 64 * 1024
"""What beginning with another partition costs, in bytes that could be read instead."""


class OffsetRange(NamedTuple):
    """Records from `low` up to, not including, `high`."""

    view: PartitionView
    low: int
    high: int


class Step(NamedTuple):
    """A stretch of offsets, and about how many bytes it takes."""

    low: int
    high: int
    size: int


def choose(
    selection: Selection, image: ClusterImage, *, missing_ok: bool = False
) -> dict[PartitionKey, Chosen]:
    """The partitions that a selection names, by topic and number. Those asked for by name must exist,
    unless `missing_ok`."""
    if selection.pattern is not None:
        names = sorted(
            name for name, topic in image.topics.items() if not topic.internal and selection.takes(name)
        )
    else:
        names = sorted(selection.partitions if selection.partitions is not None else selection.names)
    chosen: dict[PartitionKey, Chosen] = {}
    for name in names:
        topic = image.topic(name)
        if topic is None:
            if missing_ok:
                continue
            raise MissingTopicError(f"The topic {name!r} does not exist.")
        numbers = range(len(topic.partitions))
        for number in numbers if selection.partitions is None else selection.partitions[name]:
            if number not in numbers:
                if missing_ok:
                    continue
                raise MissingTopicError(
                    f"The topic {name!r} has no partition {number}: it has {len(numbers)} of them."
                )
            chosen[topic.id, number] = Chosen(topic, number, topic.partitions[number])
    return chosen


def steps(view: PartitionView, low: int, high: int) -> Iterator[Step]:
    """The range in the order of offsets: a step for what each segment has of it, then the tail's batches."""
    for segment in view.segments:
        if segment.end_offset > low and segment.base_offset < high:
            first, last = max(low, segment.base_offset), min(high, segment.end_offset)
            whole = segment.end_offset - segment.base_offset
            yield Step(first, last, max(1, segment.size_bytes * (last - first) // whole))
    for piece in view.tail(low, high):
        first, last = max(low, piece.base_offset), min(high, piece.last_offset + 1)
        whole = piece.last_offset + 1 - piece.base_offset
        yield Step(first, last, max(1, piece.length * (last - first) // whole))


def size_of(view: PartitionView, low: int, high: int) -> int:
    """About how many bytes a range takes."""
    return sum(step.size for step in steps(view, low, high))


def offset_after(view: PartitionView, low: int, high: int, size: int) -> int:
    """Where about `size` bytes from `low` on end: above `low`, at most `high`."""
    left = size
    for step in steps(view, low, high):
        if step.size >= left:
            count = (step.high - step.low) * left // step.size
            return max(step.low + count, low + 1)
        left -= step.size
    return high


# Dealing out.


class Deal(NamedTuple):
    """How to deal out records. Zero means that there is no such wish."""

    split_bytes: int
    parallelism: int = 1
    min_partitions: int = 0
    max_records: int = 0


def splits(
    ranges: Sequence[OffsetRange], deal: Deal, isolation: Isolation = Isolation.READ_COMMITTED
) -> list[list[Stretch]]:
    """The work of each task: stretches of one or several partitions, in order."""
    ranges = [one for one in ranges if one.high > one.low]
    sizes = [size_of(*one) for one in ranges]
    target = _target(sum(sizes), deal)
    opening = 0 if deal.min_partitions else OPEN_BYTES
    tasks: list[list[Stretch]] = []
    room = records = 0
    for one in ranges:
        for hurt in hurt_in(*one):
            tasks = tasks or [[]]
            tasks[-1].append(lost_stretch(one.view, hurt))
        stretch: Step | None = None
        for step in _cut(steps(*one), target, deal.max_records):
            count = step.high - step.low
            cost = step.size + (0 if stretch is not None else opening)
            full = cost > room or (deal.max_records and records + count > deal.max_records)
            if not tasks or (full and (stretch is not None or tasks[-1])):
                if stretch is not None:
                    tasks[-1].append(stretch_of(one.view, stretch.low, stretch.high, isolation))
                    stretch = None
                tasks.append([])
                room, records = target + opening, 0
            stretch = step if stretch is None else stretch._replace(high=step.high)
            room -= cost
            records += count
        if stretch is not None:
            tasks[-1].append(stretch_of(one.view, stretch.low, stretch.high, isolation))
    return tasks


def _target(total: int, deal: Deal) -> int:
    target = min(deal.split_bytes, max(SPLIT_BYTES_MIN, total // max(1, deal.parallelism)))
    if deal.min_partitions:
        target = min(target, max(1, total // deal.min_partitions))
    return target


def _cut(whole: Iterator[Step], target: int, max_records: int) -> Iterator[Step]:
    """Steps of at most `target` bytes, or one record, and at most `max_records`."""
    for step in whole:
        count = step.high - step.low
        parts = -(-step.size // target)
        if max_records:
            parts = max(parts, -(-count // max_records))
        parts = min(parts, count)
        for part in range(parts):
            low = step.low + count * part // parts
            high = step.low + count * (part + 1) // parts
            yield Step(low, high, max(1, step.size // parts))
