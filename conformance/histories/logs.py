"""The partitions of a history: every offset has one value, every value one offset, in the order of its writer."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from conformance.histories.history import Append, Finding, History, Place, Reading, Transaction


class Written(NamedTuple):
    transaction: Transaction
    append: Append
    turn: tuple[int, int]
    """The number of its transaction in the history, and its own number in the transaction."""


class Logs:
    """What is known of each partition, from acknowledgements and readings together."""

    def __init__(self, history: History) -> None:
        self.findings: list[Finding] = []
        self.written: dict[str, Written] = {}
        self.sent: dict[Place, list[Written]] = defaultdict(list)
        self.offset_of: dict[str, int] = {}
        self.values: dict[Place, dict[int, str]] = defaultdict(dict)
        for number, transaction in enumerate(history.transactions):
            for turn, append in enumerate(transaction.appends):
                assert append.value not in self.written, (
                    f"{append.value} was sent twice: values must be unique"
                )
                self.written[append.value] = written = Written(transaction, append, (number, turn))
                self.sent[append.place].append(written)
                if append.offset is not None:
                    self._at(append.place, append.offset, append.value, f"acknowledged to {transaction.name}")
        for reading in history.readings:
            self._take(reading)
        for place in self.values:
            self._in_order(place)

    def _take(self, reading: Reading) -> None:
        before = reading.start - 1
        for seen in reading.records:
            how = f"read by {reading.reader}"
            written = self.written.get(seen.value)
            if written is None or written.append.place != reading.place:
                sent = "nobody sent" if written is None else f"was sent to {written.append.place}"
                self._find("made up", f"{reading.reader} read {seen.value} in {reading.place}, which {sent}")
                continue
            if seen.offset <= before:
                self._find(
                    "order",
                    f"{reading.reader} read {reading.place}@{seen.offset} after {reading.place}@{before}",
                )
            before = seen.offset
            self._at(reading.place, seen.offset, seen.value, how)

    def _at(self, place: Place, offset: int, value: str, how: str) -> None:
        known = self.values[place].setdefault(offset, value)
        if known != value:
            self._find("inconsistent", f"{place}@{offset} is {value}, {how}, but was {known}")
        first = self.offset_of.setdefault(value, offset)
        if first != offset:
            self._find("duplicate", f"{value} is at {place}@{offset}, {how}, and at {place}@{first} too")

    def _in_order(self, place: Place) -> None:
        """What one producer sent to a partition lies there in the order in which it was sent."""
        last: dict[str, tuple[Written, int]] = {}
        for offset, value in sorted(self.values[place].items()):
            written = self.written[value]
            producer = written.transaction.producer or written.transaction.name
            before = last.get(producer)
            if before is not None and before[0].turn > written.turn:
                later, at = before
                self._find(
                    "order",
                    f"{value} of {written.transaction.name} is at {place}@{offset}, behind {later.append.value} "
                    f"of {later.transaction.name} at {at}, which was sent after it",
                )
            last[producer] = (written, offset)

    def _find(self, kind: str, text: str) -> None:
        self.findings.append(Finding(kind, text))
