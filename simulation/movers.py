"""Clients that give partitions to other brokers: reassignments, cancelled ones too, and elections."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from penstock.wire.api.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.wire.api.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from penstock.wire.errors import ErrorCode
from simulation.client import Client, Unreachable
from simulation.topics import Topic

if TYPE_CHECKING:
    from simulation.scene import Scene

REASSIGN_VERSION = 1
ELECT_VERSION = 2
PREFERRED, UNCLEAN = 0, 1

EXPECTED = frozenset(
    (
        ErrorCode.NONE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.NOT_CONTROLLER,
    )
)


class Mover(Client):
    def __init__(
        self,
        scene: Scene,
        name: str,
        topics: list[Topic],
        every: float,
        internal: tuple[str, ...] = ("__consumer_offsets",),
    ) -> None:
        super().__init__(scene, name)
        self._topics = topics
        self._every = every
        self._internal = internal

    async def run(self) -> None:
        while not self.scene.ending:
            topic = self.rng.choice(self._topics)
            # Groups and transactions move as their partitions do.
            name = topic.name
            if self.rng.random() < 0.2 * len(self._internal):
                name = self._internal[self.rng.randrange(len(self._internal))]
            partition = self.rng.randrange(topic.partitions)
            with contextlib.suppress(Unreachable):
                if self.rng.random() < 0.7:
                    await self._reassign(name, partition)
                else:
                    await self._elect(name, partition)
            await self.pause(self._every)

    async def _reassign(self, name: str, partition: int) -> None:
        """Another order, fewer brokers or more; or the order before, if the move is still under way."""
        brokers = self.scene.brokers
        order = self.rng.sample(brokers, self.rng.randint(1, len(brokers)))
        wish = ReassignablePartition(
            partition_index=partition, replicas=None if self.rng.random() < 0.15 else order
        )
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name, [wish])], timeout_ms=5000
        )
        broker = self.some_broker()
        self.note(f"{name}-{partition} to {wish.replicas} through b{broker}")
        answer = await self.ask(broker, request, AlterPartitionReassignmentsResponse, REASSIGN_VERSION)
        told = [
            (one.partition_index, one.error_code) for topic in answer.responses for one in topic.partitions
        ]
        self._judge(broker, partition, told, "a reassignment")

    async def _elect(self, name: str, partition: int) -> None:
        request = ElectLeadersRequest(
            election_type=self.rng.choice((PREFERRED, PREFERRED, UNCLEAN)),
            topic_partitions=[TopicPartitions(name, [partition])],
            timeout_ms=5000,
        )
        broker = self.some_broker()
        self.note(f"elect a leader of {name}-{partition} through b{broker}")
        answer = await self.ask(broker, request, ElectLeadersResponse, ELECT_VERSION)
        told = [
            (one.partition_id, one.error_code)
            for topic in answer.replica_election_results
            for one in topic.partition_result
        ]
        self._judge(broker, partition, told, "an election")

    def _judge(self, broker: int, partition: int, told: list[tuple[int, int]], what: str) -> None:
        if [index for index, _code in told] != [partition]:
            self.scene.checker.fail("P5 whole", f"b{broker} answered {what} for {partition}: {told}")
            return
        code = self.code(told[0][1])
        self.note(f"b{broker} said {code} to {what}")
        if told[0][1] not in EXPECTED:
            self.scene.checker.fail("P5 code", f"b{broker} answered {code} to {what}")
