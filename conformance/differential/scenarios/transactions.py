"""The coordinator of transactions: each request in each state, at each version, with each kind of epoch.

A state is reached by requests of fixed versions, on an id of its own. Markers are written behind the answer to
EndTxn, so the scenario goes on when the transaction is seen to be complete.
"""

import math
import time
from collections.abc import Iterator
from typing import Any

from conformance.differential.scenario import Draw, Ref, Step, learned, remember, scenario
from conformance.differential.scenarios.base import DATA
from conformance.differential.world import World

INIT, ADD, END, FIND, DESCRIBE = 4, 3, 3, 4, 0
SECOND = 5
"""The version of EndTxn that takes the next epoch with each end."""
STATES = ("none", "Empty", "Ongoing", "CompleteCommit", "CompleteAbort", "TimedOut")
SECOND_STATES = ("EmptyAbort2", "CompleteCommit2", "CompleteAbort2", "TimedOut2")
SETTLED = ("Empty", "CompleteCommit", "CompleteAbort")
ANSWERED_AGAIN = (15, 16, 51)
FOREIGN_ID = 9_000_000_000


class Id:
    """One transactional id, and the requests of its producer."""

    def __init__(self, draw: Draw) -> None:
        self.name = draw.fresh("id")
        self.slot = f"producer {self.name}"
        self.learn = remember(ProducerId=self.slot, ProducerEpoch=f"{self.slot} epoch")

    def given(self, off: int = 0, foreign: bool = False) -> dict[str, Any]:
        """The producer's id and epoch; with an epoch that is off, or another's id."""
        epoch = f"{self.slot} epoch"
        return {
            "ProducerId": FOREIGN_ID if foreign else learned(self.slot, FOREIGN_ID),
            "ProducerEpoch": Ref(f"epoch{off:+d}", lambda world: world.learned.get(epoch, 1) + off),
        }

    def begun(self, **more: Any) -> Step:
        body = {"TransactionalId": self.name, "TransactionTimeoutMs": 60_000, "ProducerId": -1}
        return Step(
            {**body, "ProducerEpoch": -1, **more}, api="InitProducerId", version=INIT, learn=self.learn
        )

    def added(self) -> Step:
        body = {f"V3AndBelow{name}": value for name, value in self.given().items()}
        topics = [{"Name": DATA, "Partitions": [0]}]
        return Step(
            {"V3AndBelowTransactionalId": self.name, "V3AndBelowTopics": topics, **body},
            api="AddPartitionsToTxn",
            version=ADD,
        )

    def ended(self, commit: bool, version: int = END) -> Step:
        learn = self.learn if version >= SECOND else None
        body = {"TransactionalId": self.name, "Committed": commit, **self.given()}
        return Step(body, api="EndTxn", version=version, learn=learn)

    def shown(self) -> Step:
        return Step({"TransactionalIds": [self.name]}, api="DescribeTransactions", version=DESCRIBE)

    def settled(self, within_s: float = math.inf) -> Iterator[Step]:
        """Go on when no marker is under way. `within_s`: or when the transaction is still open after so long,
        because nobody ended it."""
        absent = {"TransactionalIds": ["nobody has this id"]}
        asked = {"api": "DescribeTransactions", "version": DESCRIBE, "on": "watch"}
        looked: dict[World, float] = {}

        def is_settled(world: World) -> bool:
            began = looked.setdefault(world, time.monotonic())
            state = self.state(world)
            return state in SETTLED or (state == "Ongoing" and time.monotonic() - began > within_s)

        yield Step(absent, **asked, later=True, until=is_settled)  # type: ignore[arg-type]
        yield Step(absent, **asked, collect=True)  # type: ignore[arg-type]

    def state(self, world: World) -> str:
        asked = {"TransactionalIds": [self.name]}
        (answer,) = world.line("look").call("DescribeTransactions", DESCRIBE, asked)["TransactionStates"]
        return str(answer["TransactionState"])

    def reach(self, state: str) -> Iterator[Step]:
        """Requests that bring the id into a state."""
        second = state.endswith("2")
        version = SECOND if second else END
        if state == "none":
            return
        yield self.begun()  # Twice, so that there is an epoch before.
        yield self.begun(**({"TransactionTimeoutMs": 1} if state.startswith("TimedOut") else {}))
        if state == "EmptyAbort2":
            yield self.ended(False, version)
        elif state != "Empty":
            yield self.added()
        if state.startswith("Complete"):
            yield self.ended("Commit" in state, version)
        if state not in ("Empty", "Ongoing"):
            yield from self.settled()


