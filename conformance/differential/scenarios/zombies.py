"""Requests that come too late or too early: a zombie's beside its successor, and those while an end is under way.

A zombie is a producer whose id somebody else has initialised since. Its requests are sent while its successor is at
several points of a transaction, with the epochs that a zombie may have. The successor must not be hurt: it goes on
and commits, and what readers see is compared.

An end is held up after its decision by a marker that is made here, of a coordinator that is ahead of the real one:
the real one's markers are refused from then on, and the transaction stays in Prepare*.
"""

from collections.abc import Callable, Iterator
from typing import Any

from conformance.differential.scenario import Draw, Step, scenario
from conformance.differential.scenarios.produce import V2_FROM
from conformance.differential.scenarios.topics import create, new_topic
from conformance.differential.scenarios.transactional_records import (
    ADDS_FROM,
    OFFSETS,
    Writer,
    committed,
    shown,
)
from conformance.differential.scenarios.transactions import SECOND, ready

ADDED, MARKED = 3, 1
PLAIN_PRODUCE = 8
AHEAD = 5_000
"""A coordinator epoch that the real coordinator does not reach."""
SUCCESSORS = ("begun", "added", "written", "written and ended", "written in version 2")
ZOMBIES = ((False, -1), (False, 1), (True, -1), (True, -2))
"""Whether it had a transaction open when its successor came, and how far its epoch is off from the successor's. An
open transaction is aborted with an epoch of its own."""
ENDS = tuple((commit, version) for version in (3, SECOND) for commit in (True, False))

Sent = Callable[[Writer, str, int, int, bool], Iterator[Step]]
"""The request under test: of this writer, for this group, at this version, with an epoch that is off by so much, and
perhaps with another's producer id."""


def found(draw: Draw) -> Iterator[Any]:
    """A writer and a group that has a coordinator."""
    one, group = Writer(draw), draw.fresh("group")
    yield create(new_topic(one.topic))
    yield Step({"KeyType": 0, "CoordinatorKeys": [group]}, api="FindCoordinator", version=4)
    yield one, group


def succeed(one: Writer, state: str, wrote: bool) -> Iterator[Step]:
    """A zombie, and then its successor up to some point."""
    yield one.id.begun()
    if wrote:
        yield one.added()
        yield one.written(PLAIN_PRODUCE, 0)
        yield one.id.begun()
        yield from one.id.settled()
    yield one.id.begun()
    second = state.endswith("2")
    if state != "begun" and not second:
        yield one.added()
    if state.startswith("written"):
        yield one.written(ADDS_FROM if second else PLAIN_PRODUCE, 0)
    if state == "written and ended":
        yield from one.ended(commit=True)


def beside(draw: Draw, version: int, sent: Sent) -> Iterator[Step]:
    yield from ready(draw)
    for state in SUCCESSORS:
        for wrote, off in ZOMBIES:
            *before, (one, group) = found(draw)
            yield from before
            yield from succeed(one, state, wrote)
            yield from sent(one, group, version, off, False)
            yield from shown(one, group)
            yield one.producers()
            # The successor goes on. What its zombie could do shows in what it is answered.
            end = SECOND if state.endswith("2") else 3
            if state != "written and ended":
                yield from one.ended(commit=True, version=end) if state != "begun" else ()
            yield one.id.shown()
            yield from one.looked_at()


def while_ending(draw: Draw, version: int, sent: Sent) -> Iterator[Step]:
    yield from ready(draw)
    for commit, end in ENDS:
        for off, foreign in OFFSETS:
            *before, (one, group) = found(draw)
            yield from before
            yield one.id.begun()
            yield one.id.begun()
            yield one.added()
            ahead = {"TransactionResult": False, "CoordinatorEpoch": AHEAD, **one.id.given()}
            topics = [{"Name": one.topic, "PartitionIndexes": [0]}]
            yield Step({"Markers": [{**ahead, "Topics": topics}]}, api="WriteTxnMarkers", version=MARKED)
            yield one.id.ended(commit, end)
            yield one.id.shown()
            yield from sent(one, group, version, off, foreign)
            yield one.id.shown()


def produced(one: Writer, group: str, version: int, off: int, foreign: bool) -> Iterator[Step]:
    for sequence in (0, 2):
        yield one.written(version, sequence, f"{off:+d} {foreign} from {sequence}", off=off, foreign=foreign)


def partitions_added(one: Writer, group: str, version: int, off: int, foreign: bool) -> Iterator[Step]:
    given = one.id.given(off, foreign)
    topics = [{"Name": one.topic, "Partitions": [0]}]
    note = f"{off:+d} {foreign}"
    if version <= ADDED:
        body = {f"V3AndBelow{name}": value for name, value in given.items()}
        yield Step({"V3AndBelowTransactionalId": one.id.name, "V3AndBelowTopics": topics, **body}, note=note)
        return
    for verify in (True, False):
        transaction = {"TransactionalId": one.id.name, "VerifyOnly": verify, "Topics": topics, **given}
        yield Step({"Transactions": [transaction]}, note=f"{note} {verify}")


def offsets_added(one: Writer, group: str, version: int, off: int, foreign: bool) -> Iterator[Step]:
    body = {"TransactionalId": one.id.name, "GroupId": group, **one.id.given(off, foreign)}
    yield Step(body, api="AddOffsetsToTxn", version=version, note=f"{off:+d} {foreign}")


