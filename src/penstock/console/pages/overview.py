"""`/`: the cluster at a glance, and what is wrong with it."""

from __future__ import annotations

from starlette.responses import Response

from penstock.console.brokers import seen_brokers
from penstock.console.reports import kept
from penstock.console.visit import Visit, page


@page("/")
def overview(visit: Visit) -> Response:
    metadata = visit.cluster.metadata()
    brokers = seen_brokers(visit.cluster)
    partitions = [one for topic in metadata.topics for one in topic.partitions]
    report = kept(visit.cluster, "doctor")
    return visit.render(
        "overview.html",
        doctor=None if report is None else [finding.problem for finding in report.report[1]],
        cluster_id=metadata.cluster_id,
        brokers=brokers,
        topics=sum(not topic.is_internal for topic in metadata.topics),
        internal=sum(topic.is_internal for topic in metadata.topics),
        partitions=len(partitions),
        leaderless=sum(one.leader_id < 0 for one in partitions),
        thin=sum(len(one.isr_nodes) < len(one.replica_nodes) for one in partitions),
    )
