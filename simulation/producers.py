"""Writers: idempotent ones that try again until they are heard, as clients do, and bare ones that do not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

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
from simulation.topics import Topic

if TYPE_CHECKING:
    from simulation.scene import Scene

IN_FLIGHT_MAX = 4
BARE_PATIENCE_SECONDS = 60.0
"""Who waits so long hears what a broker has to say that slept meanwhile."""
BY_ID_FROM = 13

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


class Batch(msgspec.Struct):
    data: bytes
    values: list[bytes]
    sequence: int


class Writer(Client):
    """Sends batches to one partition at a time, and tells the checker what became of them."""

    def __init__(self, scene: Scene, name: str) -> None:
        super().__init__(scene, name)
        self._numbers = 0

    def batch(self, partition: int, producer_id: int, producer_epoch: int, sequence: int) -> Batch:
        values = []
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            self._numbers += 1
            values.append(f"<{self.name}-{partition}-{self._numbers}>".encode())
        time = 1_700_000_000_000 + int(self.scene.world.time() * 1000)
        records = [Record(offset, time, None, value) for offset, value in enumerate(values)]
        self.scene.checker.attempted.update(values)
        data = build_batch(
            records, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence
        )
        return Batch(bytes(data), values, sequence)

    async def produce(
        self, broker: int, topic: Topic, partition: int, batch: Batch, patience: float
    ) -> PartitionProduceResponse:
        version = self.rng.choice((3, 9, 12, 13))
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
        self._id = self._epoch = -1
        self.unanswered = 0

    async def run(self) -> None:
        while self._id < 0:
            try:
                answer = await self.ask(
                    self.some_broker(),
                    InitProducerIdRequest(transactional_id=None),
                    InitProducerIdResponse,
                    4,
                )
            except Unreachable:
                await self.pause(0.2)
                continue
            if answer.error_code:
                await self.pause(0.2)
            else:
                self._id, self._epoch = answer.producer_id, answer.producer_epoch
                self.scene.producer_ids(self._id, self.name)
        lanes = [self._lane(topic, index) for topic in self._topics for index in range(topic.partitions)]
        await asyncio.gather(*lanes)

    async def _lane(self, topic: Topic, partition: int) -> None:
        sequence = 0
        while not self.scene.ending:
            batches = []
            for _ in range(self.rng.choice((1, 1, 1, 2, IN_FLIGHT_MAX))):
                batches.append(self.batch(partition, self._id, self._epoch, sequence))
                sequence += len(batches[-1].values)
            self.unanswered += len(batches)
            await self._until_acknowledged(topic, partition, batches)
            await self.pause(self._every)

    async def _until_acknowledged(self, topic: Topic, partition: int, batches: list[Batch]) -> None:
        anew = False
        while batches:
            leader = await self.leader(topic.name, topic.id, partition, anew=anew)
            if leader == NO_LEADER:
                if topic.id in self.scene.checker.deleted:
                    return
                await self.pause(0.1)
                anew = True
                continue
            asked_at = self.scene.world.time()
            results = await asyncio.gather(
                *(self.produce(leader, topic, partition, batch, 8.0) for batch in batches),
                return_exceptions=True,
            )
            left: list[Batch] = []
            for batch, result in zip(batches, results, strict=True):
                if isinstance(result, PartitionProduceResponse):
                    if result.error_code == 0:
                        self.acknowledged(topic, partition, batch, result.base_offset, asked_at, leader)
                        self.unanswered -= 1
                        continue
                    self._judge(result.error_code, batch, first=not left, by=leader)
                elif not isinstance(result, Unreachable):
                    raise result
                left.append(batch)
            batches = left
            anew = True
            if batches:
                if topic.id in self.scene.checker.deleted:
                    return
                await self.pause(0.1)

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
            if leader != NO_LEADER:
                task = asyncio.create_task(self._send(leader, topic, partition))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
            await self.pause(self._every)

    async def _send(self, leader: int, topic: Topic, partition: int) -> None:
        batch = self.batch(partition, -1, -1, -1)
        asked_at = self.scene.world.time()
        try:
            result = await self.produce(leader, topic, partition, batch, BARE_PATIENCE_SECONDS)
        except Unreachable:
            self.leaders.pop((topic.id, partition), None)
            return
        if result.error_code == 0:
            self.acknowledged(topic, partition, batch, result.base_offset, asked_at, leader)
        else:
            self.leaders.pop((topic.id, partition), None)
            if result.error_code not in TRY_AGAIN:
                name = self.code(result.error_code)
                self.scene.checker.fail("P3 refused", f"b{leader} answered {name} to {batch.values[0]!r}")
