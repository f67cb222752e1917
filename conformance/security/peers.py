"""Brokers of one secured cluster ask each other: three of `penstock start --secure --brokers 3`.

    python -m conformance.security.peers

Brokers log in to each other as clients do, by SCRAM over TLS. Transactions with many ids have their coordinators on all
brokers, and write to partitions of all brokers, so markers go from each broker to each. Half of them are aborted; readers
of committed records must see the others alone, and no transaction may hang. Groups with coordinators on each broker
commit and are read back. Then every broker gets a new certificate while it runs, is seen to show it, and a broker is
killed and comes back: all of that must hold again, and a connection from before must still be there.
"""

import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance.security.secure import Cluster, secure_cluster
from conformance.server import interrupted_cleanly
from penstock.cli.certificates import new_certificate
from penstock.client import Client
from penstock.settings.clients import client_security
from penstock.settings.properties import parse_properties
from penstock.testing.waiting import until
from penstock.wire.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

BROKERS = 3
PARTITIONS = 6
IDS = 12
PATIENCE_S = 60.0


def addresses(cluster: Cluster) -> list[str]:
    host, _, port = cluster.bootstrap.partition(":")
    return [f"{host}:{int(port) + number}" for number in range(BROKERS)]


def asked(cluster: Cluster) -> Client:
    given = parse_properties(cluster.client_properties.read_text())
    return Client(cluster.bootstrap, 30.0, client_security(given))


def coordinators(cluster: Cluster, names: list[str], kind: int) -> set[int]:
    """The brokers that answer for these groups (0) or transactional ids (1)."""
    with asked(cluster) as client:
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=names)
        answer = client.any().ask(request, FindCoordinatorResponse)
        return {one.node_id for one in answer.coordinators}


def transactional_ids(topic: str) -> list[str]:
    return [f"{topic}-{number}" for number in range(IDS)]


def group_ids(topic: str) -> list[str]:
    return [f"{topic}-group-{number}" for number in range(IDS)]


def transactions(cluster: Cluster, topic: str) -> str:
    """Each id writes to each partition, and every second one aborts."""
    given: dict[str, Any] = dict(cluster.librdkafka())
    admin = AdminClient(given)  # it is kept: what it does ends with it
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    ids = transactional_ids(topic)
    wanted = set()
    for number, name in enumerate(ids):
        producer = Producer({**given, "transactional.id": name})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(topic, f"{number}-{partition}".encode(), partition=partition)
        if number % 2:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
            wanted |= {f"{number}-{partition}" for partition in range(PARTITIONS)}
    spread = coordinators(cluster, ids, 1)
    if len(spread) != BROKERS:
        return f"only brokers {sorted(spread)} coordinate transactions"
    found = committed(given, topic, len(wanted))
    if found != sorted(wanted):
        return f"read {len(found)} records, expected {len(wanted)}"
    hanging = cluster.penstock("transactions", "find-hanging", "--json").strip()
    return "" if hanging in ("", "[]") else f"these hang: {hanging}"