def ready(draw: Draw) -> Iterator[Step]:
    """The coordinators are there, and serve."""
    absent = {"TransactionalIds": ["nobody has this id"]}
    yield Step(absent, api="DescribeTransactions", version=DESCRIBE, later=True, until=_serves, on="watch")
    yield Step(absent, api="DescribeTransactions", version=DESCRIBE, collect=True, on="watch")


def _serves(world: World) -> bool:
    if world.learned.get("transactions are served"):
        return True
    line = world.line("look")
    for number in range(200):
        name = f"ready {number}"
        line.call("FindCoordinator", FIND, {"KeyType": 1, "CoordinatorKeys": [name]})
        body = {"TransactionalId": name, "TransactionTimeoutMs": 1, "ProducerId": -1, "ProducerEpoch": -1}
        if line.call("InitProducerId", INIT, body)["ErrorCode"] in ANSWERED_AGAIN:
            return False
    world.learned["transactions are served"] = True
    return True


CASES = tuple(
    (state, off, foreign)
    for state in (*STATES, *SECOND_STATES)
    for off, foreign in ((0, False), (-1, False), (1, False), (0, True))
)


@scenario("EndTxn")
def end_in_each_state(draw: Draw, version: int) -> Iterator[Step]:
    yield from ready(draw)
    for state, off, foreign in CASES:
        for commit in (True, False):
            one = Id(draw)
            yield from one.reach(state)
            body = {"TransactionalId": one.name, "Committed": commit, **one.given(off, foreign)}
            yield Step(body, note=f"{state} {off:+d} {foreign} {commit}")
            if state != "none":
                yield from one.settled() if state != "Ongoing" or (not off and not foreign) else ()
                yield one.shown()


@scenario("AddPartitionsToTxn")
def add_in_each_state(draw: Draw, version: int) -> Iterator[Step]:
    yield from ready(draw)
    for state, off, foreign in CASES:
        one = Id(draw)
        yield from one.reach(state)
        given = one.given(off, foreign)
        topics = [{"Name": DATA, "Partitions": [0, 1]}]
        for verify in (True, False) if version >= 4 else (False,):
            if version >= 4:
                transaction = {"TransactionalId": one.name, "VerifyOnly": verify, "Topics": topics, **given}
                body: dict[str, Any] = {"Transactions": [transaction]}
            else:
                body = {f"V3AndBelow{name}": value for name, value in given.items()}
                body |= {"V3AndBelowTransactionalId": one.name, "V3AndBelowTopics": topics}
            yield Step(body, note=f"{state} {off:+d} {foreign} {verify}")


@scenario("AddPartitionsToTxn")
def add_what_is_not_there(draw: Draw, version: int) -> Iterator[Step]:
    yield from ready(draw)
    one = Id(draw)
    yield from one.reach("Empty")
    given = one.given()
    for topics in (
        [{"Name": DATA, "Partitions": [0, 44]}, {"Name": draw.fresh("absent"), "Partitions": [0]}],
        [{"Name": "__transaction_state", "Partitions": [0]}, {"Name": DATA, "Partitions": [0]}],
        [{"Name": DATA, "Partitions": []}],
        [],
    ):
        for name in (one.name, ""):
            if version >= 4:
                transaction = {"TransactionalId": name, "VerifyOnly": False, "Topics": topics, **given}
                yield Step({"Transactions": [transaction]})
            else:
                body = {f"V3AndBelow{key}": value for key, value in given.items()}
                yield Step({"V3AndBelowTransactionalId": name, "V3AndBelowTopics": topics, **body})
        yield one.shown()
    if version >= 4:
        yield Step({"Transactions": []}, note="none")


