"""Records for a page: the newest, the oldest, or those from an offset or a time on, of one or all partitions.

What is read is bounded: by the number of records, by bytes and by time. A page says where the next one
begins, and the one before: by an offset for each partition, so its address shows the same records again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.admin.offsets import EARLIEST, LATEST, list_offsets
from penstock.admin.records import Aborted, fetch
from penstock.admin.resetting import WayError, datetime_ms
from penstock.client import AnswerError, Client, ClientError
from penstock.console.visit import whole_number
from penstock.wire.batch import Record, iter_batches, iter_records
from penstock.wire.errors import ErrorCode

PARTITIONS_MAX = 100
"""Of a topic with more, the first are read if none is chosen."""
FETCH_BYTES = 1024 * 1024
READ_SECONDS = 4.0


class WrongStartError(ClientError):
    """A page cannot begin there. The message is one sentence."""


class Found(NamedTuple):
    partition: int
    record: Record


class Sheet(NamedTuple):
    """One page of records."""

    records: list[Found]
    later: dict[int, int]
    """Where what follows begins, by partition; empty if nothing follows."""
    earlier: dict[int, int]
    """Where what comes before ends; empty if nothing does."""
    cut: bool
    """Whether time ran out before all was read."""


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


def _forwards(client: Client, topic: str, limits: Bounds, begins: dict[int, int], count: int) -> Sheet:
    deadline = time.monotonic() + READ_SECONDS
    found: list[Found] = []
    cut = False
    for partition, begin in begins.items():
        end = limits.ends[partition]
        if time.monotonic() > deadline:
            cut = True
            break
        found += read(client, topic, partition, begin, end, count, deadline)
    found.sort(key=lambda one: (one.record.timestamp, one.partition, one.record.offset))
    taken = found[:count]
    later = dict(begins)
    for one in taken:
        later[one.partition] = max(later[one.partition], one.record.offset + 1)
    if not taken or all(offset >= limits.ends[one] for one, offset in later.items()):
        later = {}
    earlier = begins if any(at > limits.starts.get(one, 0) for one, at in begins.items()) else {}
    return Sheet(taken, later, earlier, cut)


def _backwards(client: Client, topic: str, limits: Bounds, ends: dict[int, int], count: int) -> Sheet:
    deadline = time.monotonic() + READ_SECONDS
    found: list[Found] = []
    cut = False
    begins: dict[int, int] = {}
    for partition, end in ends.items():
        if time.monotonic() > deadline:
            cut = True
            break
        begins[partition] = max(limits.starts.get(partition, 0), end - count)
        found += read(client, topic, partition, begins[partition], end, count, deadline)
    found.sort(key=lambda one: (one.record.timestamp, one.partition, one.record.offset), reverse=True)
    taken = found[:count]
    left = {one.partition for one in found[count:]}
    earlier = {one: end if one in left else begins.get(one, end) for one, end in ends.items()}
    for one in taken:
        if one.partition in left:
            earlier[one.partition] = min(earlier[one.partition], one.record.offset)
    if all(offset <= limits.starts.get(one, 0) for one, offset in earlier.items()):
        earlier = {}
    later = ends if any(at < limits.ends[one] for one, at in ends.items()) else {}
    return Sheet(taken, later, earlier, cut)


def read(
    client: Client, topic: str, partition: int, begin: int, end: int, count: int, deadline: float
) -> Iterator[Found]:
    """Up to `count` records of one partition, from `begin` to before `end`."""
    position = begin
    while position < end and count > 0 and time.monotonic() < deadline:
        at = position
        data = client.retry(lambda at=at: fetch(client, topic, partition, at, 0, bytes_max=FETCH_BYTES))  # type: ignore[misc]
        records = data.records or b""
        aborted = Aborted(data)
        for pos, header in iter_batches(records):
            if not aborted.skips(header, records, pos):
                for record in iter_records(records, pos):
                    if record.offset >= end or count == 0:
                        return
                    if record.offset >= position:
                        count -= 1
                        yield Found(partition, record)
            position = max(position, header.last_offset + 1)
        if position == at:
            return  # nothing came, and nothing will
