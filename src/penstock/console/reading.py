"""Records for a page: the newest, the oldest, or those from an offset or a time on, of one or all partitions.

What is read is bounded: by the number of records, by bytes and by time. A page says where the next one
begins, and the one before: by an offset for each partition, so its address shows the same records again.
What aborted transactions wrote is read, too, and each such record says so.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.admin.offsets import EARLIEST, LATEST, list_offsets
from penstock.admin.records import Aborted, fetch
from penstock.admin.resetting import WayError, datetime_ms
from penstock.client import AnswerError, Client, ClientError
from penstock.console.visit import whole_number
from penstock.wire.api.fetch import PartitionData
from penstock.wire.batch import Record, iter_batches, iter_records
from penstock.wire.errors import ErrorCode

PARTITIONS_MAX = 100
"""Of a topic with more, the first are read if none is chosen."""
FETCH_BYTES = 1024 * 1024
READ_SECONDS = 4.0
HELD_BYTES_MAX = 64 * 1024 * 1024
"""Of keys and values at once: a page of large records has fewer of them, rather than gigabytes."""
WIDER = 8
"""Where offsets have no records, as in a compacted topic, each look goes so many times further back."""


class WrongStartError(ClientError):
    """A page cannot begin there. The message is one sentence."""


class Found(NamedTuple):
    partition: int
    record: Record
    state: str = ""
    """What keeps it from readers of committed records: aborted, or uncommitted."""


class Sheet(NamedTuple):
    """One page of records."""

    records: list[Found]
    later: dict[int, int]
    """Where what follows begins, by partition; empty if nothing follows."""
    earlier: dict[int, int]
    """Where what comes before ends; empty if nothing does."""
    cut: bool
    """Whether it has fewer records than there are, for want of time or for their size."""


class Bounds(NamedTuple):
    starts: dict[int, int]
    ends: dict[int, int]


def bounds(client: Client, topic: str, partitions: Iterable[int]) -> Bounds:
    places = [(topic, one) for one in partitions]
    starts = list_offsets(client, places, EARLIEST)
    ends = list_offsets(client, places, LATEST)
    return Bounds(
        {partition: offset for (_, partition), offset in starts.items()},
        {partition: offset for (_, partition), offset in ends.items()},
    )


def sheet(client: Client, topic: str, partitions: list[int], start: str, at: str, count: int) -> Sheet:
    """`start`: newest, oldest, offset, time, from or before; `at`: which. WrongStartError, ClientError."""
    limits = bounds(client, topic, partitions)
    if not limits.ends:
        raise AnswerError(ErrorCode.LEADER_NOT_AVAILABLE, f"The question for offsets of {topic!r}")
    if start in ("newest", "before"):
        ends = limits.ends if start == "newest" else _clamped(positions_of(at), limits)
        return _backwards(client, topic, limits, ends, count)
    if start == "oldest":
        begins = limits.starts
    elif start == "offset":
        offset = whole_number(at)
        if offset is None:
            raise WrongStartError(f"An offset is a number, not {at!r}.")
        begins = dict.fromkeys(limits.ends, offset)
    elif start == "time":
        begins = _at_time(client, topic, limits, at)
    elif start == "from":
        begins = positions_of(at)
    else:
        raise WrongStartError(
            f"Records are shown from newest, oldest, offset or time on, not from {start!r}."
        )
    return _forwards(client, topic, limits, _clamped(begins, limits), count)


def positions_of(text: str) -> dict[int, int]:
    """Offsets by partition, from 0:15,3:20."""
    try:
        return {int(one): int(offset) for one, offset in (part.split(":") for part in text.split(","))}
    except ValueError:
        raise WrongStartError(f"Positions are partition:offset, comma-separated, not {text!r}.") from None


def text_of(positions: dict[int, int]) -> str:
    return ",".join(f"{partition}:{offset}" for partition, offset in positions.items())


def _clamped(positions: dict[int, int], limits: Bounds) -> dict[int, int]:
    return {
        one: min(max(offset, limits.starts.get(one, 0)), limits.ends[one])
        for one, offset in positions.items()
        if one in limits.ends
    }


def _at_time(client: Client, topic: str, limits: Bounds, at: str) -> dict[int, int]:
    try:
        given = whole_number(at) if at.isdigit() else None
        time_ms = datetime_ms(at) if given is None else given
    except WayError as error:
        raise WrongStartError(str(error)) from None
    found = list_offsets(client, [(topic, one) for one in limits.ends], time_ms)
    return {
        one: found[topic, one] if found.get((topic, one), -1) >= 0 else end
        for one, end in limits.ends.items()
    }


@dataclass
class _Page:
    """What all partitions of one page share."""

    client: Client
    topic: str
    count: int
    deadline: float = field(default_factory=lambda: time.monotonic() + READ_SECONDS)
    taken: list[tuple[int, Found]] = field(default_factory=list)
    held: int = 0
    cut: bool = False

    def over(self) -> bool:
        return self.held >= HELD_BYTES_MAX or time.monotonic() > self.deadline

    def part(self, partition: int, begin: int, end: int, count: int, *, last: bool = False) -> Part:
        room = HELD_BYTES_MAX - self.held
        return read(self.client, self.topic, partition, begin, end, count, self.deadline, room, last=last)

    def add(self, keyed: Iterable[tuple[int, Found]], *, newest: bool) -> None:
        """Keep those that belong on the page, in its order, of these and of what is there."""
        self.taken += keyed
        self.taken.sort(key=lambda one: (one[0], one[1].partition, one[1].record.offset), reverse=newest)
        del self.taken[self.count :]
        self.held = sum(_size(found) for _, found in self.taken)

    def sheet(self, later: dict[int, int], earlier: dict[int, int]) -> Sheet:
        return Sheet([found for _, found in self.taken], later, earlier, self.cut)


def _in_order(found: Iterable[Found], bound: Callable[[int, int], int]) -> Iterator[tuple[int, Found]]:
    """Each record of a partition with the time by which it is sorted among those of others.

    Clients choose timestamps, and a page may not leave a record out because the one behind it is older: the
    next page begins behind both. So a record comes no earlier than the one before it in its partition.
    """
    time_ms: int | None = None
    for one in found:
        own = one.record.timestamp
        time_ms = own if time_ms is None else bound(time_ms, own)
        yield time_ms, one


def _forwards(client: Client, topic: str, limits: Bounds, begins: dict[int, int], count: int) -> Sheet:
    page = _Page(client, topic, count)
    for partition, begin in begins.items():
        if page.over():
            page.cut = True
            break
        part = page.part(partition, begin, limits.ends[partition], count)
        page.cut = page.cut or not part.whole
        page.add(_in_order(part.records, max), newest=False)
    later = dict(begins)
    for _, one in page.taken:
        later[one.partition] = max(later[one.partition], one.record.offset + 1)
    if not page.taken or all(offset >= limits.ends[one] for one, offset in later.items()):
        later = {}
    earlier = begins if any(at > limits.starts.get(one, 0) for one, at in begins.items()) else {}
    return page.sheet(later, earlier)


def _backwards(client: Client, topic: str, limits: Bounds, ends: dict[int, int], count: int) -> Sheet:
    page = _Page(client, topic, count)
    earlier = dict(ends)
    read_of: dict[int, int] = {}
    for partition, end in ends.items():
        if page.over():
            page.cut = True
            break
        found, earlier[partition] = _before(page, partition, limits.starts.get(partition, 0), end)
        read_of[partition] = len(found)
        page.add(_in_order(reversed(found), min), newest=True)
    shown: dict[int, list[int]] = {}
    for _, one in page.taken:
        shown.setdefault(one.partition, []).append(one.record.offset)
    for partition, number in read_of.items():
        if len(shown.get(partition, ())) < number:
            earlier[partition] = min(shown.get(partition, [ends[partition]]))
    if all(offset <= limits.starts.get(partition, 0) for partition, offset in earlier.items()):
        earlier = {}
    later = ends if any(at < limits.ends[one] for one, at in ends.items()) else {}
    return page.sheet(later, earlier)


def _before(page: _Page, partition: int, start: int, end: int) -> tuple[list[Found], int]:
    """The last records of a partition before `end`, and the offset from which on these are all.

    A log is read forwards only. So a stretch before the end is read, and another one before that while there
    are too few records; one that turns out to be too much is read again from a later offset on.
    """
    begin = max(start, end - page.count)
    part = page.part(partition, begin, end, page.count)
    while not part.whole and end - begin > 1:
        page.cut = True
        page.deadline = max(page.deadline, time.monotonic() + READ_SECONDS / 4)
        begin = max(begin + 1, end - max(1, len(part.records) // 2))
        part = page.part(partition, begin, end, page.count)
    found, width = part.records, page.count
    while not page.cut and len(found) < page.count and begin > start and not page.over():
        width *= WIDER
        first = max(start, begin - width)
        part = page.part(partition, first, begin, page.count - len(found), last=True)
        if not part.whole:
            page.cut = True
            break
        found = part.records + found
        begin = found[0].record.offset if len(found) == page.count else first
    return found, begin


class Part(NamedTuple):
    """Records of one partition, in its order."""

    records: list[Found]
    whole: bool
    """Whether all that was asked for was read."""


def read(
    client: Client,
    topic: str,
    partition: int,
    begin: int,
    end: int,
    count: int,
    deadline: float,
    room: int = HELD_BYTES_MAX,
    *,
    last: bool = False,
) -> Part:
    """Up to `count` records of one partition from `begin` to before `end`: the first, or else the `last`.

    At least one, however large it is.
    """
    position, held = begin, 0
    found: deque[Found] = deque()
    while position < end and (last or len(found) < count):
        if time.monotonic() > deadline:
            return Part(list(found), False)
        at = position
        data = client.retry(lambda at=at: fetch(client, topic, partition, at, 0, bytes_max=FETCH_BYTES))  # type: ignore[misc]
        records = data.records or b""
        states = states_of(client, topic, partition, at, data)
        for pos, header in iter_batches(records):
            position = max(position, header.last_offset + 1)
            if header.is_control:
                continue
            state = states.get(header.base_offset, "")
            for record in iter_records(records, pos):
                if record.offset >= end or (not last and len(found) == count):
                    break
                if record.offset < at:
                    continue
                one = Found(partition, record, state)
                if len(found) == count:
                    held -= _size(found.popleft())
                if found and held + _size(one) > room:
                    return Part(list(found), False)
                held += _size(one)
                found.append(one)
        if position == at:
            break  # nothing came, and nothing will
    return Part(list(found), True)


def _size(found: Found) -> int:
    return len(found.record.key or b"") + len(found.record.value or b"")


def states_of(
    client: Client, topic: str, partition: int, position: int, data: PartitionData
) -> dict[int, str]:
    """Which batches of an answer are not committed: `Found.state` by base offset.

    Brokers tell only readers of committed records what was aborted, so they are asked again as such a reader,
    if anything in the answer belongs to a transaction.
    """
    records = data.records or b""
    batches = list(iter_batches(records))
    if not any(header.is_transactional and not header.is_control for _, header in batches):
        return {}
    committed = client.retry(
        lambda: fetch(client, topic, partition, position, 0, committed=True, bytes_max=FETCH_BYTES)
    )
    aborted, states = Aborted(committed), {}
    for pos, header in batches:
        skipped = aborted.skips(header, records, pos)
        if header.base_offset >= committed.last_stable_offset >= 0:
            states[header.base_offset] = "uncommitted"
        elif skipped and not header.is_control:
            states[header.base_offset] = "aborted"
    return states
