"""Several producers of one transactional id take random steps, and both brokers must answer alike.

The seed draws the steps. Each producer keeps what it heard, as a client does: its id, its epoch, and the next
sequence of each partition. So most requests make sense, and those of whoever was fenced meanwhile do not. Clients
of all versions share the id, and one of their topics is deleted and created beside open transactions. After each
step is told what readers see.
"""

from collections.abc import Iterator
from typing import Any

from conformance.differential.scenario import Draw, Learn, Ref, Step, scenario
from conformance.differential.scenarios.base import items, produce_body
from conformance.differential.scenarios.produce import topic
from conformance.differential.scenarios.topics import create, new_topic
from conformance.differential.scenarios.transactional_records import COMMITTED, TRANSACTIONAL
from conformance.differential.scenarios.transactions import FOREIGN_ID, SECOND, Id, ready
from conformance.differential.world import World
from conformance.wire.batches import batch
from conformance.wire.codec import Value

WALKS, STEPS = 2, 30
PARTITIONS = 2
RECORDS = 2
LOOKS_WITHIN_S = 0.2
NO_EPOCH = -1


class Walker:
    """One producer of the id: what it has heard is kept for each broker by itself."""

    def __init__(self, draw: Draw, id: Id, name: str, group: str, written: str, passing: str) -> None:
        self.draw = draw
        self.id = id
        self.slot = f"{id.name} {name}"
        self.group = group
        self.topic = written
        self.passing = passing
        """A topic that is deleted and created now and then."""
        self.name = name
        self.second = draw.pick(True, False)
        """Whether it is a client of transaction version 2. Such clients add nothing: their records do."""

    def known(self, world: World) -> tuple[int, int]:
        known: tuple[int, int] = world.learned.get(self.slot, (FOREIGN_ID, 0))
        return known

    def given(self) -> dict[str, Any]:
        return {
            "ProducerId": Ref(f"id of {self.name}", lambda world: self.known(world)[0]),
            "ProducerEpoch": Ref(f"epoch of {self.name}", lambda world: self.known(world)[1]),
        }

    def is_behind(self, world: World) -> bool:
        newest: tuple[int, int] = world.learned.get(f"newest of {self.id.name}", (FOREIGN_ID, 0))
        return self.known(world) != newest

    def heard(self) -> Learn:
        def learn(world: World, answer: Value) -> None:
            if answer["ErrorCode"] == 0 and answer.get("ProducerId", NO_EPOCH) >= 0:
                told = (answer["ProducerId"], answer["ProducerEpoch"])
                world.learned[self.slot] = world.learned[f"newest of {self.id.name}"] = told

        return learn

    def begins(self, *, goes_on: bool) -> Step:
        version = self.draw.pick(3, 4, 5) if goes_on else self.draw.pick(0, 2, 4, 5)
        none = {"ProducerId": -1, "ProducerEpoch": -1}
        body = {"TransactionalId": self.id.name, "TransactionTimeoutMs": 600_000}
        body |= self.given() if goes_on else none
        return self._said(
            "goes on" if goes_on else "begins", "InitProducerId", version, body, learn=self.heard()
        )

    def adds(self) -> Step:
        places = [{"Name": self.topic, "Partitions": self.draw.pick([0], [1], [0, 1])}]
        if self.draw.pick(True, False, False, False):
            places.append({"Name": self.passing, "Partitions": [0]})
        version = self.draw.pick(0, 2, 3, 5)
        if version > 3:
            verify = self.draw.pick(True, False)
            asked = {"TransactionalId": self.id.name, "VerifyOnly": verify, "Topics": places, **self.given()}
            return self._said(
                "verifies" if verify else "adds", "AddPartitionsToTxn", version, {"Transactions": [asked]}
            )
        body = {f"V3AndBelow{name}": value for name, value in self.given().items()}
        body |= {"V3AndBelowTransactionalId": self.id.name, "V3AndBelowTopics": places}
        return self._said("adds", "AddPartitionsToTxn", version, body)

    def writes(self) -> Step:
        version = self.draw.pick(12, 13) if self.second else self.draw.pick(3, 7, 9, 10, 11)
        name = self.draw.pick(self.topic, self.topic, self.topic, self.passing)
        partition = 0 if name == self.passing else self.draw.chance.randrange(PARTITIONS)
        back = self.draw.pick(0, 0, 0, 0, 0, 0, RECORDS)
        some = items(self.draw.chance, RECORDS, self.draw.past_ms())

        def slot(world: World) -> str:
            return f"{self.known(world)} at {name} {partition} {world.topic_id(name).hex()}"

        def build(world: World) -> bytes:
            producer, epoch = self.known(world)
            sequence = max(0, world.learned.get(slot(world), 0) - back)
            whose = {"producer_id": producer, "producer_epoch": epoch}
            return batch(some, sequence=sequence, flags=TRANSACTIONAL, **whose)

        def learn(world: World, answer: Value) -> None:
            (told,) = answer["Responses"][0]["PartitionResponses"]
            if told["ErrorCode"] == 0 and not back:
                world.learned[slot(world)] = world.learned.get(slot(world), 0) + RECORDS

        records = Ref(f"batch of {self.name}", build)
        body = produce_body(topic(name, version), partition, records, TransactionalId=self.id.name)
        return self._said(f"writes to {name} {partition}, {back} back", "Produce", version, body, learn=learn)

    def adds_offsets(self) -> Step:
        body = {"TransactionalId": self.id.name, "GroupId": self.group, **self.given()}
        return self._said("adds offsets", "AddOffsetsToTxn", self.draw.pick(0, 2, 3, 4), body)

    def commits_offsets(self) -> Step:
        partitions = [
            {"PartitionIndex": self.draw.pick(0, 1), "CommittedOffset": self.draw.chance.randrange(99)}
        ]
        body = {
            "TransactionalId": self.id.name,
            "GroupId": self.group,
            "Topics": [{"Name": self.topic, "Partitions": partitions}],
            **self.given(),
        }
        return self._said(
            "commits offsets", "TxnOffsetCommit", 5 if self.second else self.draw.pick(0, 2, 3, 4), body
        )

    def ends(self) -> Step:
        version = SECOND if self.second else self.draw.pick(0, 2, 3, 4)
        commit = self.draw.pick(True, True, False)
        given = self.given()
        if version >= SECOND:
            # Whoever is one epoch behind is told different things, which end_as_a_zombie shows.
            given["ProducerEpoch"] = Ref(
                f"epoch of {self.name}, well behind if behind",
                lambda world: self.known(world)[1] - 2 * self.is_behind(world),
            )
        body = {"TransactionalId": self.id.name, "Committed": commit, **given}
        learn = self.heard() if version >= SECOND else None
        return self._said("commits" if commit else "aborts", "EndTxn", version, body, learn=learn)

    def _said(self, what: str, api: str, version: int, body: Any, learn: Learn | None = None) -> Step:
        return Step(body, api=api, version=version, learn=learn, note=f"{self.name} {what}")


