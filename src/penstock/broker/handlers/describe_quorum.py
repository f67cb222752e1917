"""DescribeQuorum 0-2: how far each broker has come with the metadata log (KIP-595, KIP-836, KIP-853).

What it means here: the metadata log lives in the shared store, every broker follows it, and any of them may
propose. So the voters are the live brokers, the leader is the controller (the lowest of them), the high
watermark is the newest entry that any of them has come to, and a voter's log end offset is the entry that its
image has come to, as its lease last said. `last_fetch_timestamp` is when it said so, and
`last_caught_up_timestamp` when it last knew that its image held the whole log, both by its own clock (from
version 1). Observers are brokers that are registered and fenced; -1 for what is not known of them.

In Kafka the leader answers, wherever the question is put. Here the broker that is asked does, and it does not
catch up first: it would never be seen to lag. But a broker that was silent for a session time-out does: it
may know another leader and other voters than everybody else.

- Only partition 0 of `__cluster_metadata` exists: anything else is UNKNOWN_TOPIC_OR_PARTITION.
- The leader epoch is the broker epoch of the leader. Directory ids are zero; nodes (version 2) come with the
  listener that the client came through.
- If the store does not answer, this broker tells of itself and knows nothing of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.broker.freshness import CATCH_UP_SECONDS_MAX
from penstock.storage.stores.objects import StoreError
from penstock.wire.api.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    ReplicaState,
    ResponsePartitionData,
    ResponseTopicData,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.freshness import Named
    from penstock.cluster.leases import Lease
    from penstock.metadata.image import BrokerInfo, ClusterImage
    from penstock.wire.exchange import Request

METADATA_TOPIC = "__cluster_metadata"
NODES_FROM = 2
UNKNOWN = -1


def named(broker: Broker, message: DescribeQuorumRequest, version: int) -> Named:
    """Nothing that could be unknown here."""
    return ()


async def handle(broker: Broker, request: Request, message: DescribeQuorumRequest) -> DescribeQuorumResponse:
    assert broker.membership is not None
    image = broker.image
    leases = {broker.broker_id: broker.membership.heartbeats.lease()}
    with contextlib.suppress(StoreError, TimeoutError):
        async with asyncio.timeout(CATCH_UP_SECONDS_MAX):
            leases = await broker.membership.heartbeats.others() | leases
    asked = [(topic.topic_name, one.partition_index) for topic in message.topics for one in topic.partitions]
    by_topic: dict[str, list[ResponsePartitionData]] = {}
    for name, index in asked:
        known = name == METADATA_TOPIC and index == 0
        data = _quorum(image, leases) if known else _unknown(index)
        by_topic.setdefault(name, []).append(data)
    return DescribeQuorumResponse(
        error_message="",  # As Kafka says it.
        topics=[
            ResponseTopicData(topic_name=name, partitions=partitions) for name, partitions in by_topic.items()
        ],
        nodes=_nodes(image, request.session.listener) if request.api_version >= NODES_FROM else [],
    )


def _unknown(index: int) -> ResponsePartitionData:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ResponsePartitionData(partition_index=index, error_code=code, error_message=code.name)


def _quorum(image: ClusterImage, leases: Mapping[int, Lease]) -> ResponsePartitionData:
    leader = image.brokers.get(image.controller_id)
    return ResponsePartitionData(
        error_message=None,
        leader_id=image.controller_id,
        leader_epoch=leader.epoch if leader is not None else UNKNOWN,
        high_watermark=max(image.version, *(lease.version for lease in leases.values())),
        current_voters=[_state(info, leases) for info in image.live_brokers],
        observers=[_state(info, leases) for info in image.brokers.values() if info.fenced],
    )


def _state(info: BrokerInfo, leases: Mapping[int, Lease]) -> ReplicaState:
    lease = leases.get(info.id)
    if lease is None:
        return ReplicaState(replica_id=info.id, log_end_offset=UNKNOWN)
    return ReplicaState(
        replica_id=info.id,
        log_end_offset=lease.version,
        last_fetch_timestamp=lease.time_ms,
        last_caught_up_timestamp=lease.complete_as_of_ms,
    )


def _nodes(image: ClusterImage, listener: str) -> list[Node]:
    nodes = []
    for info in image.live_brokers:
        address = info.listener(listener)
        if address is not None:
            told = Listener(name=address.name, host=address.host, port=address.port)
            nodes.append(Node(node_id=info.id, listeners=[told]))
    return nodes
