"""The brokers of a cluster: those that are there, and those that are not any more."""

from __future__ import annotations

from typing import NamedTuple

from penstock.client import AnswerError, Client, ClientError
from penstock.console.cluster import Cluster
from penstock.wire.api.describe_cluster import DescribeClusterRequest, DescribeClusterResponse

FENCED_SINCE = 2
"""The version of DescribeCluster that lists brokers which are not alive."""


class SeenBroker(NamedTuple):
    id: int
    host: str
    port: int
    rack: str | None
    alive: bool
    controller: bool
    leads: int
    """Partitions."""
    follows: int
    """Partitions that it would lead, or keep a copy of."""
    missing: int
    """Partitions that should have this broker in sync, and have not."""


def seen_brokers(cluster: Cluster) -> list[SeenBroker]:
    """All brokers, in order. One that the cluster does not list, and that partitions name, is not alive."""
    metadata = cluster.metadata()
    listed = cluster.remembered("brokers", _listed)
    leads: dict[int, int] = {}
    follows: dict[int, int] = {}
    missing: dict[int, int] = {}
    for topic in metadata.topics:
        for one in topic.partitions:
            leads[one.leader_id] = leads.get(one.leader_id, 0) + 1
            alive = set(one.isr_nodes)
            for node in one.replica_nodes:
                follows[node] = follows.get(node, 0) + (node != one.leader_id)
                if node not in alive:
                    missing[node] = missing.get(node, 0) + 1
    living = {one.node_id: (one.host, one.port, one.rack) for one in metadata.brokers}
    ids = sorted({*living, *listed, *follows, *leads} - {-1})
    return [
        SeenBroker(
            id,
            *(living.get(id) or listed.get(id) or ("", 0, None)),
            alive=id in living,
            controller=id == metadata.controller_id,
            leads=leads.get(id, 0),
            follows=follows.get(id, 0),
            missing=missing.get(id, 0),
        )
        for id in ids
    ]


def _listed(client: Client) -> dict[int, tuple[str, int, str | None]]:
    """What the cluster says of brokers that are not alive, where it can."""
    request = DescribeClusterRequest(include_fenced_brokers=True)
    connection = client.any()
    if not connection.knows(request.api_key):
        return {}
    try:
        request.include_fenced_brokers = connection.version_of(request) >= FENCED_SINCE
        answer = connection.ask(request, DescribeClusterResponse)
    except AnswerError:
        return {}
    except ClientError:
        raise
    return {one.broker_id: (one.host, one.port, one.rack) for one in answer.brokers}