def begins(one: Walker, *, goes_on: bool) -> Iterator[Step]:
    """It may be sent away, while the transaction that stands in its way is aborted."""
    begun = one.begins(goes_on=goes_on)
    yield begun
    yield from one.id.settled(LOOKS_WITHIN_S)
    yield begun


def step(draw: Draw, one: Walker, group: str) -> Iterator[Step]:
    chance = draw.chance.random()
    if chance < 0.06:
        yield from begins(one, goes_on=False)
    elif chance < 0.12:
        yield from begins(one, goes_on=True)
    elif chance < 0.27 and not one.second:
        yield one.adds()
    elif chance < 0.57:
        yield one.writes()
    elif chance < 0.65 and not one.second:
        yield one.adds_offsets()
    elif chance < 0.75:
        yield one.commits_offsets()
    elif chance < 0.78:
        partitions = [{"PartitionIndex": draw.pick(0, 1), "CommittedOffset": draw.chance.randrange(99)}]
        body = {"GroupId": group, "Topics": [{"Name": one.topic, "Partitions": partitions}]}
        yield Step(body, api="OffsetCommit", version=8, note="a commit outside of transactions")
    elif chance < 0.80:
        body = {"GroupId": group, "Topics": [{"Name": one.topic, "Partitions": [{"PartitionIndex": 0}]}]}
        yield Step(body, api="OffsetDelete", version=0)
    elif chance < 0.83:
        # Up to the end: where a batch is cut, Kafka's last stable offset is that of the batch, below the log start.
        partitions = [{"PartitionIndex": draw.pick(0, 1), "Offset": -1}]
        cut: dict[str, Any] = {"Topics": [{"Name": one.topic, "Partitions": partitions}], "TimeoutMs": 5_000}
        yield Step(cut, api="DeleteRecords", version=2)
    elif chance < 0.87:
        yield Step({"TopicNames": [one.passing], "TimeoutMs": 10_000}, api="DeleteTopics", version=4)
        if draw.pick(True, False):
            yield create(new_topic(one.passing))
    else:
        yield one.ends()


