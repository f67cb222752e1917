"""The brokers under test: Apache Kafka as one node, or Penstock as several processes on one store."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance.cluster.processes import Cluster
from conformance.cluster.streams import QUIET
from conformance.server import Server
from conformance.target import server_named
from penstock.testing.waiting import until

BROKERS = 3
SETTINGS = {
    # Transactions that time out are looked for often, so that nobody waits for it.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
}
PENSTOCK_SETTINGS = {"broker.session.timeout.ms": "3000", "leader.imbalance.check.interval.seconds": "1"}
READY_WITHIN_S = 60.0


@dataclass(slots=True)
class Place:
    """Where clients go. Either a server or a cluster is there to be killed."""

    name: str
    bootstrap: str
    server: Server | None = None
    cluster: Cluster | None = None
    topics: list[str] = field(default_factory=list)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Of each broker."""
        pairs = (address.rpartition(":") for address in self.bootstrap.split(","))
        return [(host, int(port)) for host, _, port in pairs]

    def create(self, topic: str, partitions: int) -> None:
        """A topic that all brokers know and lead."""
        replicas = 1 if self.cluster is None else len(self.cluster.members)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
        admin.create_topics([NewTopic(topic, partitions, replicas)])[topic].result(30)
        self.topics.append(topic)

        def led() -> bool:
            with contextlib.suppress(KafkaException):
                found = admin.list_topics(topic, 10).topics[topic]
                leaders = [one.leader for one in found.partitions.values()]
                return len(leaders) == partitions and min(leaders) >= 0
            return False

        until(led, READY_WITHIN_S, f"a leader of each partition of {topic}")

    def problems(self) -> list[str]:
        """What brokers logged that nobody foresaw."""
        return [] if self.cluster is None else self.cluster.tracebacks()


@contextlib.contextmanager
def place_named(
    against: str, settings: Mapping[str, str] | None = None, brokers: int = BROKERS
) -> Iterator[Place]:
    """The brokers that `--against` names, started."""
    if against == "penstock":
        chosen = {**SETTINGS, **PENSTOCK_SETTINGS, **(settings or {})}
        with Cluster(brokers, chosen) as cluster:
            cluster.start()
            yield Place(f"{brokers} Penstock brokers", cluster.bootstrap, cluster=cluster)
    else:
        with server_named(against, {**SETTINGS, **(settings or {})}) as server:
            yield Place(server.name, server.bootstrap, server=server)
