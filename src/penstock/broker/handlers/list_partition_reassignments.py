"""ListPartitionReassignments 0: partitions whose leader has yet to hand over to a new order (KIP-455).

- A reassignment copies nothing here (see AlterPartitionReassignments), so one is under way only while the
  partition is led by a broker that its new failover order does not have.
- `replicas` are the new order and those that leave it; `adding` and `removing` say what changes.
- A null list asks for all of them. Topics and partitions that do not exist, or are not being reassigned, are
  left out, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.wire.api.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.metadata.image import PartitionInfo, PendingMove
    from penstock.wire.errors import ErrorCode
    from penstock.wire.exchange import Request


def handle(
    broker: Broker, request: Request, message: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    image = broker.image
    wanted = None
    if message.topics is not None:
        wanted = {(topic.name, index) for topic in message.topics for index in topic.partition_indexes}
    found: dict[str, list[OngoingPartitionReassignment]] = {}
    for (topic_id, index), move in image.moves.items():
        name = image.names[topic_id]
        partition = image.partition(topic_id, index)
        if partition is not None and move.former and (wanted is None or (name, index) in wanted):
            found.setdefault(name, []).append(_ongoing(index, partition, move))
    return ListPartitionReassignmentsResponse(
        error_message=None,
        topics=[
            OngoingTopicReassignment(
                name=name, partitions=sorted(partitions, key=lambda one: one.partition_index)
            )
            for name, partitions in sorted(found.items())
        ],
    )


def refused(
    message: ListPartitionReassignmentsRequest, code: ErrorCode
) -> ListPartitionReassignmentsResponse:
    """As Kafka refuses it: what was named comes back without a reassignment."""
    return ListPartitionReassignmentsResponse(
        error_code=code,
        error_message=code.name,
        topics=[
            OngoingTopicReassignment(
                name=topic.name,
                partitions=[
                    OngoingPartitionReassignment(partition_index=index) for index in topic.partition_indexes
                ],
            )
            for topic in message.topics or ()
        ],
    )


def _ongoing(index: int, partition: PartitionInfo, move: PendingMove) -> OngoingPartitionReassignment:
    new = partition.replicas
    removing = list(dict.fromkeys((partition.leader, *move.former)))
    removing = [broker for broker in removing if broker not in new]
    return OngoingPartitionReassignment(
        partition_index=index,
        replicas=[*new, *removing],
        adding_replicas=[broker for broker in new if broker not in move.former],
        removing_replicas=removing,
    )
