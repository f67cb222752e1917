"""What links, readers and writers of a chain tell, as one history that can be checked."""

import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from conformance.histories.history import (
    Append,
    Finding,
    History,
    Move,
    OffsetSeen,
    Outcome,
    Reading,
    Seen,
    Transaction,
)


class Account:
    """Events in, a history out. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.transactions: dict[str, Transaction] = {}
        self.readings: dict[tuple[str, str], Reading] = {}
        """By reader and place."""
        self.offsets: list[OffsetSeen] = []
        self.why: Counter[str] = Counter()
        """What clients gave as the reason of an end that was not a commit."""

    # What is told.

    def wrote(self, place: str, value: str, offset: int | None, began: float) -> None:
        """A record outside of transactions; its answer came now, or none ever did."""
        outcome = Outcome.UNKNOWN if offset is None else Outcome.COMMITTED
        appends = [Append(place, value, offset)]
        with self._lock:
            self.transactions[value] = Transaction(
                value, outcome, appends=appends, began=began, asked=began, ended=time.time()
            )

    def placed(self, group: str, places: Iterable[str]) -> None:
        """A group was put at the start of these partitions, outside of transactions."""
        name = f"the start of {group}"
        moves = [Move(group, place, 0, 0) for place in places]
        with self._lock:
            self.transactions[name] = Transaction(name, Outcome.COMMITTED, moves=moves, ended=time.time())

    def heard(self, link: str, group: str, said: Mapping[str, Any]) -> None:
        """An event of a link."""
        name, at = said["name"], said["at"]
        with self._lock:
            match said["event"]:
                case "begin":
                    self.transactions[name] = Transaction(
                        name,
                        Outcome.ABORTED,
                        producer=link,
                        appends=[Append(place, value) for place, value in said["appends"]],
                        moves=[Move(group, *move) for move in said["moves"]],
                        read=sorted({made_from(value) for _, value in said["appends"]}),
                        began=at,
                    )
                case "asked":
                    self.transactions[name].asked = at
                    self.transactions[name].outcome = Outcome.UNKNOWN
                case "ended":
                    self.transactions[name].outcome = Outcome(said["outcome"])
                    self.transactions[name].ended = at
                    if said.get("why"):
                        self.why[f"{link.rpartition('-')[0]}: {said['why'][:100]}"] += 1

    def read(self, reader: str, place: str, offset: int, value: str, at: float) -> None:
        """A record that a reader at read_committed was shown, after the ones before."""
        with self._lock:
            if (reader, place) not in self.readings:
                self.readings[reader, place] = Reading(reader, place, 0, 0)
            reading = self.readings[reader, place]
            reading.records.append(Seen(offset, value, at))
            reading.end = max(reading.end, offset + 1)

    def read_whole(
        self, reader: str, place: str, end: int, records: Iterable[tuple[int, str]], committed: bool
    ) -> None:
        """A whole partition, after every transaction had ended."""
        level = "committed" if committed else "uncommitted"
        seen = [Seen(offset, value) for offset, value in records]
        with self._lock:
            name = f"{reader} at the end, {level}"
            self.readings[name, place] = Reading(name, place, 0, end, seen, committed, whole=True)

    def told(self, seen: OffsetSeen) -> None:
        with self._lock:
            self.offsets.append(seen)

    # What is asked.

    def values(self, reader: str, topic: str) -> set[str]:
        """The inputs of all that a reader was shown of a topic."""
        with self._lock:
            return {
                origin(seen.value)
                for (name, place), reading in self.readings.items()
                if name == reader and place.rpartition("-")[0] == topic
                for seen in reading.records
            }

    def committed_by(self, group: str) -> int:
        with self._lock:
            return sum(
                one.outcome is Outcome.COMMITTED and any(move.group == group for move in one.moves)
                for one in self.transactions.values()
            )

    def counts(self) -> Counter[str]:
        with self._lock:
            return Counter(one.outcome.value for one in self.transactions.values() if one.producer)

    def by_client(self) -> Counter[str]:
        """Outcomes, each with the client that had it. Names of links begin with that of their client."""
        with self._lock:
            return Counter(
                f"{one.producer.rsplit('-', 3)[0]} {one.outcome.value}"
                for one in self.transactions.values()
                if one.producer
            )

    def history(self) -> History:
        """All of it, in the order in which transactions began."""
        with self._lock:
            transactions = sorted(self.transactions.values(), key=lambda one: one.began)
            shown = _shown(self.readings.values())
            for one in transactions:
                one.moves = [_from_the_last(move, shown) for move in one.moves]
            return History(transactions, list(self.readings.values()), list(self.offsets))


def made_from(value: str) -> str:
    """What a link consumed when it made this value."""
    return value.rpartition("|")[0]


def origin(value: str) -> str:
    """The input that a value was made from."""
    return value.partition("|")[0]


def _shown(readings: Iterable[Reading]) -> dict[str, list[int]]:
    """By place, the offsets of whatever is to be seen there at read_committed."""
    found: dict[str, list[int]] = defaultdict(list)
    for reading in readings:
        if reading.whole and reading.committed and not found[reading.place]:
            found[reading.place] = [seen.offset for seen in reading.records]
    return found


def _from_the_last(move: Move, shown: Mapping[str, list[int]]) -> Move:
    """Markers and aborted records are passed by whoever consumes; a move begins after the last visible record."""
    if move.place not in shown:
        return move
    offsets = shown[move.place]
    at = bisect_left(offsets, move.start)
    return Move(move.group, move.place, offsets[at - 1] + 1 if at else 0, move.end)


def exactly_once(history: History, topics: Iterable[str], inputs: Iterable[str]) -> list[Finding]:
    """Each input once in each topic, for everybody who read all of it at read_committed."""
    wanted = set(inputs)
    findings = []
    by_topic: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for reading in history.readings:
        if reading.whole and reading.committed:
            topic = reading.place.rpartition("-")[0]
            by_topic[reading.reader, topic].update(origin(seen.value) for seen in reading.records)
    for (reader, topic), counts in by_topic.items():
        if topic not in topics:
            continue
        lost = sorted(wanted - counts.keys())
        twice = sorted(value for value, count in counts.items() if count > 1)
        strange = sorted(counts.keys() - wanted)
        for kind, values in (("lost", lost), ("duplicate", twice), ("made up", strange)):
            if values:
                findings.append(
                    Finding(kind, f"{reader} in {topic}: {len(values)} inputs, {', '.join(values[:5])}")
                )
    return findings
