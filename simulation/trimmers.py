"""Clients that delete records: exactly the records that they asked for go, and none comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.wire.api.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.wire.errors import ErrorCode
from simulation.client import NO_LEADER, Client, Unreachable
from simulation.producers import TRY_AGAIN
from simulation.topics import Topic

if TYPE_CHECKING:
    from simulation.scene import Scene

VERSION = 2


class Trimmer(Client):
    def __init__(self, scene: Scene, name: str, topic: Topic, every: float) -> None:
        super().__init__(scene, name)
        self._topic = topic
        self._every = every

    async def run(self) -> None:
        while not self.scene.ending:
            partition = self.rng.randrange(self._topic.partitions)
            known = list(self.scene.checker.log[self._topic.id, partition])
            if known:
                await self._trim(partition, self.rng.choice(known) + 1)
            await self.pause(self._every)

    async def _trim(self, partition: int, offset: int) -> None:
        checker, topic = self.scene.checker, self._topic
        key = (topic.id, partition)
        leader = await self.leader(topic.name, topic.id, partition, anew=self.rng.random() < 0.5)
        if leader == NO_LEADER:
            return
        cuts = checker.cuts
        checker.may_start[key] = max(offset, checker.may_start.get(key, 0))
        one = DeleteRecordsPartition(partition_index=partition, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic.name, partitions=[one])], timeout_ms=5000
        )
        self.note(f"delete records of {topic.name}-{partition} below {offset} through b{leader}")
        try:
            answer = await self.ask(leader, request, DeleteRecordsResponse, VERSION)
        except Unreachable:
            return
        told = answer.topics[0].partitions[0]
        self.note(f"b{leader} said {self.code(told.error_code)}, low watermark {told.low_watermark}")
        if checker.cuts != cuts:
            return
        if told.error_code == 0:
            if told.low_watermark < offset:
                checker.fail("P3 start", f"b{leader} deleted below {offset}: {told.low_watermark}")
            checker.starts[key].told(self.scene.world.time(), offset)
        elif told.error_code not in TRY_AGAIN | {ErrorCode.OFFSET_OUT_OF_RANGE}:
            checker.fail("P5 code", f"b{leader} answered {self.code(told.error_code)} to DeleteRecords")
