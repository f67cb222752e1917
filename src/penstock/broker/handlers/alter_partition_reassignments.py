"""AlterPartitionReassignments 0-1: other brokers for partitions, or not after all (KIP-455, KIP-860).

What it means here: `replicas` is the failover order of a partition, and no record is copied when it changes,
because storage is shared. So a new order holds at once. A leader that is not in it is asked, through the
metadata log, to hand over to the first live broker that is; until it has, the reassignment is listed as
under way by ListPartitionReassignments, usually for a fraction of a second. A leader that stays in the order
goes on; where `auto.leader.rebalance.enable` is set, the first of the order leads soon after.

- Null replicas cancel: the order from before the reassignment returns. NO_REASSIGNMENT_IN_PROGRESS if there
  is none under way.
- INVALID_REPLICA_ASSIGNMENT for brokers that do not exist, are repeated, or are all dead, and for none;
  INVALID_REPLICATION_FACTOR (version 1) if the number of brokers changes and the request forbids that;
  UNKNOWN_TOPIC_OR_PARTITION.
- Balancing leaves the order of a topic alone in which somebody chose one.
- All partitions of a request are changed by one entry of the metadata log. Any broker serves it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cluster.metadata_log import MetadataUnavailableError
from penstock.metadata.commands import SetReplicas
from penstock.metadata.preconditions import check_assignment
from penstock.metadata.refusal import Refusal
from penstock.wire.api.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.metadata.image import ClusterImage
    from penstock.wire.exchange import Request

Response = AlterPartitionReassignmentsResponse
Outcomes = dict[tuple[str, int], Refusal | None]


async def handle(broker: Broker, request: Request, message: AlterPartitionReassignmentsRequest) -> Response:
    outcomes: Outcomes = {}

    def decide(image: ClusterImage) -> list[SetReplicas]:
        commands = []
        for topic in message.topics:
            for partition in topic.partitions:
                wish = _wish(image, topic.name, partition, message.allow_replication_factor_change)
                outcomes[topic.name, partition.partition_index] = wish if isinstance(wish, Refusal) else None
                if not isinstance(wish, Refusal):
                    commands.append(wish)
        return commands

    try:
        outcome = await broker.metadata.propose(decide)
    except MetadataUnavailableError:
        return refused(message, ErrorCode.REQUEST_TIMED_OUT)
    if isinstance(outcome, Refusal):
        return refused(message, outcome.code)
    return _answer(message, outcomes)


def refused(message: AlterPartitionReassignmentsRequest, code: ErrorCode) -> Response:
    refusal = Refusal(code, code.name)
    everything: Outcomes = {
        (topic.name, partition.partition_index): refusal
        for topic in message.topics
        for partition in topic.partitions
    }
    answer = _answer(message, everything)
    answer.error_code = code
    answer.error_message = code.name
    return answer


def _wish(
    image: ClusterImage, name: str, asked: ReassignablePartition, factor_may_change: bool
) -> SetReplicas | Refusal:
    topic = image.topics.get(name)
    index = asked.partition_index
    if topic is None:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= index < len(topic.partitions):
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    if asked.replicas is None:
        move = image.moves.get((topic.id, index))
        if move is None or not move.former:
            return Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "")
        return SetReplicas(topic.id, index, move.former)
    order = tuple(asked.replicas)
    refusal = check_assignment(image, index, order)
    if refusal is not None:
        return refusal
    present = len(topic.partitions[index].replicas)
    if not factor_may_change and len(order) != present:
        message = f"The replication factor of {name}:{index} is {present} and may not become {len(order)}."
        return Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    return SetReplicas(topic.id, index, order)


def _answer(message: AlterPartitionReassignmentsRequest, outcomes: Outcomes) -> Response:
    responses = []
    for topic in message.topics:
        results = []
        for partition in topic.partitions:
            refusal = outcomes[topic.name, partition.partition_index]
            results.append(
                ReassignablePartitionResponse(
                    partition_index=partition.partition_index,
                    error_code=ErrorCode.NONE if refusal is None else refusal.code,
                    # A message that says no more than the code is left out, as Kafka does.
                    error_message=None if refusal is None else refusal.message or None,
                )
            )
        responses.append(ReassignableTopicResponse(name=topic.name, partitions=results))
    return Response(
        allow_replication_factor_change=message.allow_replication_factor_change,
        # Kafka's answer to a request for nothing is one that it has not touched.
        error_message=None if message.topics else "",
        responses=responses,
    )