@scenario("AddOffsetsToTxn")
def add_offsets_in_each_state(draw: Draw, version: int) -> Iterator[Step]:
    yield from ready(draw)
    for state, off, foreign in CASES:
        one = Id(draw)
        yield from one.reach(state)
        body = {"TransactionalId": one.name, "GroupId": draw.fresh("group"), **one.given(off, foreign)}
        yield Step(body, note=f"{state} {off:+d} {foreign}")
    one = Id(draw)
    yield from one.reach("Empty")
    yield Step({"TransactionalId": one.name, "GroupId": "", **one.given()}, note="no group")
    yield Step({"TransactionalId": "", "GroupId": "g", **one.given()}, note="no id")


@scenario("InitProducerId")
def begin_in_each_state(draw: Draw, version: int) -> Iterator[Step]:
    yield from ready(draw)
    for state, off, foreign in (*((state, None, False) for state in (*STATES, *SECOND_STATES)), *CASES):
        one = Id(draw)
        yield from one.reach(state)
        body: dict[str, Any] = {"TransactionalId": one.name, "TransactionTimeoutMs": 60_000}
        if off is not None and version >= 3:
            body |= one.given(off, foreign)
        elif off is not None:
            continue
        note = f"{state} {off} {foreign}"
        if state == "Ongoing":
            # Whoever has the right aborts the transaction, and is sent away until that is done.
            yield Step(body, note=note)
            if off is None or not foreign:
                yield from one.settled()
                yield one.shown()
            else:
                continue
        yield Step(body, note=note)
        yield Step(body, note=note + ", again")
        yield one.shown()


@scenario("InitProducerId")
def begin_with_odd_values(draw: Draw, version: int) -> Iterator[Step]:
    yield from ready(draw)
    for timeout_ms in (0, -1, 900_000, 900_001):
        yield Step({"TransactionalId": draw.fresh("id"), "TransactionTimeoutMs": timeout_ms})
    yield Step({"TransactionalId": "", "TransactionTimeoutMs": 0})
    if version >= 3:
        one = Id(draw)
        yield from one.reach("Empty")
        body = {"TransactionalId": one.name, "TransactionTimeoutMs": 1_000}
        yield Step({**body, **one.given(), "ProducerEpoch": -1}, note="id only")
        yield Step({**body, **one.given(), "ProducerId": -1}, note="epoch only")


@scenario("DescribeTransactions")
def describe_each_state(draw: Draw, version: int) -> Iterator[Step]:
    yield from ready(draw)
    for state in (*STATES, *SECOND_STATES):
        one = Id(draw)
        yield from one.reach(state)
        yield one.shown()
    yield Step({"TransactionalIds": [""]})
    yield Step({"TransactionalIds": []})


@scenario("ListTransactions")
def list_by_each_filter(draw: Draw, version: int) -> Iterator[Step]:
    yield from ready(draw)
    ids = []
    for state in ("Empty", "Ongoing", "CompleteCommit", "CompleteAbort"):
        one = Id(draw)
        ids.append(one)
        yield from one.reach(state)
        plain = {"StateFilters": [], "ProducerIdFilters": [learned(one.slot)]}
        yield Step(plain)
        for states in (["Ongoing"], ["ongoing"], ["Odd"], ["Dead", state], ["Odd", state]):
            yield Step({**plain, "StateFilters": states})
        if version >= 1:
            for duration in (-1, 0, 3_600_000):
                yield Step({**plain, "DurationFilter": duration}, note=f"{state} {duration}")
        if version >= 2:
            for pattern in (one.name, one.name[:-1], one.name[:-1] + ".", ".*", "", "(", "a{2,1}", None):
                yield Step({**plain, "TransactionalIdPattern": pattern}, note=f"pattern {pattern}")
