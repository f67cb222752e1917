"""Writers: idempotent ones try again until they are answered, as clients do; bare ones do not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.wire.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.api.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.batch import Record, build_batch
from penstock.wire.errors import ErrorCode
from simulation.client import NO_LEADER, Client, Unreachable
from simulation.topics import COMPACTED, Topic

if TYPE_CHECKING:
    from simulation.scene import Scene

IN_FLIGHT_MAX = 4
RETRY_SECONDS = 0.2
BARE_PATIENCE_SECONDS = 60.0
"""Who waits so long hears what a broker has to say that slept meanwhile."""
PRODUCE_BY_ID = 13
"""The first version that says the id of a topic, and not its name."""
KEYS = (b"a", b"b", b"c", b"d")

TRY_AGAIN = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    )
)


CONFUSED = frozenset((ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID))


class Identity(NamedTuple):
    producer_id: int
    producer_epoch: int
    cuts: int
    """Power cuts before it was given."""


class Batch(msgspec.Struct):
    data: bytes
    values: list[bytes]
    sequence: int


class Writer(Client):
    """Sends batches to one partition at a time, and tells the checker what became of them."""

    def __init__(self, scene: Scene, name: str) -> None:
        super().__init__(scene, name)
        self._numbers = 0

    def batch(
        self,
        topic: Topic,
        partition: int,
        producer_id: int,
        producer_epoch: int,
        sequence: int,
        *,
        transactional: bool = False,
        count: int | None = None,
    ) -> Batch:
        checker = self.scene.checker
        time = 1_700_000_000_000 + int(self.scene.world.time() * 1000)
        values: list[bytes] = []
        records = []
        for offset in range(count or self.rng.choice((1, 1, 2, 3))):
            self._numbers += 1
            value = f"<{self.name}-{partition}-{self._numbers}>".encode()
            key = None
            if topic.kind == COMPACTED:
                checker.keys[value] = key = self.rng.choice(KEYS)
            checker.where[value] = (topic.id, partition)
            self.scene.ages.sent[value] = self.scene.world.time()
            values.append(value)
            records.append(Record(offset, time, key, value))
        checker.attempted.update(values)
        data = build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        return Batch(bytes(data), values, sequence)

    async def produce(
        self, broker: int, topic: Topic, partition: int, batch: Batch, patience: float
    ) -> PartitionProduceResponse:
        version = PRODUCE_BY_ID if topic.by_id else self.rng.choice((3, 9, 12, 13))
        part = PartitionProduceData(index=partition, records=memoryview(batch.data))
        data = TopicProduceData(name=topic.name, topic_id=topic.id, partition_data=[part])
        request = ProduceRequest(acks=self.rng.choice((1, -1)), timeout_ms=30_000, topic_data=[data])
        self.note(
            f"send {batch.values[0].decode()} x{len(batch.values)} to b{broker} {topic.name}-{partition}"
        )
        answer = await self.ask(broker, request, ProduceResponse, version, patience)
        parts = [one for told in answer.responses for one in told.partition_responses]
        if len(answer.responses) != 1 or [one.index for one in parts] != [partition]:
            self.scene.checker.fail(
                "P5 whole", f"b{broker} answered a produce to {topic.name}-{partition}: {answer}"
            )
        self.note(
            f"b{broker} said {self.code(parts[0].error_code)} at {parts[0].base_offset} "
            f"of {batch.values[0].decode()}"
        )
        return parts[0]

    def acknowledged(
        self, topic: Topic, partition: int, batch: Batch, base: int, asked_at: float, by: int
    ) -> None:
        if base < 0:
            self.scene.checker.fail("P3 offset", f"b{by} acknowledged {batch.values[0]!r} at offset {base}")
        for delta, value in enumerate(batch.values):
            self.scene.checker.record_acknowledged(
                (topic.id, partition), base + delta, value, asked_at, f"b{by}"
            )


class IdempotentProducer(Writer):
    """Several batches in flight per partition; all are sent again, in order, until all are acknowledged."""

    def __init__(self, scene: Scene, name: str, topics: list[Topic], every: float) -> None:
        super().__init__(scene, name)
        self._topics = topics
        self._every = every
        self.unanswered = 0

    async def run(self) -> None:
        identity = await self.identify()
        lanes = [
            self.lane(topic, index, identity) for topic in self._topics for index in range(topic.partitions)
        ]
        await asyncio.gather(*lanes)

    async def identify(self) -> Identity:
        while True:
            with contextlib.suppress(Unreachable):
                cuts = self.scene.checker.cuts
                request = InitProducerIdRequest(transactional_id=None)
                answer = await self.ask(self.some_broker(), request, InitProducerIdResponse, 4)
                if not answer.error_code:
                    self.scene.producer_ids(answer.producer_id, self.name)
                    return Identity(answer.producer_id, answer.producer_epoch, cuts)
            await self.pause(0.2)

    async def lane(self, topic: Topic, partition: int, identity: Identity) -> None:
        sequence = 0
        while not self.scene.ending and topic.id not in self.scene.checker.deleted:
            batches: list[Batch] = []
            unknown = sequence == 0
            for _ in range(self.rng.choice((1, 1, 1, 2, IN_FLIGHT_MAX))):
                batches.append(self.batch(topic, partition, *identity[:2], sequence))
                sequence += len(batches[-1].values)
            self.unanswered += len(batches)
            if not await self._until_acknowledged(topic, partition, batches, identity.cuts, unknown):
                identity, sequence = await self.identify(), 0
            await self.pause(self._every)

    async def _until_acknowledged(
        self, topic: Topic, partition: int, batches: list[Batch], cuts: int, unknown: bool
    ) -> bool:
        """False if what brokers knew of this producer is lost, as some faults may do. `unknown`: the
        partition has nothing of this producer yet. Whatever batch it takes first counts as the first then,
        also if one that was sent before it was refused."""
        checker = self.scene.checker
        key = (topic.id, partition)
        anew = overtaken = False
        while batches:
            leader = await self.leader(topic.name, topic.id, partition, anew=anew)
            anew = True
            if topic.id in checker.deleted or (key in checker.closed and self.scene.ending):
                return True
            if checker.cuts != cuts:
                return False
            if leader == NO_LEADER:
                await self.pause(RETRY_SECONDS)
                continue
            asked_at = self.scene.world.time()
            left: list[Batch] = []
            results = await self._send(leader, topic, partition, batches)
            if checker.cuts != cuts:
                return False
            for batch, result in zip(batches, results, strict=True):
                if isinstance(result, PartitionProduceResponse):
                    if result.error_code == 0:
                        self.acknowledged(topic, partition, batch, result.base_offset, asked_at, leader)
                        self.unanswered -= 1
                        overtaken = overtaken or (unknown and bool(left))
                        continue
                    if result.error_code in CONFUSED and (key in checker.hurt or overtaken):
                        return False
                    self._judge(result.error_code, batch, first=not left, by=leader)
                elif not isinstance(result, Unreachable):
                    raise result
                left.append(batch)
            batches = left
            if batches:
                await self.pause(RETRY_SECONDS)
        return True

    async def _send(
        self, leader: int, topic: Topic, partition: int, batches: list[Batch]
    ) -> Sequence[PartitionProduceResponse | BaseException]:
        """What became of each batch. Nothing is made where nobody listens."""
        try:
            await self.link(leader)
            if len(batches) == 1:
                return (await self.produce(leader, topic, partition, batches[0], 8.0),)
        except Unreachable as error:
            return (error,) * len(batches)
        return await asyncio.gather(
            *(self.produce(leader, topic, partition, batch, 8.0) for batch in batches),
            return_exceptions=True,
        )

    def _judge(self, code: int, batch: Batch, *, first: bool, by: int) -> None:
        """Some refusals must not happen to a producer that does everything right."""
        if code in TRY_AGAIN:
            return
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not first:
            return  # The one before it failed, and both are sent again.
        name = self.code(code)
        self.scene.checker.fail("P3 refused", f"b{by} answered {name} to {batch.values[0]!r}, which was next")


class BareWriter(Writer):
    """Sends each value once, and waits for the answer however long it takes."""

    def __init__(self, scene: Scene, name: str, topics: list[Topic], every: float) -> None:
        super().__init__(scene, name)
        self._topics = topics
        self._every = every

    async def run(self) -> None:
        waiting: set[asyncio.Task[None]] = set()
        while not self.scene.ending:
            topic = self.rng.choice(self._topics)
            partition = self.rng.randrange(topic.partitions)
            leader = await self.leader(topic.name, topic.id, partition, anew=self.rng.random() < 0.3)
            if leader != NO_LEADER and topic.id not in self.scene.checker.deleted:
                task = asyncio.create_task(self._send(leader, topic, partition))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
            await self.pause(self._every)

    async def _send(self, leader: int, topic: Topic, partition: int) -> None:
        batch = self.batch(topic, partition, -1, -1, -1)
        asked_at, cuts = self.scene.world.time(), self.scene.checker.cuts
        try:
            result = await self.produce(leader, topic, partition, batch, BARE_PATIENCE_SECONDS)
        except Unreachable:
            self.leaders.pop((topic.id, partition), None)
            return
        if self.scene.checker.cuts != cuts:
            return
        if result.error_code == 0:
            self.acknowledged(topic, partition, batch, result.base_offset, asked_at, leader)
        else:
            self.leaders.pop((topic.id, partition), None)
            if result.error_code not in TRY_AGAIN:
                name = self.code(result.error_code)
                self.scene.checker.fail("P3 refused", f"b{leader} answered {name} to {batch.values[0]!r}")
