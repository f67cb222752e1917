"""What each client does with transactions: one table of scenes, played on Apache Kafka and on Penstock alike.

A scene is a list of steps with what must come of each. Beside that, everything that a client was told is noted
in its own words, so that two brokers can be compared by it.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from conformance.client import Client, ClientFailed, Session
from conformance.clients.protocol import Record
from conformance.transactions import asking
from conformance.transactions.places import Place
from penstock.testing.waiting import until

PARTITIONS = 2
MANY = 20
LARGE = 5_000
TIMEOUT_MS = 60_000
SHORT_MS = 1_500
"""Time-out of the transaction that is to time out."""
ENDED_WITHIN_S = 30.0
VISIBLE_WITHIN_S = 10.0
REFUSED = "refused"


class Wrong(Exception):
    """A step did not come out as it must."""


@dataclass(slots=True)
class Stage:
    """One client on one place: its sessions, its topics, what it wrote and what it was told."""

    place: Place
    client: Client
    sizes: dict[str, int] = field(default_factory=lambda: {"large": LARGE})
    sessions: dict[str, Session] = field(default_factory=dict)
    written: dict[tuple[str, int], list[tuple[str, bool]]] = field(default_factory=lambda: defaultdict(list))
    """By topic and partition, in the order of offsets: a value, and whether it was committed."""
    told: list[str] = field(default_factory=list)
    numbers: int = 0

    @property
    def topic(self) -> str:
        return f"transactions-{self.client.name}"

    @property
    def many(self) -> str:
        return f"many-{self.client.name}"

    @property
    def group(self) -> str:
        return f"group-{self.client.name}"

    def id(self, scene: str) -> str:
        return f"{self.client.name}-{scene}"

    def step(self, who: str, do: str, wanted: str = "ok", **details: Any) -> bool:
        """Whether the client was let do it. `wanted`: ok, refused, or any."""
        if who not in self.sessions:
            self.sessions[who] = Session(self.client, self.place.bootstrap)
        try:
            self.sessions[who].step(do, **details)
        except ClientFailed as why:
            self.told.append(f"{who} {do}: {why.kind or why}")
            if wanted == "ok" or not why.kind:
                raise Wrong(f"{do}: {why}") from None
            return False
        self.told.append(f"{who} {do}: ok")
        if wanted == REFUSED:
            raise Wrong(f"{do} was not refused")
        return True

    def values(self, count: int) -> list[str]:
        self.numbers += count
        return [f"value {number}" for number in range(self.numbers - count, self.numbers)]

    def send(
        self, who: str, count: int, committed: bool, topic: str | None = None, partitions: int = 0
    ) -> None:
        """Values to all partitions in turn, in one step that must be let."""
        where = topic or self.topic
        records, notes = [], []
        for at, value in enumerate(self.values(count)):
            partition = at % (partitions or PARTITIONS)
            records.append(Record(None, value.encode(), partition=partition).to_json())
            notes.append(((where, partition), (value, committed)))
        self.step(who, "send", topic=where, records=records)
        for place, note in notes:
            self.written[place].append(note)

    def send_in_vain(self, who: str) -> bool:
        """A value that must not be let into the log. Some libraries take it and say so at the end only."""
        record = Record(None, b"in vain", partition=0).to_json()
        return self.step(who, "send", REFUSED, topic=self.topic, records=[record])

    def offset_is(self, *wanted: int | str, partition: int = 0) -> None:
        """A group's offset becomes visible when the markers have come, which is after the answer."""
        found: list[int | str] = []

        def holds() -> bool:
            found.append(asking.committed(self.place, self.group, self.topic, partition))
            return found[-1] in wanted

        try:
            until(holds, VISIBLE_WITHIN_S, "it", every_s=0.05)
        except AssertionError:
            raise Wrong(f"the group is at {found[-1]}, not at {wanted}") from None
        self.told.append(f"offset {found[-1]}")

    def state_is(self, id: str, *wanted: str) -> None:
        found: list[str] = []

        def holds() -> bool:
            found.append(asking.state(self.place, id))
            return found[-1] in wanted

        try:
            until(holds, ENDED_WITHIN_S, "it", every_s=0.1)
        except AssertionError:
            raise Wrong(f"{id} is {found[-1]}, not {' or '.join(wanted)}") from None
        self.told.append(f"state {found[-1]}")

    def leave(self, *names: str) -> None:
        for name in names or list(self.sessions):
            self.sessions.pop(name).close()


