"""The answers that clients got beside the records that can be read. Pure, so the judge can be tested."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

SHOWN_MAX = 5


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int


@dataclass(slots=True)
class Told:
    """What writers heard."""

    acknowledged: dict[Place, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    doubtful: set[bytes] = field(default_factory=set)
    """Sent, and answered with an error or not at all: may be there or not."""
    twice: list[str] = field(default_factory=list)

    def acknowledge(self, place: Place, offset: int, value: bytes) -> None:
        known = self.acknowledged[place].get(offset)
        if known is not None and known != value:
            self.twice.append(
                f"offset {offset} of {place.topic}-{place.partition} was given to {known[:24]!r} and again to "
                f"{value[:24]!r}"
            )
        self.acknowledged[place].setdefault(offset, value)

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged.values()))


@dataclass(slots=True)
class Reading:
    """One partition, read from its start to its end by a client that steps over hurt ranges."""

    start: int = 0
    end: int = 0
    records: dict[int, bytes] = field(default_factory=dict)
    hurt: dict[int, int] = field(default_factory=dict)
    """Offsets that were answered with an error code."""
    empty: set[int] = field(default_factory=set)
    """Offsets below the end at which nothing came, and no error either."""
    closed: str = ""
    """Why the partition could not be asked at all."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the scene allows."""

    whole: bool = True
    """Nothing may be hurt or closed (any more)."""
    hurt_max: int | None = None
    """At most so many records may be said to be hurt: a flipped bit does not end a partition."""
    gone: Collection[tuple[Place, int]] = ()
    """Offsets that may be gone without a word: what a power cut takes where nobody synced."""
    deleted: bool = False
    """Retention may have deleted what is below the start."""


def judge(told: Told, readings: Mapping[Place, Reading], expected: Expected) -> list[str]:
    """What is wrong, as sentences; nothing if all is well."""
    problems = list(told.twice)
    hurt = 0
    for place, acknowledged in told.acknowledged.items():
        reading = readings.get(place, Reading(closed="was not read"))
        lost, other, said = _compare(place, acknowledged, reading, expected)
        hurt += len(said)
        name = f"{place.topic}-{place.partition}"
        if lost:
            problems.append(
                f"{name}: {_some(lost)} of {len(acknowledged)} acknowledged are gone without a word"
            )
        if other:
            problems.append(f"{name}: another record than the acknowledged one at {_some(other)}")
        if said and expected.whole:
            why = reading.closed or f"error {reading.hurt[said[0]]}"
            problems.append(f"{name}: {_some(said)} of {len(acknowledged)} are still said to be hurt ({why})")
        problems += _unasked(name, acknowledged, told, reading)
    if expected.hurt_max is not None and hurt > expected.hurt_max:
        problems.append(f"{hurt} records are said to be hurt, where {expected.hurt_max} were damaged")
    return problems


def hurt_records(told: Told, readings: Mapping[Place, Reading]) -> int:
    """Acknowledged records that are said to be hurt."""
    return sum(
        len(_compare(place, acknowledged, readings[place], Expected())[2])
        for place, acknowledged in told.acknowledged.items()
        if place in readings
    )


def _compare(
    place: Place, acknowledged: Mapping[int, bytes], reading: Reading, expected: Expected
) -> tuple[list[int], list[int], list[int]]:
    """Offsets that are lost in silence, that hold another record, and that are said to be hurt."""
    lost, other, said = [], [], []
    for offset, value in acknowledged.items():
        found = reading.records.get(offset)
        if found is not None:
            if found != value:
                other.append(offset)
        elif reading.closed or offset in reading.hurt:
            said.append(offset)
        elif (place, offset) not in expected.gone and not (expected.deleted and offset < reading.start):
            lost.append(offset)
    return lost, other, said


def _unasked(name: str, acknowledged: Mapping[int, bytes], told: Told, reading: Reading) -> list[str]:
    """Records that nobody sent, or that are there twice."""
    problems = []
    sent = set(acknowledged.values()) | told.doubtful
    strange = [offset for offset, value in reading.records.items() if value not in sent]
    if strange:
        problems.append(f"{name}: what nobody sent at {_some(strange)}")
    places: dict[bytes, int] = {}
    for offset, value in reading.records.items():
        if places.setdefault(value, offset) != offset:
            problems.append(f"{name}: one record at {places[value]} and at {offset}")
            break
    return problems


def _some(offsets: list[int]) -> str:
    shown = ", ".join(map(str, sorted(offsets)[:SHOWN_MAX]))
    more = f" and {len(offsets) - SHOWN_MAX} more" if len(offsets) > SHOWN_MAX else ""
    return f"offsets {shown}{more}" if len(offsets) > 1 else f"offset {shown}"
