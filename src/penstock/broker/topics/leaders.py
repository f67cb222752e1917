"""The present leader of a partition and its address: Produce and Fetch tell it at once (KIP-951)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.metadata.image import NO_LEADER

if TYPE_CHECKING:
    from penstock.metadata.image import ClusterImage, TopicInfo


class Endpoint(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None


class Leaders:
    """Collects the leaders that one answer names, so that their addresses are in the same answer."""

    def __init__(self, image: ClusterImage, listener: str, own: int) -> None:
        """`own`: the broker that answers."""
        self.image = image
        self._own = own
        self._listener = listener
        self.endpoints: dict[int, Endpoint] = {}

    def elsewhere(self, topic: TopicInfo | None, index: int) -> tuple[int, int]:
        """`of`, for an answer that says that the leader is not this broker. Its image may not know yet who it
        is instead; a client that was told to come back here would not look anywhere else."""
        if topic is None or not 0 <= index < len(topic.partitions):
            return NO_LEADER, -1
        return (NO_LEADER, -1) if topic.partitions[index].leader == self._own else self.of(topic, index)

    def of(self, topic: TopicInfo | None, index: int) -> tuple[int, int]:
        """Leader and leader epoch of a partition; -1 and -1 if there is none."""
        if topic is None or not 0 <= index < len(topic.partitions):
            return NO_LEADER, -1
        partition = topic.partitions[index]
        info = self.image.brokers.get(partition.leader)
        if info is not None and not info.fenced:
            address = info.listener(self._listener)
            if address is not None:
                self.endpoints[info.id] = Endpoint(info.id, address.host, address.port, info.rack)
        return partition.leader, partition.leader_epoch