def open_one(stage: Stage, scene: str, timeout_ms: int = TIMEOUT_MS, who: str = "one") -> None:
    stage.step(who, "open", id=stage.id(scene), timeout_ms=timeout_ms)


def commit(stage: Stage) -> None:
    """Two transactions after each other."""
    open_one(stage, "commit")
    for _ in range(2):
        stage.step("one", "begin")
        stage.send("one", 6, committed=True)
        stage.step("one", "commit")
    stage.state_is(stage.id("commit"), "CompleteCommit")


def abort(stage: Stage) -> None:
    """Aborted, committed, aborted: by the same producer."""
    open_one(stage, "abort")
    for last in ("abort", "commit", "abort"):
        stage.step("one", "begin")
        stage.send("one", 6, committed=last == "commit")
        stage.step("one", last)
    stage.state_is(stage.id("abort"), "CompleteAbort")


def empty(stage: Stage) -> None:
    """Transactions of nothing, and then one of something."""
    open_one(stage, "empty")
    for last in ("commit", "abort", "commit"):
        stage.step("one", "begin")
        stage.step("one", last)
    stage.step("one", "begin")
    stage.send("one", 2, committed=True)
    stage.step("one", "commit")


def many(stage: Stage) -> None:
    """One transaction over all partitions of a topic, committed, and one aborted."""
    open_one(stage, "many")
    for last in ("commit", "abort"):
        stage.step("one", "begin")
        stage.send("one", MANY, last == "commit", stage.many, MANY)
        stage.step("one", last)


def large(stage: Stage) -> None:
    open_one(stage, "large")
    stage.step("one", "begin")
    stage.send("one", stage.sizes["large"], committed=True)
    stage.step("one", "commit")


def offsets(stage: Stage) -> None:
    """Visible with the commit, not before, and never after an abort."""
    open_one(stage, "offsets")
    stage.step("one", "begin")
    stage.send("one", 2, committed=True)
    stage.step("one", "offsets", group=stage.group, topic=stage.topic, offsets={"0": 3})
    # Sarama sends offsets with the commit.
    stage.offset_is("pending", -1)
    stage.step("one", "commit")
    stage.offset_is(3)
    stage.step("one", "begin")
    stage.send("one", 2, committed=False)
    stage.step("one", "offsets", group=stage.group, topic=stage.topic, offsets={"0": 5})
    stage.step("one", "abort")
    stage.offset_is(3)


def timeout(stage: Stage) -> None:
    """Who is late is refused; who comes after with the same id is not."""
    open_one(stage, "timeout", SHORT_MS)
    stage.step("one", "begin")
    stage.send("one", 2, committed=False)
    stage.state_is(stage.id("timeout"), "CompleteAbort")
    stage.step("one", "commit", REFUSED)
    stage.leave("one")
    open_one(stage, "timeout", who="two")
    stage.step("two", "begin")
    stage.send("two", 2, committed=True)
    stage.step("two", "commit")


def late_send(stage: Stage) -> None:
    """The same, but the next thing that it does after the time-out is to send."""
    open_one(stage, "late", SHORT_MS)
    stage.step("one", "begin")
    stage.send("one", 2, committed=False)
    stage.state_is(stage.id("late"), "CompleteAbort")
    stage.send_in_vain("one")


def zombie(stage: Stage) -> None:
    """A second producer of the same id ends the first one's transaction, and the commit of that is refused."""
    open_one(stage, "zombie")
    stage.step("one", "begin")
    stage.send("one", 2, committed=False)
    open_one(stage, "zombie", who="two")
    stage.step("two", "begin")
    stage.send("two", 2, committed=True)
    stage.step("one", "commit", REFUSED)
    stage.send("two", 2, committed=True)
    stage.step("two", "commit")


def zombie_send(stage: Stage) -> None:
    """The same, but what the first one tries is to send. The second has committed by then: kafka-python answers
    the refusal with a new epoch of the id, and so fences whoever fenced it."""
    open_one(stage, "zombie-send")
    stage.step("one", "begin")
    stage.send("one", 2, committed=False)
    open_one(stage, "zombie-send", who="two")
    stage.step("two", "begin")
    stage.send("two", 2, committed=True)
    stage.step("two", "commit")
    stage.send_in_vain("one")


SCENES: dict[str, Callable[[Stage], None]] = {
    scene.__name__.replace("_", " "): scene
    for scene in (commit, abort, empty, many, offsets, zombie, zombie_send, timeout, late_send, large)
}
