"""Readers and observers. A reader reads one partition from its beginning and gets every offset once, in
order. An observer only asks where a partition ends.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.metadata.image import PartitionKey
from penstock.wire.api.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from penstock.wire.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.wire.batch import check_batch, iter_batches, iter_records
from penstock.wire.errors import BatchError, ErrorCode
from simulation.client import NO_LEADER, Client, Unreachable
from simulation.producers import RETRY_SECONDS, TRY_AGAIN
from simulation.topics import Topic

if TYPE_CHECKING:
    from simulation.scene import Scene

LATEST = -1
EARLIEST = -2
HURT = frozenset((ErrorCode.CORRUPT_MESSAGE, ErrorCode.KAFKA_STORAGE_ERROR))
HURT_AFTER = 8
"""A partition may be unwell for a moment. Who is told so often that records are hurt believes it."""
LIST_OFFSETS_VERSION = 7
PATIENCE_SECONDS = 30.0


class Reader(Client):
    def __init__(self, scene: Scene, name: str, topic: Topic, partition: int) -> None:
        super().__init__(scene, name)
        self._topic = topic
        self._partition = partition
        self.position = 0
        self.start = 0
        self.records: dict[int, bytes] = {}
        self.read_bytes = 0
        """Of the batches that were read."""
        self.hurt: list[range] = []
        """Offsets that are said to be damaged."""
        self.isolation = 0
        self._complaints = 0
        self._cuts = 0

    async def run(self) -> None:
        while not self.scene.ending and self._topic.id not in self.scene.checker.deleted:
            await self.step()

    async def step(self) -> int | None:
        """One fetch; the end of the partition as it was told, None if nothing was."""
        topic, partition = self._topic, self._partition
        if self._cuts != self.scene.checker.cuts:
            self._begin_again()
        leader = await self.leader(topic.name, topic.id, partition, anew=self.rng.random() < 0.02)
        if leader == NO_LEADER:
            await self.pause(RETRY_SECONDS)
            return None
        asked_at = self.scene.world.time()
        try:
            told = await self._fetch(leader)
        except Unreachable:
            self.leaders.pop((topic.id, partition), None)
            await self.pause(RETRY_SECONDS)
            return None
        if self._cuts != self.scene.checker.cuts:
            return None
        if told.error_code:
            self.note(f"b{leader} said {self.code(told.error_code)} to a fetch at {self.position}")
            await self._complain(leader, told)
            await self.pause(RETRY_SECONDS)
            return None
        self._complaints = 0
        self._take(told, f"b{leader}", asked_at)
        return told.high_watermark

    def _begin_again(self) -> None:
        """After a power cut: what was read may be gone."""
        self._cuts = self.scene.checker.cuts
        self.position = 0
        self.records.clear()
        self.hurt.clear()

    async def _complain(self, leader: int, told: PartitionData) -> None:
        checker = self.scene.checker
        key = (self._topic.id, self._partition)
        self.leaders.pop(key, None)
        if self._topic.id in checker.deleted:
            return
        if told.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            start = await self.ask_start(leader)
            if start is None or start > self.position:
                self.position = max(self.position, start or 0)
                return
        elif told.error_code in HURT and key in checker.hurt:
            if self.scene.waits_for_store(leader, key):
                return
            self._complaints += 1
            if self._complaints >= HURT_AFTER or told.error_code == ErrorCode.CORRUPT_MESSAGE:
                damaged = self.scene.damage_at(leader, key, self.position)
                self.hurt.append(damaged)
                self.position = damaged.stop
            return
        elif told.error_code in TRY_AGAIN or self.scene.rots_in_flight(leader):
            return
        name = self.code(told.error_code)
        checker.fail("P3 read", f"b{leader} answered {name} to a fetch at {self.position}")

    async def ask_start(self, leader: int) -> int | None:
        """Where the partition begins; None if that was not told."""
        asked_at, cuts = self.scene.world.time(), self._cuts
        one = ListOffsetsPartition(partition_index=self._partition, timestamp=EARLIEST)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(self._topic.name, [one])])
        try:
            answer = await self.ask(leader, request, ListOffsetsResponse, LIST_OFFSETS_VERSION)
        except Unreachable:
            return None
        told = answer.topics[0].partitions[0]
        if told.error_code or cuts != self.scene.checker.cuts:
            return None
        key = (self._topic.id, self._partition)
        self.scene.checker.start_told(key, told.offset, asked_at, f"b{leader}")
        self.start = max(self.start, told.offset)
        return told.offset

    async def _fetch(self, leader: int) -> PartitionData:
        topic, partition = self._topic, self._partition
        version = self.rng.choice((13, 16) if topic.by_id else (4, 11, 13, 16))
        one = FetchPartition(
            partition=partition, fetch_offset=self.position, partition_max_bytes=self.rng.choice((100, 4096))
        )
        request = FetchRequest(
            max_wait_ms=self.rng.choice((0, 1000, 1000)),
            min_bytes=1,
            max_bytes=65536,
            isolation_level=self.isolation,
            topics=[FetchTopic(topic=topic.name, topic_id=topic.id, partitions=[one])],
        )
        answer = await self.ask(leader, request, FetchResponse, version)
        parts = [one for told in answer.responses for one in told.partitions]
        if [one.partition_index for one in parts] != [partition]:
            self.scene.checker.fail(
                "P5 whole", f"b{leader} answered a fetch of {topic.name}-{partition}: {answer}"
            )
        return parts[0]

    def _take(self, told: PartitionData, by: str, asked_at: float) -> None:
        checker = self.scene.checker
        key = (self._topic.id, self._partition)
        data = told.records or b""
        for at, header in iter_batches(data):
            try:
                check_batch(memoryview(data)[at : at + header.size])
            except BatchError as error:
                checker.fail("P3 corrupt", f"{by} gave {self.name} a batch at {header.base_offset}: {error}")
                return
            if header.base_offset >= self.position:
                self.read_bytes += header.size
            for record in iter_records(data, at):
                if record.offset < self.position:
                    continue
                if record.offset > self.position and not checker.passes_over(
                    key, self.position, record.offset
                ):
                    checker.fail(
                        "P3 hole", f"{by} gave {record.offset} to {self.name}, which was at {self.position}"
                    )
                if record.offset >= told.high_watermark:
                    checker.fail("P3 end", f"{by} gave {record.offset}, beyond its end {told.high_watermark}")
                self.position = record.offset + 1
                value = bytes(record.value or b"")
                self.records[record.offset] = value
                checker.record_read(key, record.offset, value, f"{self.name} from {by}")
            # Compaction may have taken the last records of a batch.
            self.position = max(self.position, header.last_offset + 1)
        checker.end_told(key, told.high_watermark, asked_at, by)


class Observer(Client):
    isolation = 0

    def __init__(self, scene: Scene, name: str, topics: list[Topic], every: float) -> None:
        super().__init__(scene, name)
        self._topics = topics
        self._every = every
        self._led: dict[PartitionKey, int] = {}
        self._former: dict[PartitionKey, int] = {}

    async def run(self) -> None:
        """Asks without waiting for the answer to the question before: a broker that slept finds questions
        that were asked while others led in its place, and must not answer them from what it remembers."""
        waiting: set[asyncio.Task[None]] = set()
        while not self.scene.ending:
            topic = self.rng.choice(self._topics)
            partition = self.rng.randrange(topic.partitions)
            key = (topic.id, partition)
            leader = self._led.get(key, NO_LEADER)
            if leader == NO_LEADER or self.rng.random() < 0.2:
                self._led[key] = await self.leader(topic.name, topic.id, partition, anew=True)
                if self._led[key] != leader:
                    self._former[key] = leader
                leader = self._led[key]
            if self.rng.random() < 0.5:
                # Whoever led before may still believe that it does, and must not say so.
                leader = self._former.get(key, leader)
            if leader != NO_LEADER:
                task = asyncio.create_task(self._ask(leader, topic, partition))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
            await self.pause(self._every)

    async def _ask(self, leader: int, topic: Topic, partition: int) -> None:
        asked_at, cuts = self.scene.world.time(), self.scene.checker.cuts
        one = ListOffsetsTopic(
            topic.name, [ListOffsetsPartition(partition_index=partition, timestamp=LATEST)]
        )
        request = ListOffsetsRequest(replica_id=-1, isolation_level=self.isolation, topics=[one])
        try:
            answer = await self.ask(
                leader, request, ListOffsetsResponse, LIST_OFFSETS_VERSION, PATIENCE_SECONDS
            )
        except Unreachable:
            return
        parts = [one for told in answer.topics for one in told.partitions]
        if [one.partition_index for one in parts] != [partition]:
            self.scene.checker.fail(
                "P5 whole", f"b{leader} was asked for the end of {topic.name}-{partition}: {answer}"
            )
        if cuts != self.scene.checker.cuts:
            return
        if parts[0].error_code == 0:
            self.told((topic.id, partition), parts[0].offset, asked_at, f"b{leader}")
            return
        if parts[0].error_code not in TRY_AGAIN | {ErrorCode.OFFSET_NOT_AVAILABLE}:
            name = self.code(parts[0].error_code)
            self.scene.checker.fail("P5 code", f"b{leader} answered {name} when asked for an end")

    def told(self, key: PartitionKey, end: int, asked_at: float, by: str) -> None:
        self.scene.checker.end_told(key, end, asked_at, by)
