"""Transactions in partitions: Produce, TxnOffsetCommit and WriteTxnMarkers in each state of an id, with each
kind of epoch; and what readers of both levels are told of the records."""

from collections.abc import Iterator
from typing import Any

from conformance.differential.scenario import Draw, Ref, Step, learned, scenario, topic_id
from conformance.differential.scenarios.base import items, produce_body
from conformance.differential.scenarios.produce import V2_FROM, topic
from conformance.differential.scenarios.topics import create, new_topic
from conformance.differential.scenarios.transactions import FOREIGN_ID, SECOND, Id, ready
from conformance.differential.world import World
from conformance.wire.batches import batch

TRANSACTIONAL = 0x10
ADDS_FROM = 12
"""The version of Produce that adds its partitions."""
OFFSETS_ADD_FROM = 5
COMMITTED = 1
OFFSETS = ((0, False), (-1, False), (1, False), (0, True))
"""How far an epoch is off, and whether the producer id is another's."""


class Writer:
    """One transactional id and a topic of its own."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.id = Id(draw)
        self.topic = draw.fresh("written")

    def records(self, sequence: int, off: int = 0, foreign: bool = False, flags: int = TRANSACTIONAL) -> Ref:
        some = items(self.draw.chance, 2, self.draw.past_ms())

        def build(world: World) -> bytes:
            epoch = world.learned.get(f"{self.id.slot} epoch", 1) + off
            known = world.learned.get(self.id.slot, FOREIGN_ID)
            return batch(
                some,
                producer_id=FOREIGN_ID if foreign else known,
                producer_epoch=epoch,
                sequence=sequence,
                flags=flags,
            )

        return Ref(f"batch of {self.id.slot} at {sequence}", build)

    def written(self, version: int, sequence: int, note: str = "", **changes: Any) -> Step:
        named = topic(self.topic, version)
        body = produce_body(named, 0, self.records(sequence, **changes), TransactionalId=self.id.name)
        return Step(body, api="Produce", version=version, note=note)

    def added(self) -> Step:
        body = {f"V3AndBelow{name}": value for name, value in self.id.given().items()}
        topics = [{"Name": self.topic, "Partitions": [0]}]
        return Step(
            {"V3AndBelowTransactionalId": self.id.name, "V3AndBelowTopics": topics, **body},
            api="AddPartitionsToTxn",
            version=3,
        )

    def ended(self, *, commit: bool, version: int = 3) -> Iterator[Step]:
        yield self.id.ended(commit, version)
        yield from self.id.settled()

    def producers(self) -> Step:
        body = {"Topics": [{"Name": self.topic, "PartitionIndexes": [0]}]}
        return Step(body, api="DescribeProducers", version=0)

    def fetched(self, offset: int, isolation: int) -> Step:
        asked = {"Partition": 0, "FetchOffset": offset, "PartitionMaxBytes": 1 << 20}
        body = {
            "MaxWaitMs": 0,
            "MinBytes": 0,
            "IsolationLevel": isolation,
            "Topics": [{"Topic": self.topic, "Partitions": [asked]}],
        }
        return Step(body, api="Fetch", version=11, note=f"from {offset} at level {isolation}")

    def listed(self, timestamp: int, isolation: int) -> Step:
        asked = {"PartitionIndex": 0, "CurrentLeaderEpoch": -1, "Timestamp": timestamp}
        body = {
            "ReplicaId": -1,
            "IsolationLevel": isolation,
            "Topics": [{"Name": self.topic, "Partitions": [asked]}],
        }
        return Step(body, api="ListOffsets", version=7, note=f"of {timestamp} at level {isolation}")

    def looked_at(self) -> Iterator[Step]:
        for isolation in (0, COMMITTED):
            yield self.fetched(0, isolation)
            yield self.listed(-1, isolation)
        yield self.producers()


def begun(draw: Draw, version: int) -> Iterator[Any]:
    """A writer whose id is initialised and whose transaction has its partition, as clients of the version do
    it."""
    one = Writer(draw)
    yield create(new_topic(one.topic))
    yield one.id.begun()  # Twice, so that there is an epoch before.
    yield one.id.begun()
    if version < ADDS_FROM:
        yield one.added()
    yield one


def steps(parts: Iterator[Any], found: list[Writer]) -> Iterator[Step]:
    for part in parts:
        if isinstance(part, Writer):
            found.append(part)
        else:
            yield part


@scenario("Produce")
def produce_into_transactions(draw: Draw, version: int) -> Iterator[Step]:
    if version < V2_FROM:
        return
    yield from ready(draw)
    end = SECOND if version >= ADDS_FROM else 3
    found: list[Writer] = []
    yield from steps(begun(draw, version), found)
    one = found[-1]
    yield one.written(version, 0, "first")
    yield one.written(version, 2, "second")
    yield one.written(version, 0, "first again")
    yield one.written(version, 9, "a gap")
    yield one.written(version, 4, "a plain batch", flags=0)
    yield one.written(version, 4, "an epoch behind", off=-1)
    yield from one.looked_at()
    yield from one.ended(commit=True, version=end)
    yield from one.looked_at()
    if version < ADDS_FROM:
        yield one.written(version, 4, "late")
    else:
        yield one.written(version, 4, "the first of the next, not from 0")
        yield one.written(version, 0, "the first of the next")
    yield from one.looked_at()
    if version < ADDS_FROM:
        yield one.added()
        yield one.written(version, 4, "the next transaction")
    yield from one.ended(commit=False, version=end)
    yield from one.looked_at()


@scenario("Produce")
def produce_in_each_state(draw: Draw, version: int) -> Iterator[Step]:
    if version < V2_FROM:
        return
    yield from ready(draw)
    for state in ("none", "Empty", "Ongoing", "Prepared"):
        for off, foreign in OFFSETS:
            one = Writer(draw)
            yield create(new_topic(one.topic))
            if state != "none":
                yield one.id.begun()
                yield one.id.begun()
            if state in ("Ongoing", "Prepared"):
                yield one.added()
            if state == "Prepared":
                yield from one.ended(commit=False)
            yield one.written(version, 0, f"{state} {off:+d} {foreign}", off=off, foreign=foreign)
            yield one.written(version, 2, f"{state} {off:+d} {foreign}, next", off=off, foreign=foreign)
            yield one.producers()


@scenario("Produce")
def produce_from_an_odd_sequence(draw: Draw, version: int) -> Iterator[Step]:
    if version < V2_FROM:
        return
    yield from ready(draw)
    found: list[Writer] = []
    yield from steps(begun(draw, version), found)
    one = found[-1]
    yield one.written(version, 5, "an unknown producer not from 0")
    yield one.written(version, 0, "then from 0")
    yield one.written(version, 7, "then the one after")
    yield from one.looked_at()


@scenario("Produce")
def produce_without_the_right_id(draw: Draw, version: int) -> Iterator[Step]:
    if version < V2_FROM:
        return
    yield from ready(draw)
    found: list[Writer] = []
    yield from steps(begun(draw, version), found)
    one = found[-1]
    named = topic(one.topic, version)
    yield Step(produce_body(named, 0, one.records(0)), note="no transactional id")
    other = produce_body(named, 0, one.records(0), TransactionalId=draw.fresh("other"))
    yield Step(other, note="an id that is not known")


@scenario("Fetch")
def fetch_aborted_transactions(draw: Draw, version: int) -> Iterator[Step]:
    if version < 4:
        return
    yield from ready(draw)
    found: list[Writer] = []
    yield from steps(begun(draw, 0), found)
    first = found[-1]
    second = Writer(draw)
    second.topic = first.topic
    yield second.id.begun()
    yield second.added()
    yield first.written(8, 0)
    yield second.written(8, 0)
    yield first.written(8, 2)
    for step in _fetches(first.topic, version, range(7)):
        yield step
    yield from first.ended(commit=False)
    for step in _fetches(first.topic, version, range(8)):
        yield step
    yield from second.ended(commit=False)
    yield first.added()
    yield first.written(8, 4)
    yield from first.ended(commit=True)
    for step in _fetches(first.topic, version, range(12)):
        yield step


def _fetches(name: str, version: int, offsets: range) -> Iterator[Step]:
    for isolation in (0, COMMITTED):
        for offset in offsets:
            asked = {"Partition": 0, "FetchOffset": offset, "PartitionMaxBytes": 1 << 20}
            named = {"TopicId": topic_id(name)} if version >= 13 else {"Topic": name}
            body = {
                "MaxWaitMs": 0,
                "MinBytes": 0,
                "IsolationLevel": isolation,
                "SessionEpoch": -1,
                "Topics": [{**named, "Partitions": [asked]}],
            }
            yield Step(body, note=f"from {offset} at level {isolation}")


# -- offsets ----------------------------------------------------------------------------------------------


def committed(one: Writer, group: str, given: dict[str, Any], version: int, **more: Any) -> Step:
    partitions = [{"PartitionIndex": 0, "CommittedOffset": 7, "CommittedMetadata": "m"}]
    body = {
        "TransactionalId": one.id.name,
        "GroupId": group,
        "Topics": [{"Name": one.topic, "Partitions": partitions}],
        **given,
        **more,
    }
    return Step(body, api="TxnOffsetCommit", version=version)


def shown(one: Writer, group: str) -> Iterator[Step]:
    for stable in (True, False):
        topics = [{"Name": one.topic, "PartitionIndexes": [0]}]
        body = {"GroupId": group, "Topics": topics, "RequireStable": stable}
        yield Step(body, api="OffsetFetch", version=7, note=f"stable {stable}")


@scenario("TxnOffsetCommit")
def offsets_in_each_state(draw: Draw, version: int) -> Iterator[Step]:
    yield from ready(draw)
    for state in ("none", "Empty", "Ongoing"):
        for off, foreign in OFFSETS:
            one, group = Writer(draw), draw.fresh("group")
            yield create(new_topic(one.topic))
            yield Step({"KeyType": 0, "CoordinatorKeys": [group]}, api="FindCoordinator", version=4)
            if state != "none":
                yield one.id.begun()
                yield one.id.begun()
            if state == "Ongoing":
                added = {"TransactionalId": one.id.name, "GroupId": group, **one.id.given()}
                yield Step(added, api="AddOffsetsToTxn", version=3)
            given = one.id.given(off, foreign)
            yield committed(one, group, given, version)
            yield from shown(one, group)


@scenario("TxnOffsetCommit")
def offsets_take_effect(draw: Draw, version: int) -> Iterator[Step]:
    yield from ready(draw)
    end = SECOND if version >= OFFSETS_ADD_FROM else 3
    for commit in (True, False):
        one, group = Writer(draw), draw.fresh("group")
        yield create(new_topic(one.topic))
        yield Step({"KeyType": 0, "CoordinatorKeys": [group]}, api="FindCoordinator", version=4)
        yield one.id.begun()
        if version < OFFSETS_ADD_FROM:
            added = {"TransactionalId": one.id.name, "GroupId": group, **one.id.given()}
            yield Step(added, api="AddOffsetsToTxn", version=3)
        yield committed(one, group, one.id.given(), version)
        yield from shown(one, group)
        yield from one.ended(commit=commit, version=end)
        yield from shown(one, group)
        yield committed(one, group, one.id.given(), version)


@scenario("TxnOffsetCommit")
def offsets_with_odd_values(draw: Draw, version: int) -> Iterator[Step]:
    yield from ready(draw)
    one, group = Writer(draw), draw.fresh("group")
    yield create(new_topic(one.topic))
    yield Step({"KeyType": 0, "CoordinatorKeys": [group]}, api="FindCoordinator", version=4)
    yield one.id.begun()
    added = {"TransactionalId": one.id.name, "GroupId": group, **one.id.given()}
    yield Step(added, api="AddOffsetsToTxn", version=3)
    given = one.id.given()
    if version >= 3:
        yield committed(one, group, given, version, GenerationId=3, MemberId="nobody")
        yield committed(one, group, given, version, GenerationId=-1, MemberId="nobody")
        yield committed(one, group, given, version, GenerationId=3, MemberId="", GroupInstanceId="i")
    yield committed(one, "", given, version)
    absent = [{"Name": draw.fresh("absent"), "Partitions": [{"PartitionIndex": 0, "CommittedOffset": 1}]}]
    yield committed(one, group, given, version, Topics=absent)
    for partition in (9, -1):
        topics = [{"Name": one.topic, "Partitions": [{"PartitionIndex": partition, "CommittedOffset": 1}]}]
        yield committed(one, group, given, version, Topics=topics)
    long = [{"PartitionIndex": 0, "CommittedOffset": 1, "CommittedMetadata": "m" * 5000}]
    yield committed(one, group, given, version, Topics=[{"Name": one.topic, "Partitions": long}])
    yield committed(one, group, given, version, Topics=[])
    yield from shown(one, group)


# -- markers ----------------------------------------------------------------------------------------------


@scenario("WriteTxnMarkers")
def markers_of_each_kind(draw: Draw, version: int) -> Iterator[Step]:
    yield from ready(draw)
    for transaction_version in (0, 1, 2) if version >= 2 else (0,):
        for open_ in (True, False):
            for off in (-1, 0, 1):
                for coordinator in (-1, 0, 5):
                    found: list[Writer] = []
                    yield from steps(begun(draw, 0), found)
                    one = found[-1]
                    yield one.written(8, 0)
                    if not open_:
                        yield from one.ended(commit=True)
                    marker = {
                        **one.id.given(off),
                        "TransactionResult": False,
                        "CoordinatorEpoch": coordinator,
                        "TransactionVersion": transaction_version,
                        "Topics": [{"Name": one.topic, "PartitionIndexes": [0]}],
                    }
                    note = f"version {transaction_version} open {open_} epoch {off:+d} by {coordinator}"
                    yield Step({"Markers": [marker]}, note=note)
                    yield one.fetched(0, COMMITTED)
                    yield one.producers()


@scenario("WriteTxnMarkers")
def markers_where_nothing_is(draw: Draw, version: int) -> Iterator[Step]:
    yield from ready(draw)
    one = Writer(draw)
    yield create(new_topic(one.topic))
    yield one.id.begun()
    marker = {**one.id.given(), "TransactionResult": False, "CoordinatorEpoch": 0}
    absent = {"Name": draw.fresh("absent"), "PartitionIndexes": [0]}
    topics = [{"Name": one.topic, "PartitionIndexes": [0, 7]}, absent]
    yield Step({"Markers": [{**marker, "Topics": topics}]}, note="one that is there")
    yield Step({"Markers": [{**marker, "Topics": []}]}, note="no topic")
    yield Step({"Markers": []}, note="none")
    nobody = {**marker, "ProducerId": 77, "ProducerEpoch": -1, "Topics": topics[:1]}
    yield Step({"Markers": [nobody]}, note="an epoch below 0")
    unknown = {**marker, "ProducerId": learned("nobody at all", 77), "Topics": topics[:1]}
    yield Step({"Markers": [unknown]}, note="a producer that wrote nothing")
    yield from one.looked_at()
