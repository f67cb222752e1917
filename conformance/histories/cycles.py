"""Cycles among transactions: an order of events that no run can have had.

Every transaction that was committed begins, appends, and is decided, in this order. Further:

    in a partition      a record comes after the records before it
    one producer        begins its next transaction after the one before was decided
    reading (wr)        who reads a record at read_committed, or goes on at an offset that was committed, is
                        decided after the writer was
    time                what was answered before something was asked for is before it

A circle of such steps is a contradiction: G1c if a reading is part of it, G0 if not. Kafka does not keep
writers apart: of two transactions that are open together, each may be before the other in some partition.
That is no circle here, because both began before either was decided.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from conformance.histories.history import LONG_AGO, NEVER, Finding, History, Outcome, Transaction
from conformance.histories.logs import Logs
from conformance.histories.offsets import lanes

Event = tuple[str, str]
"""A kind (begin, decide, append, time) and a name."""

READ = "was read by"


class Graph:
    def __init__(self) -> None:
        self.after: dict[Event, dict[Event, str]] = defaultdict(dict)
        """Of each event, those that come after it, and why."""

    def add(self, first: Event, second: Event, why: str) -> None:
        self.after[first].setdefault(second, why)

    def circle(self) -> list[str] | None:
        """Why each event of a short circle comes after the one before; None if there is no circle."""
        try:
            TopologicalSorter(self.after).prepare()
        except CycleError as error:
            return self._circle(error.args[1][0])
        return None

    def _circle(self, start: Event) -> list[str]:
        came: dict[Event, Event] = {}
        waiting = deque([start])
        while waiting:
            event = waiting.popleft()
            for other in self.after.get(event, ()):
                if other == start:
                    way = [event]
                    while way[-1] != start:
                        way.append(came[way[-1]])
                    way.reverse()
                    return [self.after[one][two] for one, two in zip(way, [*way[1:], start], strict=True)]
                if other not in came:
                    came[other] = event
                    waiting.append(other)
        raise AssertionError(f"no circle goes through {start}")


def check(history: History, logs: Logs, outcomes: dict[str, Outcome]) -> Iterator[Finding]:
    kept = {one.name: one for one in history.transactions if outcomes[one.name] is Outcome.COMMITTED}
    graph = Graph()
    _add_lives(graph, kept, logs)
    _add_partitions(graph, kept, logs)
    _add_readings(graph, kept, logs)
    _add_groups(graph, kept, history)
    _add_times(graph, kept)
    circle = graph.circle()
    if circle is not None:
        kind = "G1c" if any(READ in why for why in circle) else "G0"
        yield Finding("cycle", f"{kind}: {', '.join(why for why in circle if why)}")


def _add_lives(graph: Graph, kept: dict[str, Transaction], logs: Logs) -> None:
    last: dict[str, str] = {}
    for name, one in kept.items():
        graph.add(("begin", name), ("decide", name), "")
        for value in (append.value for append in one.appends if append.value in logs.offset_of):
            graph.add(("begin", name), ("append", value), f"{name} began before it wrote {value}")
            graph.add(("append", value), ("decide", name), f"{value} was written before {name} ended")
        if one.producer in last:
            before = last[one.producer]
            graph.add(("decide", before), ("begin", name), f"{before} ended before its producer began {name}")
        if one.producer:
            last[one.producer] = name


def _add_partitions(graph: Graph, kept: dict[str, Transaction], logs: Logs) -> None:
    for place, values in logs.values.items():
        before = ""
        for offset, value in sorted(values.items()):
            if logs.written[value].transaction.name in kept and logs.offset_of[value] == offset:
                if before:
                    graph.add(("append", before), ("append", value), f"{before} is before {value} in {place}")
                before = value


def _add_readings(graph: Graph, kept: dict[str, Transaction], logs: Logs) -> None:
    for name, one in kept.items():
        passed = [
            value
            for move in one.moves
            for offset in range(move.start, move.end)
            if (value := logs.values[move.place].get(offset)) is not None
        ]
        for value in [*passed, *one.read]:
            written = logs.written.get(value)
            writer = written.transaction.name if written is not None else name
            if writer != name and writer in kept:
                graph.add(("decide", writer), ("decide", name), f"{value} of {writer} {READ} {name}")


def _add_groups(graph: Graph, kept: dict[str, Transaction], history: History) -> None:
    for (group, place), moved in lanes(history).items():
        ends = {one.move.end: one.transaction.name for one in moved if one.transaction.name in kept}
        for transaction, move in moved:
            name, before = transaction.name, ends.get(move.start)
            if name in kept and before is not None and before != name and move.start < move.end:
                why = f"the offset {move.start} of {group} in {place} from {before} {READ} {name}"
                graph.add(("decide", before), ("decide", name), why)


def _add_times(graph: Graph, kept: dict[str, Transaction]) -> None:
    points: list[tuple[float, int, str]] = []
    for name, one in kept.items():
        points += [(one.began, 0, name), (one.asked, 1, name), (one.ended, 2, name)]
    before: Event | None = None
    for time, kind, name in sorted(point for point in points if LONG_AGO < point[0] < NEVER):
        point = ("time", f"{time} {kind} {name}")
        if before is not None:
            graph.add(before, point, "")
        before = point
        if kind == 0:
            graph.add(point, ("begin", name), f"{name} began at {time:.3f}")
        elif kind == 1:
            graph.add(point, ("decide", name), f"{name} asked for its commit at {time:.3f}")
        else:
            graph.add(("decide", name), point, f"{name} was answered at {time:.3f}")
