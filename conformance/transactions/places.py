"""The brokers under test: Apache Kafka as one node, or Penstock as several processes on one store."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance.cluster.processes import Cluster
from conformance.cluster.streams import QUIET
from conformance.s3.proxy import Bursts, Proxy, Rule
from conformance.s3.server import BUCKET, S3Server
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
    weather: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    """While it lasts, the store is sick."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What a reader of the store needs beside its address."""

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
def place_on_sick_s3(settings: Mapping[str, str] | None = None, seed: int = 1) -> Iterator[Place]:
    """Three Penstock brokers on an S3 server behind a proxy: every kind of request is refused, repeated, late, cut or
    left without its answer now and then."""
    rules = [
        Rule("refuse", share=0.5, status=503),
        Rule("refuse", share=0.5, status=403),
        Rule("lose", "PUT", share=0.2),
        Rule("delay", share=0.3, seconds=(0.1, 2.0)),
        Rule("repeat", "PUT", share=0.3, seconds=(0.2, 3.0)),
        Rule("haunt", "PUT", share=0.3, seconds=(0.2, 3.0)),
        Rule("cut", "GET", share=0.3),
        Rule("flip", "GET", share=0.3),
        Rule("hold", "PUT", share=0.3),
        Rule("release"),
    ]
    chosen = {**SETTINGS, **PENSTOCK_SETTINGS, **(settings or {})}
    with S3Server() as store, Proxy(store.port, f"{BUCKET}/cluster", seed) as proxy:
        environment = {
            **os.environ,
            **store.environment,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
        }
        with Cluster(BROKERS, chosen, environment=lambda _: environment, store=store.url) as cluster:
            cluster.start()
            place = Place(
                f"{BROKERS} Penstock brokers on a sick S3 server", cluster.bootstrap, cluster=cluster
            )
            place.environment = store.environment
            place.weather = lambda: Bursts(proxy, rules, seed, (0.5, 2.0))
            yield place
            print(f"{proxy.requests} requests to the store, faults: {dict(proxy.faults)}")


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
