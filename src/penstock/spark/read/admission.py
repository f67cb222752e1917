"""How much a micro-batch admits, and positions of a stream as its checkpoint has them. Decisions only."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.arrow.planning import OffsetRange, offset_after, size_of
from penstock.storage.reader.stretches import hurt_in
from penstock.storage.reader.view import PartitionView


def count_of(view: PartitionView, low: int, high: int) -> int:
    """How many offsets a range has, without those that are lost: of these there may be any number."""
    return high - low - sum(one.end - one.start for one in hurt_in(view, low, high))


def end_of_count(view: PartitionView, low: int, high: int, count: int) -> int:
    """Where `count` offsets from `low` on end. What is lost is passed over whole."""
    for one in hurt_in(view, low, high):
        if one.start - low >= count:
            break
        count -= one.start - low
        low = one.end
    return min(high, low + count)


def admit_records(ranges: Sequence[OffsetRange], limit: int) -> list[OffsetRange]:
    """At most `limit` offsets in all, in proportion to what is there, as Spark's connector shares them."""
    counts = [count_of(*one) for one in ranges]
    total = sum(counts)
    if total <= limit:
        return list(ranges)
    admitted = []
    for one, available in zip(ranges, counts, strict=True):
        share = limit * available / total
        count = int(share) if share >= 1 else 1
        admitted.append(one._replace(high=end_of_count(*one, count)))
    return admitted


def admit_bytes(ranges: Sequence[OffsetRange], limit: int) -> list[OffsetRange]:
    """About `limit` bytes in all, shared out in proportion; at least one record of each partition."""
    sizes = [size_of(*one) for one in ranges]
    total = sum(sizes)
    if total <= limit:
        return list(ranges)
    return [
        one._replace(high=offset_after(*one, max(1, limit * size // total)))
        for one, size in zip(ranges, sizes, strict=True)
    ]


# Positions of a streaming query, as they stand in its checkpoint.


class TopicPosition(NamedTuple):
    topic_id: str
    """Kafka's text form; empty if it is not known, as in a checkpoint of Spark's own connector."""
    offsets: Mapping[int, int]


Positions = Mapping[str, TopicPosition]
_ID = "id"


def encode_positions(positions: Positions) -> dict[str, dict[str, int | str]]:
    """As Spark's connector writes offsets, {"topic": {"0": 12}}, and with the topic's id beside them."""
    return {
        topic: {
            _ID: position.topic_id,
            **{str(number): offset for number, offset in sorted(position.offsets.items())},
        }
        for topic, position in sorted(positions.items())
    }


def decode_positions(stored: Mapping[str, Mapping[str, int | str]]) -> Positions:
    return {
        topic: TopicPosition(
            str(entries.get(_ID, "")),
            {int(number): int(offset) for number, offset in entries.items() if number != _ID},
        )
        for topic, entries in stored.items()
    }
