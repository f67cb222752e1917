"""What a reader asks for: topics, where reading starts and ends, what is to be seen. Values only."""

import re
from typing import NamedTuple

import msgspec

from penstock.log.isolation import Isolation

EARLIEST, LATEST = -2, -1


class Bound(msgspec.Struct, frozen=True):
    """Where reading starts or ends, per partition: an offset, a timestamp, or EARLIEST/LATEST for all.

    `partitions` holds the partitions that are named: offsets (or EARLIEST/LATEST) if `by_timestamp` is
    false, else milliseconds. `everywhere` holds for every other partition, where the form allows it.
    """

    everywhere: int | None = None
    partitions: dict[str, dict[int, int]] = {}
    by_timestamp: bool = False


class Selection(msgspec.Struct, frozen=True):
    """Which topics: exactly one of the three is set."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: dict[str, tuple[int, ...]] | None = None

    def takes(self, topic: str) -> bool:
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        if self.partitions is not None:
            return topic in self.partitions
        return topic in self.names


class Words(NamedTuple):
    """What the bounds are called where they were asked for. And what to do if they do not fit: nothing, or a
    sentence with a space before it."""

    start: str = "start"
    end: str = "end"
    start_time: str = "start"
    end_time: str = "end"
    too_late: str = ""
    """If no record is as late as the time to start at."""
    beyond: str = ""
    """If an offset is beyond the end."""
    unstable: str = " Read when it has ended, or with isolation read_uncommitted."
    """If an offset to end at lies in an open transaction."""
    lost: str = ""
    """If records are gone."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is read, whoever reads it."""

    selection: Selection
    start: Bound
    end: Bound
    timestamp_without_match: str = "error"
    """Where no record is as late as the time to start at: "error", or "latest" to read nothing."""
    fail_on_data_loss: bool = True
    isolation: Isolation = Isolation.READ_COMMITTED
    words: Words = Words()