def committed(given: dict[str, Any], topic: str, count: int) -> list[str]:
    consumer = Consumer({**given, "group.id": f"{topic}-readers", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    # A little longer than needed: what was aborted would come, too.
    while time.monotonic() < deadline:
        records = consumer.consume(100, 1.0)
        found += [(record.value() or b"").decode() for record in records if record.error() is None]
        if len(found) >= count and not records:
            break
    consumer.close()
    return sorted(found)


def groups(cluster: Cluster, topic: str) -> str:
    given: dict[str, Any] = dict(cluster.librdkafka())
    names = group_ids(topic)
    for number, name in enumerate(names):
        consumer = Consumer({**given, "group.id": name})
        consumer.commit(offsets=[TopicPartition(topic, 0, number)], asynchronous=False)
        consumer.close()
    spread = coordinators(cluster, names, 0)
    if len(spread) != BROKERS:
        return f"only brokers {sorted(spread)} coordinate groups"
    for number, name in enumerate(names):
        consumer = Consumer({**given, "group.id": name})
        (found,) = consumer.committed([TopicPartition(topic, 0)], 30)
        consumer.close()
        if found.offset != number:
            return f"{name} is at {found.offset}, not at {number}"
    return ""


def shown(cluster: Cluster, address: str) -> bytes:
    context = ssl.create_default_context(cafile=str(cluster.folder / "ca.pem"))
    host, _, port = address.partition(":")
    with (
        socket.create_connection((host, int(port)), 10) as plain,
        context.wrap_socket(plain, server_hostname=host) as one,
    ):
        return one.getpeercert(binary_form=True) or b""


def _shows_another(cluster: Cluster, address: str, old: bytes) -> bool:
    return shown(cluster, address) != old


def new_certificates(cluster: Cluster) -> str:
    before = {address: shown(cluster, address) for address in addresses(cluster)}
    authority = (cluster.folder / "ca.key").read_bytes(), (cluster.folder / "ca.pem").read_bytes()
    names = {"localhost", "127.0.0.1", "::1", socket.gethostname()}
    with asked(cluster) as client:
        client.metadata([])
        connection = client.any()
        for number in range(1, BROKERS + 1):
            path = cluster.folder / f"broker-{number}.pem"
            fresh = path.with_suffix(".new")
            fresh.write_bytes(new_certificate(f"broker {number}", names, *authority))
            fresh.chmod(0o600)
            fresh.rename(path)
        for address, old in before.items():
            until(partial(_shows_another, cluster, address, old), PATIENCE_S, "a new certificate")
        client.metadata([])
        return "" if client.any() is connection else "a connection was dropped"


def killed(cluster: Cluster, topic: str) -> str:
    """One broker dies; its supervisor starts it again, and it speaks to the others with new certificates. If that
    takes longer than a second, others lead meanwhile, and it leads again when leaders are spread next: `topic` names
    what is to have its coordinators on all brokers then."""
    children = Path(f"/proc/{cluster.process.pid}/task/{cluster.process.pid}/children").read_text().split()
    brokers = [int(child) for child in children if b"broker" in Path(f"/proc/{child}/cmdline").read_bytes()]
    os.kill(brokers[-1], signal.SIGKILL)

    def complete() -> bool:
        try:
            with asked(cluster) as client:
                whole = len(client.metadata([]).brokers) == BROKERS
            spread = (
                coordinators(cluster, transactional_ids(topic), 1),
                coordinators(cluster, group_ids(topic), 0),
            )
            return (
                whole
                and len(shown(cluster, addresses(cluster)[-1])) > 0
                and all(len(found) == BROKERS for found in spread)
            )
        except Exception:
            return False

    until(complete, PATIENCE_S, "the broker that was killed")
    return ""


def held(what: str, proof: Callable[[], str]) -> bool:
    began = time.monotonic()
    try:
        why = proof()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:600]
    print(f"{'FAILED' if why else 'held  '} {what} ({time.monotonic() - began:.1f} s) {why}", flush=True)
    return not why


def main() -> int:
    with interrupted_cleanly(), secure_cluster(BROKERS, {"broker.session.timeout.ms": "3000"}) as cluster:
        results = [
            held("transactions across brokers", partial(transactions, cluster, "first")),
            held("groups on each broker", partial(groups, cluster, "first")),
            held("new certificates while brokers run", partial(new_certificates, cluster)),
            held("transactions with new certificates", partial(transactions, cluster, "second")),
            held("a broker is killed and comes back", partial(killed, cluster, "third")),
            held("transactions after that", partial(transactions, cluster, "third")),
            held("groups after that", partial(groups, cluster, "third")),
        ]
        refusals = cluster.log.read_text(errors="replace").count("Traceback")
        results.append(held("no exception in the log", lambda: f"{refusals} of them" if refusals else ""))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
