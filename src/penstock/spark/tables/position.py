"""What an Iceberg table says of the topics whose records it holds. Decisions only: no input or output.

A commit of a pipeline sets the table's property `penstock.position` together with the snapshot that it adds:
how far the table has the topics then. It is a property, and not a part of the snapshot's summary, because a
summary goes when snapshots are expired, and the records stay.

A property outlives a rollback, too. So it counts only if it tells of the current snapshot. Each snapshot of a
pipeline says in its summary which micro-batch it is. The way back from the current snapshot, through those
that others made (to compact, to delete rows), must lead to the micro-batch of the position. If it leads to
snapshots that were expired, the position must be older than the oldest snapshot that is left.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

POSITION = "penstock.position"
QUERY = "penstock.query"
BATCH = "penstock.batch"

Stored = dict[str, dict[str, int | str]]
"""Positions as `read/admission.py` encodes them for a checkpoint."""


class Position(msgspec.Struct, frozen=True):
    query: str
    batch: int
    sequence: int
    """Iceberg's number of the snapshot that the position was committed with."""
    topics: Stored
    changed: str = ""
    """Why the rows are not the topics' records as they are, or nothing. A reason stays for ever."""


class Commit(NamedTuple):
    """A snapshot of a table."""

    parent: int | None
    sequence: int
    adds: bool
    """Whether it only adds rows."""
    query: str | None = None
    batch: int = -1


class History(NamedTuple):
    """The snapshots that a table still has, by id."""

    current: int | None
    commits: Mapping[int, Commit]


def difference(position: Position, history: History) -> str:
    """Why a table is not what its position says, or nothing."""
    oldest = None
    at = _commit(history, history.current)
    while at is not None:
        if at.query is not None:
            same = (at.query, at.batch) == (position.query, position.batch)
            return "" if same else "it was rolled back"
        if at.adds:
            return "somebody else has added rows to it"
        oldest = at
        at = _commit(history, at.parent)
    return "" if oldest is not None and position.sequence < oldest.sequence else "it was rolled back"


def _commit(history: History, snapshot: int | None) -> Commit | None:
    return None if snapshot is None else history.commits.get(snapshot)


def after(before: Position | None, history: History, made: Position) -> Position:
    """The position to commit: as it was made, with what is already wrong with the table."""
    if made.changed:
        return made
    if before is None:
        # The first commit of a table is the first micro-batch: one that starts later lacks what came before.
        begins = history.current is None and made.batch == 0
        why = "" if begins else "it does not begin where the topic began for its pipeline"
    elif before.changed:
        why = before.changed
    elif before.query != made.query:
        why = "another run wrote to it that began anew"
    else:
        why = difference(before, history)
    return msgspec.structs.replace(made, changed=why)


def encode(position: Position) -> str:
    return msgspec.json.encode(position).decode()


def decode(text: str | None) -> Position | None:
    """None if there is none. Raises msgspec.DecodeError."""
    return None if text is None else msgspec.json.decode(text, type=Position)
