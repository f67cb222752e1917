"""What clients saw while things broke, and whether a log that keeps its promises could have shown it.

Every write is a value that is written once. A history holds the answers that each client got: which write was
acknowledged at which offset, which records each reader was given in which order, which end of a partition
each observer was told; and at last the whole log as it is when everything is healthy again. `check` finds:

    lost            a write that was acknowledged is not in the log, or not at its offset
    duplicate       a value is in the log twice
    inconsistent    one offset was seen with two values, by readers, writers or in the log
    unwritten       a value was read that nobody wrote, or that was refused for good
    unstable        a record was read that is not in the log: it was readable before it was durable
    hole            the log lacks an offset, or a reader was not shown one
    backwards       a reader was given an offset that is not beyond the one before
    watermark       a partition ends before an end that some client was told earlier
    order           two writes of one writer are in the log in the other order
    forgotten       a group resumed before an offset whose commit it had been told of
    skipped         a group resumed beyond what it had read
    topic           a topic whose creation was acknowledged is not there, or a deleted one is there
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

Log = Mapping[int, Mapping[int, bytes]]
"""By partition and offset, the value."""


@dataclass(slots=True)
class Write:
    """One attempt to write a value, once, and what became of it as far as its writer knows."""

    writer: str
    partition: int
    value: bytes
    sent_at: float
    answered_at: float = 0.0
    offset: int | None = None
    """Where it was acknowledged; None: it was not."""
    refused: bool = False
    """It was refused in a way that says that it is not in the log and never will be."""


@dataclass(frozen=True, slots=True)
class Read:
    partition: int
    offset: int
    value: bytes
    at: float


@dataclass(frozen=True, slots=True)
class Watermark:
    """The end of a partition, asked for at `asked_at` and told at `told_at`."""

    partition: int
    end: int
    asked_at: float
    told_at: float


@dataclass(frozen=True, slots=True)
class Resume:
    """A group began to read a partition there, when its commits up to `committed` had been acknowledged and it
    had read up to `read`, both exclusive."""

    group: str
    partition: int
    offset: int
    committed: int
    read: int


@dataclass(slots=True)
class History:
    writes: list[Write] = field(default_factory=list)
    reads: dict[str, list[Read]] = field(default_factory=lambda: defaultdict(list))
    """By reader, in the order in which it was given them. A reader that starts anew is another reader."""
    watermarks: list[Watermark] = field(default_factory=list)
    resumes: list[Resume] = field(default_factory=list)
    topics_created: set[str] = field(default_factory=set)
    """Acknowledged, and nobody asked for their deletion."""
    topics_deleted: set[str] = field(default_factory=set)
    """Acknowledged."""
    topics: set[str] = field(default_factory=set)
    """All of them at the end."""
    log: dict[int, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    """The whole log at the end."""


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def check(history: History) -> list[Violation]:
    """Everything that a log which keeps its promises could not have shown."""
    return [
        *_lost(history),
        *_duplicates(history.log),
        *_inconsistent(history),
        *_unwritten(history),
        *_unstable(history),
        *_holes(history),
        *_backwards(history),
        *_watermarks(history),
        *_order(history),
        *_resumes(history.resumes),
        *_topics(history),
    ]


def _lost(history: History) -> Iterable[Violation]:
    for write in history.writes:
        if write.offset is None:
            continue
        found = history.log[write.partition].get(write.offset)
        if found != write.value:
            where = f"partition {write.partition} offset {write.offset}"
            yield Violation("lost", f"{write.value!r} was acknowledged at {where}, where there is {found!r}")


def _duplicates(log: Log) -> Iterable[Violation]:
    places: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for partition, records in log.items():
        for offset, value in records.items():
            places[value].append((partition, offset))
    for value, found in places.items():
        if len(found) > 1:
            yield Violation("duplicate", f"{value!r} is in the log at {found}")


def _inconsistent(history: History) -> Iterable[Violation]:
    seen: dict[tuple[int, int], dict[bytes, str]] = defaultdict(dict)
    for partition, records in history.log.items():
        for offset, value in records.items():
            seen[partition, offset].setdefault(value, "the log")
    for write in history.writes:
        if write.offset is not None:
            seen[write.partition, write.offset].setdefault(write.value, f"writer {write.writer}")
    for reader, reads in history.reads.items():
        for read in reads:
            seen[read.partition, read.offset].setdefault(read.value, f"reader {reader}")
    for (partition, offset), values in seen.items():
        if len(values) > 1:
            told = ", ".join(f"{value!r} by {who}" for value, who in values.items())
            yield Violation("inconsistent", f"partition {partition} offset {offset} was seen as {told}")


def _unwritten(history: History) -> Iterable[Violation]:
    written = {write.value: write for write in history.writes}
    given = {read.value: reader for reader, reads in history.reads.items() for read in reads}
    given |= {value: "the log" for records in history.log.values() for value in records.values()}
    for value, who in given.items():
        write = written.get(value)
        if write is None:
            yield Violation("unwritten", f"{value!r}, seen by {who}, was never written")
        elif write.refused:
            yield Violation("unwritten", f"{value!r}, seen by {who}, had been refused for good")


def _unstable(history: History) -> Iterable[Violation]:
    for reader, reads in history.reads.items():
        for read in reads:
            if read.offset not in history.log[read.partition]:
                where = f"partition {read.partition} offset {read.offset}"
                yield Violation("unstable", f"{reader} read {read.value!r} at {where}, which the log lacks")


def _holes(history: History) -> Iterable[Violation]:
    for partition, records in history.log.items():
        missing = set(range(max(records, default=-1) + 1)) - set(records)
        if missing:
            yield Violation("hole", f"partition {partition} of the log lacks offsets {sorted(missing)[:5]}")
    for reader, by_partition in _runs(history):
        for partition, offsets in by_partition.items():
            for before, after in pairwise(offsets):
                if after > before + 1:
                    text = f"{reader} was given offset {after} of partition {partition} after {before}"
                    yield Violation("hole", text)


def _backwards(history: History) -> Iterable[Violation]:
    for reader, by_partition in _runs(history):
        for partition, offsets in by_partition.items():
            for before, after in pairwise(offsets):
                if after <= before:
                    text = f"{reader} was given offset {after} of partition {partition} after {before}"
                    yield Violation("backwards", text)


def _runs(history: History) -> Iterable[tuple[str, Mapping[int, list[int]]]]:
    for reader, reads in history.reads.items():
        offsets: dict[int, list[int]] = defaultdict(list)
        for read in reads:
            offsets[read.partition].append(read.offset)
        yield reader, offsets


def _watermarks(history: History) -> Iterable[Violation]:
    """Whoever asks after something was known is told at least as much."""
    known: dict[int, list[tuple[float, int, str]]] = defaultdict(list)
    for mark in history.watermarks:
        known[mark.partition].append((mark.told_at, mark.end, "the end was told"))
    for write in history.writes:
        if write.offset is not None:
            known[write.partition].append((write.answered_at, write.offset + 1, "a write was acknowledged"))
    for reads in history.reads.values():
        for read in reads:
            known[read.partition].append((read.at, read.offset + 1, "a record was read"))
    for partition, facts in known.items():
        facts.sort()
        asked = sorted(
            (mark for mark in history.watermarks if mark.partition == partition), key=lambda m: m.asked_at
        )
        at, highest, why = 0, 0, ""
        for mark in asked:
            while at < len(facts) and facts[at][0] < mark.asked_at:
                if facts[at][1] > highest:
                    _, highest, why = facts[at]
                at += 1
            if mark.end < highest:
                text = f"partition {partition} ended at {mark.end} when it had ended at {highest} ({why})"
                yield Violation("watermark", text)
        end = max(history.log[partition], default=-1) + 1
        last = max((fact[1] for fact in facts), default=0)
        if end < last:
            yield Violation("watermark", f"partition {partition} ends at {end}, but had ended at {last}")


def _order(history: History) -> Iterable[Violation]:
    sent: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    for write in sorted(history.writes, key=lambda w: w.sent_at):
        sent[write.writer, write.partition].append(write.value)
    for (writer, partition), values in sent.items():
        place = {value: offset for offset, value in history.log[partition].items()}
        offsets = [(place[value], value) for value in values if value in place]
        for (before, first), (after, second) in pairwise(offsets):
            if after < before:
                text = f"{writer} wrote {first!r} before {second!r}, but they are at {before} and {after}"
                yield Violation("order", text)


def _resumes(resumes: Iterable[Resume]) -> Iterable[Violation]:
    for resume in resumes:
        where = f"{resume.group} resumed partition {resume.partition} at {resume.offset}"
        if resume.offset < resume.committed:
            yield Violation("forgotten", f"{where}, but had committed {resume.committed}")
        elif resume.offset > resume.read:
            yield Violation("skipped", f"{where}, but had read only up to {resume.read}")


def _topics(history: History) -> Iterable[Violation]:
    for name in sorted(history.topics_created - history.topics):
        yield Violation("topic", f"the creation of {name} was acknowledged, and it is not there")
    for name in sorted(history.topics_deleted & history.topics):
        yield Violation("topic", f"the deletion of {name} was acknowledged, and it is there")


def gaps(times: Iterable[float], began: float, ended: float) -> float:
    """The longest time between `began` and `ended` without any of `times`."""
    inside = sorted(time for time in times if began <= time <= ended)
    points = [began, *inside, ended]
    return max(after - before for before, after in pairwise(points))