def offsets_committed(one: Writer, group: str, version: int, off: int, foreign: bool) -> Iterator[Step]:
    yield committed(one, group, one.id.given(off, foreign), version)


def ended(one: Writer, group: str, version: int, off: int, foreign: bool) -> Iterator[Step]:
    for commit in (True, False):
        body = {"TransactionalId": one.id.name, "Committed": commit, **one.id.given(off, foreign)}
        yield Step(body, note=f"{off:+d} {foreign} {commit}")


def begun_again(one: Writer, group: str, version: int, off: int, foreign: bool) -> Iterator[Step]:
    body = {"TransactionalId": one.id.name, "TransactionTimeoutMs": 60_000, **one.id.given(off, foreign)}
    yield Step(body, note=f"{off:+d} {foreign}")


def begun_again_and_over(one: Writer, group: str, version: int, off: int, foreign: bool) -> Iterator[Step]:
    """It may end the successor's transaction. When the partition learns of that is nobody's promise."""
    yield from begun_again(one, group, version, off, foreign)
    yield from one.id.settled(within_s=0.3)


@scenario("Produce")
def produce_as_a_zombie(draw: Draw, version: int) -> Iterator[Step]:
    yield from beside(draw, version, produced) if version >= V2_FROM else ()


@scenario("Produce")
def produce_after_a_refusal(draw: Draw, version: int) -> Iterator[Step]:
    """A batch that was refused, and what follows it: in the same transaction, and in the next."""
    if version < V2_FROM:
        return
    yield from ready(draw)
    for following in (0, 2):
        for foreign in (False, True):
            *before, (one, _group) = found(draw)
            yield from before
            yield one.id.begun()
            yield one.written(version, 0, f"refused {foreign}", foreign=foreign)
            yield one.added()
            yield one.written(version, following, f"then {following}")
            yield one.written(version, 0, "then from 0")
            yield one.written(version, 2, "then from 2")
            yield from one.looked_at()
            yield from one.ended(commit=True, version=SECOND if version >= ADDS_FROM else 3)
            yield from one.looked_at()


@scenario("Produce")
def produce_while_ending(draw: Draw, version: int) -> Iterator[Step]:
    yield from while_ending(draw, version, produced) if version >= V2_FROM else ()


@scenario("AddPartitionsToTxn")
def add_as_a_zombie(draw: Draw, version: int) -> Iterator[Step]:
    yield from beside(draw, version, partitions_added)


@scenario("AddPartitionsToTxn")
def add_while_ending(draw: Draw, version: int) -> Iterator[Step]:
    yield from while_ending(draw, version, partitions_added)


@scenario("AddOffsetsToTxn")
def add_offsets_as_a_zombie(draw: Draw, version: int) -> Iterator[Step]:
    yield from beside(draw, version, offsets_added)


@scenario("AddOffsetsToTxn")
def add_offsets_while_ending(draw: Draw, version: int) -> Iterator[Step]:
    yield from while_ending(draw, version, offsets_added)


@scenario("TxnOffsetCommit")
def offsets_as_a_zombie(draw: Draw, version: int) -> Iterator[Step]:
    yield from beside(draw, version, offsets_committed)


@scenario("TxnOffsetCommit")
def offsets_that_write_nothing(draw: Draw, version: int) -> Iterator[Step]:
    """Whether the group is there afterwards."""
    yield from ready(draw)
    long = [{"PartitionIndex": 0, "CommittedOffset": 1, "CommittedMetadata": "m" * 5000}]
    for kind in ("no topic", "an absent topic", "metadata that is too long", "another epoch"):
        *before, (one, group) = found(draw)
        yield from before
        yield one.id.begun()
        yield one.id.begun()
        yield from offsets_added(one, group, 3, 0, False)
        topics: list[dict[str, Any]] = []
        if kind == "an absent topic":
            topics = [{"Name": draw.fresh("absent"), "Partitions": long[:1]}]
        elif kind != "no topic":
            topics = [{"Name": one.topic, "Partitions": long}]
        given = one.id.given(-1 if kind == "another epoch" else 0)
        body = {"TransactionalId": one.id.name, "GroupId": group, "Topics": topics, **given}
        yield Step(body, note=kind)
        yield Step({"Groups": [group]}, api="DescribeGroups", version=6, note=kind)
        yield Step({}, api="ListGroups", version=4, only=group, note=kind)


@scenario("TxnOffsetCommit")
def offsets_while_ending(draw: Draw, version: int) -> Iterator[Step]:
    yield from while_ending(draw, version, offsets_committed)


@scenario("EndTxn")
def end_as_a_zombie(draw: Draw, version: int) -> Iterator[Step]:
    yield from beside(draw, version, ended)


@scenario("EndTxn")
def end_while_ending(draw: Draw, version: int) -> Iterator[Step]:
    yield from while_ending(draw, version, ended)


@scenario("InitProducerId")
def begin_as_a_zombie(draw: Draw, version: int) -> Iterator[Step]:
    yield from beside(draw, version, begun_again_and_over) if version >= 3 else ()


@scenario("InitProducerId")
def begin_while_ending(draw: Draw, version: int) -> Iterator[Step]:
    yield from while_ending(draw, version, begun_again) if version >= 3 else ()
