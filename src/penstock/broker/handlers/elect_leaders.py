"""ElectLeaders 0-2: give partitions the leader that they should have (KIP-183, KIP-460).

- Preferred (type 0, and version 0): the first broker of the failover order leads. A partition whose leader is
  alive is handed over by that leader, which is asked through the metadata log: it stops writing, settles, and
  gives the partition away, so nothing acknowledged is lost and no record is copied. The answer waits until
  that has happened; REQUEST_TIMED_OUT if it has not within `timeout_ms`, and then it still will.
- Unclean (type 1): a partition without a leader gets one. Storage is shared, so every broker has
  every record and no election loses any. INVALID_REQUEST for other types.
- ELECTION_NOT_NEEDED if the partition is led as asked for; PREFERRED_LEADER_NOT_AVAILABLE if the first broker
  is not alive; ELIGIBLE_LEADERS_NOT_AVAILABLE if nobody is; UNKNOWN_TOPIC_OR_PARTITION.
- A null list asks for every partition, and is answered without those that need no election, as in Kafka.
- Whatever is asked for twice is answered twice.
- Any broker serves it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.cluster.metadata_log import MetadataUnavailableError
from penstock.metadata.commands import AssignLeaders, LeaderMove, MoveLeader
from penstock.metadata.image import NO_LEADER, PartitionKey
from penstock.metadata.refusal import Refusal
from penstock.wire.api.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.metadata.image import ClusterImage, PartitionInfo
    from penstock.wire.exchange import Request

PREFERRED = 0
UNCLEAN = 1

Place = tuple[str, int]
NOT_NEEDED = Refusal(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
TIMED_OUT = Refusal(ErrorCode.REQUEST_TIMED_OUT, "The leader did not hand the partition over in time.")


async def handle(broker: Broker, request: Request, message: ElectLeadersRequest) -> ElectLeadersResponse:
    if message.election_type not in (PREFERRED, UNCLEAN):
        reason = f"Unknown election type {message.election_type}"
        return refused(message, ErrorCode.INVALID_REQUEST, reason)
    election = _Election(broker, message)
    try:
        outcome = await broker.metadata.propose(election.decide)
    except MetadataUnavailableError:
        return refused(message, ErrorCode.REQUEST_TIMED_OUT)
    if isinstance(outcome, Refusal):
        return refused(message, outcome.code)
    await election.wait(message.timeout_ms / 1000)
    return election.answer()


def refused(message: ElectLeadersRequest, code: ErrorCode, reason: str | None = None) -> ElectLeadersResponse:
    results = [
        ReplicaElectionResult(
            topic=topic.topic,
            partition_result=[
                PartitionResult(partition_id=index, error_code=code, error_message=reason or code.name)
                for index in topic.partitions
            ],
        )
        for topic in message.topic_partitions or ()
    ]
    return ElectLeadersResponse(error_code=code, replica_election_results=results)


class _Election:
    """One request: the decision against the last image that was tried, and the elections that it waits
    for."""

    def __init__(self, broker: Broker, message: ElectLeadersRequest) -> None:
        self._broker = broker
        self._message = message
        self._results: dict[Place, Refusal | None] = {}
        self._awaited: dict[Place, PartitionKey] = {}
        """Partitions that are being handed over: topic id, and the leader epoch that ends."""

    def decide(self, image: ClusterImage) -> list[MoveLeader | AssignLeaders]:
        """Run again when the image changed: everything decided before is forgotten."""
        self._results, self._awaited = {}, {}
        wishes: list[MoveLeader | AssignLeaders] = []
        moves = []
        for name, index in self._asked(image):
            topic = image.topics.get(name)
            if topic is None or not 0 <= index < len(topic.partitions):
                what = f"topic as {name}" if topic is None else f"partition as {name}-{index}"
                self._results[name, index] = Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such {what}")
                continue
            partition = topic.partitions[index]
            leader = self._leader(image, partition)
            self._results[name, index] = leader if isinstance(leader, Refusal) else None
            if isinstance(leader, Refusal):
                continue
            if partition.leader == NO_LEADER:
                moves.append(LeaderMove(topic.id, index, partition.leader_epoch, leader))
            else:
                wishes.append(MoveLeader(topic.id, index, partition.leader_epoch, leader))
                self._awaited[name, index] = (topic.id, partition.leader_epoch)
        if moves:
            broker = self._broker
            wishes.append(AssignLeaders(broker.broker_id, broker.broker_epoch, tuple(moves)))
        return wishes

    def _asked(self, image: ClusterImage) -> Iterator[Place]:
        if self._message.topic_partitions is None:
            for name, topic in image.topics.items():
                for index in range(len(topic.partitions)):
                    yield name, index
        else:
            seen: set[Place] = set()
            for asked in self._message.topic_partitions:
                for index in asked.partitions:
                    if (asked.topic, index) not in seen:
                        seen.add((asked.topic, index))
                        yield asked.topic, index

    def _leader(self, image: ClusterImage, partition: PartitionInfo) -> int | Refusal:
        """Who is to lead, or why nothing is done."""
        preferred = partition.replicas[0]
        if self._message.election_type == PREFERRED:
            if partition.leader == preferred:
                return NOT_NEEDED
            if image.is_live(preferred):
                return preferred
            message = f"Broker {preferred}, the first of the failover order, is not alive."
            return Refusal(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message)
        if partition.leader != NO_LEADER:
            return NOT_NEEDED
        live = [*image.isr(partition), *(info.id for info in image.live_brokers)]
        if live:
            return live[0]
        return Refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No broker is alive.")

    async def wait(self, seconds: float) -> None:
        """Until every leader that was asked has handed over, or time is up."""
        done = asyncio.Event()

        def look(old: ClusterImage, new: ClusterImage) -> None:
            self._strike(new)
            if not self._awaited:
                done.set()

        stop = self._broker.metadata.subscribe(look)
        try:
            look(self._broker.image, self._broker.image)
            async with asyncio.timeout(seconds):
                await done.wait()
        except TimeoutError:
            self._results.update(dict.fromkeys(self._awaited, TIMED_OUT))
        finally:
            stop()

    def _strike(self, image: ClusterImage) -> None:
        """What has another leader by now, or is gone, is waited for no longer."""
        for place, (topic_id, leader_epoch) in list(self._awaited.items()):
            partition = image.partition(topic_id, place[1])
            if partition is None or partition.leader_epoch != leader_epoch:
                del self._awaited[place]

    def answer(self) -> ElectLeadersResponse:
        if self._message.topic_partitions is not None:
            asked = [(topic.topic, topic.partitions) for topic in self._message.topic_partitions]
        else:
            needed: dict[str, list[int]] = {}
            for (name, index), refusal in self._results.items():
                indexes = needed.setdefault(name, [])
                if refusal is not NOT_NEEDED:
                    indexes.append(index)
            asked = list(needed.items())
        return ElectLeadersResponse(
            replica_election_results=[
                ReplicaElectionResult(
                    topic=name, partition_result=[self._result(name, index) for index in indexes]
                )
                for name, indexes in asked
            ]
        )

    def _result(self, name: str, index: int) -> PartitionResult:
        refusal = self._results[name, index]
        if refusal is None:
            return PartitionResult(partition_id=index, error_code=ErrorCode.NONE, error_message=None)
        return PartitionResult(partition_id=index, error_code=refusal.code, error_message=refusal.message)
