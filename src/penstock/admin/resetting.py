"""Where the offsets of a group are moved to, in all of Kafka's ways. Nothing is committed here.

A way is one of: to the earliest, the latest, an offset, a time, where the group stands, a step from there, a
duration before now, or what a file says. An offset beyond an end of its partition becomes that end, as
Kafka's tool does it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from penstock.admin.groups import WITHOUT_MEMBERS, describe_group
from penstock.admin.offsets import EARLIEST, LATEST, Offsets, Place, list_offset, list_offsets
from penstock.client import Client, ClientError

DIGITS_MAX = 18
_DURATION = re.compile(
    r"P(?:(?P<weeks>\d{1,18})W)?(?:(?P<days>\d{1,18})D)?(?:T(?:(?P<hours>\d{1,18})H)?"
    r"(?:(?P<minutes>\d{1,18})M)?(?:(?P<seconds>\d{1,18}(?:\.\d{1,18})?)S)?)?",
    re.ASCII,
)
_UNITS_MS = {"weeks": 604_800_000, "days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1000}


class WayError(ClientError):
    """What was asked for makes no sense. The message is one sentence."""


class Ends(NamedTuple):
    start: int
    end: int

    def clamp(self, offset: int) -> int:
        return min(max(offset, self.start), self.end)


class Way(NamedTuple):
    """One way to move offsets; exactly one field beside `name` means something."""

    name: str
    offset: int = 0
    time_ms: int = 0


def target(
    way: Way, place: Place, ends: Ends, standing: int | None, at_time: Callable[[Place, int], int]
) -> int:
    """Where one partition is moved to. `standing`: what is committed. `at_time`: the first offset at or after
    a time, or -1."""
    topic, partition = place
    match way.name:
        case "earliest":
            return ends.start
        case "latest":
            return ends.end
        case "offset":
            return ends.clamp(way.offset)
        case "current":
            return ends.end if standing is None else ends.clamp(standing)
        case "shift":
            if standing is None:
                raise WayError(
                    f"Partition {partition} of {topic!r} has no committed offset to shift: move it to an "
                    "offset first."
                )
            return ends.clamp(standing + way.offset)
        case "time":
            found = at_time(place, way.time_ms)
            return ends.end if found < 0 else found
    raise AssertionError(f"there is no way {way.name}")


def parse_to(text: str) -> Way:
    """The short form: earliest, latest, current, an offset, +N, -N, @MILLISECONDS, or a date and time."""
    if text in ("earliest", "latest", "current"):
        return Way(text)
    if text[:1] in ("+", "-") and is_number(text[1:]):
        return Way("shift", offset=int(text))
    if text[:1] == "@" and is_number(text[1:]):
        return Way("time", time_ms=int(text[1:]))
    if is_number(text):
        return Way("offset", offset=int(text))
    try:
        return Way("time", time_ms=datetime_ms(text))
    except WayError:
        raise WayError(
            "--to takes earliest, latest, current, an offset, +N, -N, @MILLISECONDS or a date and time, not "
            f"{text!r}."
        ) from None


def is_number(text: str) -> bool:
    """Whether it is a number of digits that fits where Kafka has 64 bits."""
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX


def datetime_ms(text: str) -> int:
    """A date and time in ISO 8601, in UTC unless it says otherwise.

    What is before 1970 is 1970: numbers below zero are no times to Kafka, and two are ends.
    """
    try:
        # Digits alone may be a date in ISO 8601, too: whoever writes them means milliseconds, or an offset.
        found = datetime.fromisoformat("" if text.isdigit() else text)
    except ValueError:
        raise WayError(f"A date and time is YYYY-MM-DDThh:mm:ss[.sss][Z or +hh:mm], not {text!r}.") from None
    return max(0, round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000))


def duration_ms(text: str) -> int:
    """A duration in ISO 8601: PnDTnHnMnS."""
    found = _DURATION.fullmatch(text.upper())
    if found is None or not any(found.groupdict().values()):
        raise WayError(f"A duration is PnDTnHnMnS, such as PT1H30M, not {text!r}.")
    return round(sum(float(number) * _UNITS_MS[unit] for unit, number in found.groupdict().items() if number))


def topics_of(texts: Iterable[str]) -> dict[str, list[int] | None]:
    """The partitions of each topic, from TOPIC or TOPIC:0,1; None: all of them."""
    found: dict[str, list[int] | None] = {}
    for text in texts:
        name, colon, numbers = text.partition(":")
        if not colon:
            found[name] = None
            continue
        parts = numbers.split(",")
        if not all(map(is_number, parts)):
            raise WayError(f"--topic takes TOPIC or TOPIC:0,1, not {text!r}.")
        chosen = found.setdefault(name, [])
        if chosen is not None:
            chosen += [int(part) for part in parts]
    return found


def read_plan(lines: Iterable[str], group: str) -> Offsets:
    """What a file says: lines of topic,partition,offset, or of group,topic,partition,offset as Kafka's tool
    exports them for several groups."""
    plan: Offsets = {}
    for number, row in enumerate(csv.reader(lines), 1):
        fields = [field.strip() for field in row]
        if not any(fields):
            continue
        if len(fields) == 4:
            if fields[0] != group:
                continue
            fields = fields[1:]
        if len(fields) != 3 or not is_number(fields[1]) or not is_number(fields[2]):
            raise WayError(f"Line {number} is not topic,partition,offset: {','.join(row)!r}.")
        plan[fields[0], int(fields[1])] = int(fields[2])
    if not plan:
        raise WayError(f"The file has no line for group {group!r}.")
    return plan


# -- on a cluster ------------------------------------------------------------------------------------------


def require_no_members(client: Client, group: str) -> None:
    """Members would commit their own offsets over those that are set here."""
    state = describe_group(client, group).state
    if state not in WITHOUT_MEMBERS:
        raise ClientError(f"Group {group!r} is {state}: stop its members before its offsets are moved.")


def places_of(
    client: Client, wanted: Mapping[str, Sequence[int] | None], chosen: Sequence[int] = ()
) -> list[Place]:
    """The partitions that are wanted of each topic, all of which must exist; None: `chosen`, or all."""
    places: list[Place] = []
    for topic, own in wanted.items():
        partitions = client.partitions(topic)
        some = own if own is not None else list(chosen) or partitions
        missing = [one for one in some if one not in partitions]
        if missing:
            raise ClientError(f"Topic {topic!r} has no partition {missing[0]}.")
        places += [(topic, partition) for partition in some]
    return places


def moved(client: Client, way: Way, places: Sequence[Place], before: Mapping[Place, int]) -> Offsets:
    """Where a way leads in these partitions."""
    ends = _ends(client, places)
    times = _asked(client, places, way.time_ms) if way.name == "time" else {}
    return {
        place: target(way, place, ends[place], before.get(place), lambda at, _time_ms: times[at])
        for place in places
    }


def planned(client: Client, plan: Mapping[Place, int]) -> Offsets:
    """What a plan says, within the ends of its partitions, which must exist."""
    wanted: dict[str, list[int]] = {}
    for topic, partition in plan:
        wanted.setdefault(topic, []).append(partition)
    ends = _ends(client, places_of(client, wanted))
    return {place: ends[place].clamp(offset) for place, offset in plan.items()}


def _ends(client: Client, places: Sequence[Place]) -> dict[Place, Ends]:
    starts, ends = _asked(client, places, EARLIEST), _asked(client, places, LATEST)
    return {place: Ends(starts[place], ends[place]) for place in places}


def _asked(client: Client, places: Sequence[Place], time_ms: int) -> Offsets:
    """Of every partition: what cannot be told at once is waited for, or is an error."""
    found = list_offsets(client, places, time_ms)
    for place in places:
        if place not in found:
            found[place] = list_offset(client, *place, time_ms)
    return found
