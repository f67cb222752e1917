"""Objects that are mostly dead, and which pieces to move out of them.

An object holds pieces of many partitions and stays until the last piece goes; one small batch would keep it.
Where less than half of an object is alive, each leader that has pieces in it copies its own into new objects,
which hold nothing else, and lets the old one go.

A leader knows which pieces are alive in the partitions that it leads. Only if those are less than half of an
object must it find out which pieces other leaders need. A change of leaders does not make an object sparse: a
piece that is alive stays alive under every leader.

The cost. A moved piece lies in an object that was wholly alive. It is moved again only after half of that
object died. So each byte that dies pays for at most one byte that is copied.

The bound. An object that is not sparse is at least half alive. A little stays in sparse ones until moving it
is worth a command in the metadata log. So the store holds at most about twice the bytes that are alive.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from penstock.log.manifest import SegmentRef

PIECE_BYTES = 48
"""About what one piece takes in the footer of an object."""
_WORTH_BYTES = 1024 * 1024
_WORTH_SHARE = 8


class Sparse(NamedTuple):
    """An object that is mostly dead, as far as is known."""

    key: str
    index_key: str
    """The object whose footer says whose pieces it holds."""
    live_bytes: int
    object_bytes: int


def footprint(segment: SegmentRef) -> int:
    """What a piece takes of its object: its batches, and its index where that is not in another one."""
    own_index = segment.index_length + PIECE_BYTES if segment.index_key == segment.key else 0
    return segment.size_bytes + own_index


def is_sparse(live_bytes: int, object_bytes: int) -> bool:
    """False also where the size of the object is not known (-1)."""
    return 2 * live_bytes < object_bytes


def worth_moving(sparse: Iterable[Sparse], live_bytes: int) -> bool:
    """Whether moving frees enough. `live_bytes`: of all objects."""
    dead = sum(one.object_bytes - one.live_bytes for one in sparse)
    return dead > _WORTH_BYTES + live_bytes // _WORTH_SHARE


def choose(sparse: Iterable[Sparse], bytes_max: int) -> list[Sparse]:
    """Those to empty first: the deadest, as many as hold `bytes_max` alive, but at least one."""
    chosen: list[Sparse] = []
    size = 0
    for one in sorted(sparse, key=lambda one: (one.live_bytes / one.object_bytes, one.key)):
        if chosen and size + one.live_bytes > bytes_max:
            break
        chosen.append(one)
        size += one.live_bytes
    return chosen


def stretches(
    segments: Sequence[SegmentRef],
    keys: Collection[str],
    *,
    clean_end: int,
    bytes_max: int,
    span_ms_max: int,
) -> list[range]:
    """The segments that lie in the objects `keys`, neighbours together as far as one segment may grow. Those
    that are compacted, below `clean_end`, stay apart from those that are not."""
    found: list[range] = []
    first_dirty = bisect_right(segments, clean_end, key=lambda segment: segment.end_offset)
    size = 0
    for at, segment in enumerate(segments):
        if segment.key not in keys:
            continue
        last = found[-1] if found else None
        if (
            last is not None
            and last.stop == at
            and at != first_dirty
            and size + segment.size_bytes <= bytes_max
            and segment.max_timestamp - segments[last.start].min_timestamp <= span_ms_max
        ):
            found[-1] = range(last.start, at + 1)
            size += segment.size_bytes
        else:
            found.append(range(at, at + 1))
            size = segment.size_bytes
    return found
