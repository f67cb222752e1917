"""How handlers find the one partition that they ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.metadata.image import ClusterImage
    from penstock.storage.ledger.ledger import Partition

ANY_EPOCH = -1
"""The leader epoch of a client that does not know one: nothing is checked."""


def led_partition(
    broker: Broker, image: ClusterImage, name: str, index: int, current_leader_epoch: int = ANY_EPOCH
) -> Partition | ErrorCode:
    """The partition if this broker leads it in the epoch that the client believes in, else why not."""
    topic = image.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    partition = broker.ledger.partition(topic.id, index)
    if partition is None or partition.closed:
        if broker.ledger.refused(topic.id, index):
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if current_leader_epoch != ANY_EPOCH:
        if current_leader_epoch < partition.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if current_leader_epoch > partition.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
    return partition


def epoch_at(broker: Broker, partition: Partition, offset: int) -> int:
    """The leader epoch in which the record at `offset` was written, the present one at the log's end."""
    low, high = 0, partition.leader_epoch
    while low < high:
        middle = (low + high) // 2
        if broker.ledger.end_offset_for_epoch(partition, middle).end_offset > offset:
            high = middle
        else:
            low = middle + 1
    return low
