"""A history: the transactions that clients ran, and all that readers were shown. Plain values, JSON if wanted.

Partitions are lists that transactions append unique values to; reading a partition in order gives the list. So
from the values alone it can be told who wrote what, in which order, and who saw it (the list-append model of
Elle). Times are seconds on one clock. They may be left out, and then nothing is concluded from them.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

LONG_AGO = -1e12
NEVER = 1e12
"""Times that nobody noted."""

Place = str
"""A partition, by a name of the caller's, such as `orders-3`."""


class Outcome(StrEnum):
    COMMITTED = "committed"
    """The commit was answered without an error."""
    ABORTED = "aborted"
    """Nobody asked for a commit, or the first one that was asked for was refused for good."""
    UNKNOWN = "unknown"
    """A commit was asked for and may have happened: no answer, or a refusal of a later attempt."""


class Append(msgspec.Struct):
    place: Place
    value: str
    offset: int | None = None
    """Where it was acknowledged; None if no answer came."""


class Move(msgspec.Struct):
    """A group's offset, committed in the transaction: the group consumed from `start` up to `end`."""

    group: str
    place: Place
    start: int
    end: int


class Transaction(msgspec.Struct):
    """A record that was sent outside of a transaction is one of a single append, committed with its answer."""

    name: str
    outcome: Outcome
    producer: str = ""
    """Whose transactions come one after the other, in the order of the history. "": nobody's in particular. A
    zombie and whoever replaced it are two."""
    appends: list[Append] = []
    """In the order in which they were sent."""
    moves: list[Move] = []
    read: list[str] = []
    """Values that it was made from: those that were visible where its moves went, and others. None: it did not
    tell. It began after it had read them."""
    began: float = LONG_AGO
    asked: float = LONG_AGO
    """When a commit was first asked for."""
    ended: float = NEVER
    """When the end was answered."""


class Seen(msgspec.Struct):
    offset: int
    value: str
    at: float = NEVER
    """When the answer came that held it."""


class Reading(msgspec.Struct):
    """One way through a partition: everything from `start` up to `end` was passed, and this is what there was."""

    reader: str
    place: Place
    start: int
    end: int
    records: list[Seen] = []
    committed: bool = True
    """At read_committed."""
    whole: bool = False
    """It went to the end of the partition, after every transaction had ended."""


class OffsetSeen(msgspec.Struct):
    """What a client was told of a group's committed offset; -1: none."""

    group: str
    place: Place
    offset: int
    asked: float = LONG_AGO
    at: float = NEVER
    stable: bool = True
    """It asked for a stable offset. Others may be told the one before while a transaction ends."""


class History(msgspec.Struct):
    transactions: list[Transaction] = []
    readings: list[Reading] = []
    offsets: list[OffsetSeen] = []
    thinned: set[Place] = set()
    """Partitions that compaction or retention takes records from: what is missing there is not lost."""


class Finding(msgspec.Struct, frozen=True):
    kind: str
    """lost, torn, aborted read, early read, duplicate, order, inconsistent, made up, cycle, offset."""
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"
