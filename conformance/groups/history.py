"""The events and commits of the members of a group, and whether a group must behave like this.

Pure: events in, complaints out. Times are milliseconds since the epoch on one machine's clock.

A partition belongs to a member from `assigned` to `revoked`, `lost` or the death of its process: a holding.
These rules hold:

- no two holdings of one partition overlap;
- every record is consumed by the holder of its partition, offset by offset;
- each holding begins exactly at the last commit before it, or at the log's start if there was none. So a
  record is consumed twice only if its first consumer died before its commit;
- commits of a partition never go back, and in the end they cover all that was consumed, which is everything.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

# Some clients stamp their events with whole milliseconds, cut off.
CLOCK_GRAIN_MS = 1.0


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that a member said, or that befell it (`died`)."""

    member: str
    kind: str
    at: float
    partitions: tuple[int, ...] = ()
    """Of `assigned`, `revoked`, `lost`; of `consumed` the one partition."""
    offsets: tuple[int, ...] = ()
    """Of `consumed`."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit as the log of the broker has it, in the order of that log."""

    partition: int
    offset: int
    at: float


@dataclass(slots=True)
class Holding:
    member: str
    partition: int
    since: float
    until: float | None = None
    ended_by: str = ""
    offsets: list[int] = field(default_factory=list)


def holdings(events: Iterable[Event]) -> tuple[list[Holding], list[str]]:
    """Who had which partition when, and what was said that makes no sense. Events of one member in order."""
    complaints = []
    open_by_member: dict[str, dict[int, Holding]] = defaultdict(dict)
    found: list[Holding] = []
    for event in events:
        mine = open_by_member[event.member]
        match event.kind:
            case "assigned":
                for partition in event.partitions:
                    if partition in mine:
                        complaints.append(f"{event.member} was assigned partition {partition} twice")
                        continue
                    mine[partition] = Holding(event.member, partition, event.at)
                    found.append(mine[partition])
            case "revoked" | "lost" | "died":
                given_up = mine.keys() if event.kind == "died" else event.partitions
                for partition in list(given_up):
                    held = mine.pop(partition, None)
                    if held is not None:
                        held.until, held.ended_by = event.at, event.kind
            case "consumed":
                (partition,) = event.partitions
                if partition in mine:
                    mine[partition].offsets.extend(event.offsets)
                else:
                    complaints.append(
                        f"{event.member} consumed of partition {partition}, which it did not have"
                    )
    return found, complaints


def overlaps(found: Sequence[Holding]) -> list[str]:
    """Partitions that two members had at once."""
    complaints = []
    by_partition: dict[int, list[Holding]] = defaultdict(list)
    for held in found:
        by_partition[held.partition].append(held)
    for partition, row in by_partition.items():
        row.sort(key=lambda held: held.since)
        for earlier, later in pairwise(row):
            if earlier.until is None or earlier.until > later.since + CLOCK_GRAIN_MS:
                over = "still has it" if earlier.until is None else f"{earlier.until - later.since:.1f} ms"
                complaints.append(
                    f"partition {partition} belonged to {earlier.member} and {later.member} ({over})"
                )
    return complaints


def wrong_starts(found: Sequence[Holding], commits: Sequence[Commit]) -> list[str]:
    """Holdings that did not begin at the last commit before them, or left something out."""
    complaints = []
    for held in found:
        if not held.offsets:
            continue
        before = [
            each.offset for each in commits if each.partition == held.partition and each.at < held.since
        ]
        expected = before[-1] if before else 0
        name = f"{held.member} on partition {held.partition}"
        if held.offsets[0] != expected:
            complaints.append(f"{name} began at {held.offsets[0]}, {expected} was committed")
        wanted = list(range(held.offsets[0], held.offsets[0] + len(held.offsets)))
        if held.offsets != wanted:
            at = next(
                i for i, pair in enumerate(zip(held.offsets, wanted, strict=True)) if pair[0] != pair[1]
            )
            complaints.append(f"{name} went from {held.offsets[at - 1]} to {held.offsets[at]}")
    return complaints


def backward_commits(commits: Sequence[Commit]) -> list[str]:
    complaints = []
    last: dict[int, int] = {}
    for each in commits:
        if each.offset < last.get(each.partition, 0):
            complaints.append(
                f"commits of partition {each.partition} went from {last[each.partition]} to {each.offset}"
            )
        last[each.partition] = each.offset
    return complaints


def not_consumed(found: Sequence[Holding], ends: dict[int, int]) -> list[str]:
    """Records that nobody consumed."""
    complaints = []
    for partition, end in ends.items():
        seen = {offset for held in found if held.partition == partition for offset in held.offsets}
        missing = [offset for offset in range(end) if offset not in seen]
        if missing:
            complaints.append(
                f"{len(missing)} of {end} records of partition {partition} from {missing[0]} on"
            )
    return complaints


def thrown_out(found: Sequence[Holding]) -> list[str]:
    """Members that lost partitions although they lived."""
    return [f"{held.member} lost partition {held.partition}" for held in found if held.ended_by == "lost"]


def again(found: Sequence[Holding]) -> int:
    """How many records were consumed more than once."""
    counted: dict[tuple[int, int], int] = defaultdict(int)
    for held in found:
        for offset in held.offsets:
            counted[held.partition, offset] += 1
    return sum(count - 1 for count in counted.values())


def complaints_about(
    events: Sequence[Event], commits: Sequence[Commit], ends: dict[int, int], committed: dict[int, int]
) -> list[str]:
    """Everything that is wrong with this history; `ends` and `committed` are how it stands in the end."""
    found, complaints = holdings(events)
    complaints += overlaps(found)
    complaints += wrong_starts(found, commits)
    complaints += backward_commits(commits)
    complaints += thrown_out(found)
    complaints += [f"never consumed: {what}" for what in not_consumed(found, ends)]
    if committed != {partition: end for partition, end in ends.items() if end}:
        complaints.append(f"committed in the end: {committed}, written: {ends}")
    return complaints
