"""The place of a partition, as clients of one listener are told: leader, replicas, isr, offline replicas.

Metadata and DescribeTopicPartitions both answer with this, from one image, so they never disagree. A leader
is named only if it is alive and has the listener that the client came through. So every leader is in the
broker list of the same answer.

`replicas` is the failover order and `isr` its live brokers; the store gives durability.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.metadata.image import NO_LEADER
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.metadata.image import ClusterImage, PartitionInfo


class Placement(NamedTuple):
    error: ErrorCode
    """NONE; LEADER_NOT_AVAILABLE; or LISTENER_NOT_FOUND if the leader lacks the client's listener."""
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline: list[int]


class Placements:
    """The placements of one image for the clients of one listener."""

    def __init__(self, image: ClusterImage, listener: str, doubtful: int = NO_LEADER) -> None:
        """`doubtful`: a broker that may not lead any more what it leads in this image."""
        self._image = image
        self._doubtful = doubtful
        self.reachable = frozenset(
            info.id for info in image.live_brokers if info.listener(listener) is not None
        )
        """The live brokers that clients of this listener can connect to."""

    def of(self, partition: PartitionInfo) -> Placement:
        image, reachable = self._image, self.reachable
        leader = partition.leader
        error = ErrorCode.NONE
        if leader == self._doubtful:
            error, leader = ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER
        elif leader not in reachable:
            error = ErrorCode.LISTENER_NOT_FOUND if image.is_live(leader) else ErrorCode.LEADER_NOT_AVAILABLE
            leader = NO_LEADER
        replicas = image.shown_replicas(partition)
        return Placement(
            error,
            leader,
            partition.leader_epoch,
            list(replicas),
            list(image.isr(partition)),
            [replica for replica in replicas if replica not in reachable],
        )
