"""Where each leader epoch of a partition began. OffsetForLeaderEpoch answers from this table.

The table is a list of (epoch, start offset), both strictly growing. An epoch under which nothing was written
leaves no trace once the next one begins at the same offset, as in Kafka.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeAlias

EpochStart: TypeAlias = tuple[int, int]

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1
OFFSET_MAX = 2**63 - 1


def with_epoch(starts: Sequence[EpochStart], epoch: int, start: int) -> tuple[EpochStart, ...]:
    """The table once records from `start` on belong to `epoch`."""
    if starts and starts[-1][0] == epoch:
        return tuple(starts)
    return (*(entry for entry in starts if entry[0] < epoch and entry[1] < start), (epoch, start))


def end_of_epoch(starts: Sequence[EpochStart], epoch: int, end_offset: int) -> EpochStart:
    """The largest epoch <= `epoch`, and the offset where it ended; (-1, -1) if `epoch` is yet to come."""
    if epoch == UNDEFINED_EPOCH or not starts or epoch > starts[-1][0]:
        return UNDEFINED_EPOCH, UNDEFINED_OFFSET
    if epoch == starts[-1][0]:
        return epoch, end_offset
    higher = bisect_right(starts, epoch, key=lambda entry: entry[0])
    if higher == 0:
        return epoch, starts[0][1]
    return starts[higher - 1][0], starts[higher][1]


def epoch_at(starts: Sequence[EpochStart], offset: int) -> int:
    """The epoch that the record at `offset` was written under, or -1."""
    return epoch_span(starts, offset)[0]


def epoch_span(starts: Sequence[EpochStart], offset: int) -> EpochStart:
    """The epoch that the record at `offset` was written under, or -1, and where it ends."""
    at = bisect_right(starts, offset, key=lambda entry: entry[1])
    epoch = starts[at - 1][0] if at else UNDEFINED_EPOCH
    return epoch, starts[at][1] if at < len(starts) else OFFSET_MAX


def without_below(starts: Sequence[EpochStart], log_start: int) -> tuple[EpochStart, ...]:
    """The table after records below `log_start` are gone: the epoch there now begins there."""
    at = bisect_right(starts, log_start, key=lambda entry: entry[1])
    if at == 0:
        return tuple(starts)
    return ((starts[at - 1][0], log_start), *starts[at:])