def looked_at(one: Walker, group: str) -> Iterator[Step]:
    numbers = range(PARTITIONS)
    places = ((one.topic, numbers), (one.passing, range(1)))
    for isolation in (0, COMMITTED):
        asked = [
            {
                "Name": name,
                "Partitions": [
                    {"PartitionIndex": at, "CurrentLeaderEpoch": -1, "Timestamp": -1} for at in numbers
                ],
            }
            for name, numbers in places
        ]
        body = {"ReplicaId": -1, "IsolationLevel": isolation, "Topics": asked}
        yield Step(body, api="ListOffsets", version=7, note=f"at level {isolation}")
        fetched = [
            {
                "Topic": name,
                "Partitions": [
                    {"Partition": at, "FetchOffset": 0, "PartitionMaxBytes": 1 << 20} for at in numbers
                ],
            }
            for name, numbers in places
        ]
        body = {"MaxWaitMs": 0, "MinBytes": 0, "IsolationLevel": isolation, "Topics": fetched}
        yield Step(body, api="Fetch", version=11, note=f"at level {isolation}")
    yield Step(
        {"Topics": [{"Name": one.topic, "PartitionIndexes": [0, 1]}]}, api="DescribeProducers", version=0
    )
    for stable in (True, False):
        topics = [{"Name": one.topic, "PartitionIndexes": [0, 1]}]
        body = {"GroupId": group, "Topics": topics, "RequireStable": stable}
        yield Step(body, api="OffsetFetch", version=7, note=f"stable {stable}")
    yield one.id.shown()


@scenario("EndTxn")
def transaction_walk(draw: Draw, version: int) -> Iterator[Step]:
    """The version chooses nothing here but other steps."""
    yield from ready(draw)
    for _ in range(WALKS):
        id, group = Id(draw), draw.fresh("group")
        written, passing = draw.fresh("walked"), draw.fresh("passing")
        yield create(new_topic(written, PARTITIONS), new_topic(passing))
        yield Step({"KeyType": 0, "CoordinatorKeys": [group]}, api="FindCoordinator", version=4)
        walkers = [Walker(draw, id, name, group, written, passing) for name in ("one", "two")]
        for one in walkers:
            yield one.begins(goes_on=False)
        for _ in range(STEPS):
            # The one that came last is at work mostly.
            one = draw.pick(*walkers, walkers[-1], walkers[-1])
            yield from step(draw, one, group)
            yield from id.settled(LOOKS_WITHIN_S)
            yield from looked_at(one, group)
