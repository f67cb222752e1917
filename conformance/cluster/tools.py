"""Kafka's own administration tools move leaders, change failover orders and remove brokers.

The run calls kafka-reassign-partitions, kafka-leader-election, kafka-metadata-quorum, kafka-features and
kafka-cluster against three brokers, each time through a broker that is not concerned. Clients write and read
records meanwhile, and none of these may be lost.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance import parts
from conformance.cluster.processes import Cluster
from conformance.cluster.streams import Stream
from conformance.cluster.views import view, wait_for_brokers
from conformance.server import ServerFailed, interrupted_cleanly
from penstock.client import Client
from penstock.metadata.levels import FEATURE, LEVEL_MAX

TOOL_TIMEOUT_S = 120.0
TOPIC = "moved"
PARTITIONS = 3
SETTINGS = {"broker.session.timeout.ms": "3000", "auto.leader.rebalance.enable": "false"}


def tool(name: str, *arguments: str) -> str:
    """What a tool prints; AssertionError if it fails."""
    command = parts.java(parts.kafka_classpath(parts.KAFKA_NEWEST), heap_mb=256)
    done = subprocess.run(
        [*command, f"org.apache.kafka.tools.{name}", *arguments],
        capture_output=True,
        text=True,
        timeout=TOOL_TIMEOUT_S,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, f"{name} {' '.join(arguments)} failed: {said}"
    return said


def replicas(cluster: Cluster, through: int) -> dict[int, tuple[int, list[int]]]:
    """Leader and failover order of each partition, by what one broker says."""
    with Client(cluster[through].address) as client:
        (topic,) = client.metadata([TOPIC]).topics
    return {one.partition_index: (one.leader_id, one.replica_nodes) for one in topic.partitions}


def reassign(cluster: Cluster) -> None:
    plan = cluster.folder / "plan.json"
    # One order without its leader, which must hand over; two with it in the second place, where it stays until
    # there is an election.
    leaders = {index: leader for index, (leader, _order) in replicas(cluster, 1).items()}
    others = {index: [broker for broker in cluster.members if broker != leaders[index]] for index in leaders}
    wanted = {0: others[0], 1: [others[1][0], leaders[1]], 2: [others[2][1], leaders[2]]}
    partitions = [
        {"topic": TOPIC, "partition": index, "replicas": order, "log_dirs": ["any"] * len(order)}
        for index, order in wanted.items()
    ]
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    address, file = cluster[2].address, str(plan)
    common = ("--bootstrap-server", address, "--reassignment-json-file", file)
    tool("reassign.ReassignPartitionsCommand", *common, "--execute")
    began = time.monotonic()
    while True:
        found = replicas(cluster, 1)
        done = all(
            sorted(found[index][1]) == sorted(order) and found[index][0] in order
            for index, order in wanted.items()
        )
        if done:
            break
        assert time.monotonic() - began < 10, f"after 10 s partitions are at {found}, not at {wanted}"
    said = tool("reassign.ReassignPartitionsCommand", *common, "--verify")
    assert said.count("is completed") == len(wanted), said
    said = tool("reassign.ReassignPartitionsCommand", "--bootstrap-server", address, "--list")
    assert "No partition reassignments found" in said, said
    assert all(found[index][0] == leaders[index] for index in (1, 2)), "a leader moved that need not"
    print(f"kafka-reassign-partitions: {found}")


def elect(cluster: Cluster) -> None:
    command = ("--bootstrap-server", cluster[2].address, "--election-type", "preferred")
    said = tool("LeaderElectionCommand", *command, "--all-topic-partitions")
    found = replicas(cluster, 1)
    assert all(leader == order[0] for leader, order in found.values()), f"{found} after: {said}"
    print(f"kafka-leader-election: {found}")


def quorum(cluster: Cluster) -> None:
    common = ("--bootstrap-server", cluster[3].address, "describe")
    status = tool("MetadataQuorumCommand", *common, "--status")
    assert re.search(r"LeaderId:\s+1\b", status), status
    replication = tool("MetadataQuorumCommand", *common, "--replication")
    listed = re.findall(r"^(\d+)\s.*\b(Leader|Follower)\b", replication, re.MULTILINE)
    assert dict(listed) == {"1": "Leader", "2": "Follower", "3": "Follower"}, replication
    print("kafka-metadata-quorum: a leader and two followers")


def features(cluster: Cluster) -> None:
    common = ("--bootstrap-server", cluster[3].address)
    said = tool("FeatureCommand", *common, "describe")
    assert re.search(rf"{FEATURE}\s.*FinalizedVersionLevel: {LEVEL_MAX}\s.*Epoch: 1\b", said), said
    said = tool("FeatureCommand", *common, "upgrade", "--feature", f"{FEATURE}={LEVEL_MAX}")
    assert f"{FEATURE} was upgraded to {LEVEL_MAX}" in said, said
    print(f"kafka-features: {FEATURE} is at {LEVEL_MAX}")


def unregister(cluster: Cluster) -> None:
    cluster[3].kill()
    tool("ClusterTool", "unregister", "--bootstrap-server", cluster[2].address, "--id", "3")
    wait_for_brokers(cluster.running, (), [1, 2], 1.0)
    assert 3 not in set(view(cluster[1], ()).leaders.values()), "a broker that is gone leads"
    said = tool("ClusterTool", "list-endpoints", "--bootstrap-server", cluster[1].address)
    assert cluster[3].address.rpartition(":")[2] not in said, said
    print("kafka-cluster unregister: broker 3 is forgotten")


def main(arguments: Sequence[str] | None = None) -> int:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m conformance.cluster.tools", description=summary)
    parser.parse_args(arguments)
    with interrupted_cleanly(), Cluster(3, SETTINGS) as cluster:
        try:
            cluster.start()
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 2)])[TOPIC].result(30)
            stream = Stream(cluster.bootstrap, TOPIC, PARTITIONS)
            stream.start()
            reassign(cluster)
            elect(cluster)
            quorum(cluster)
            features(cluster)
            unregister(cluster)
            stream.end()
            assert not stream.written.failures, stream.written.failures
            lost = stream.written.lacking(cluster[1].address)
            assert not lost, lost
            problems = cluster.tracebacks()
        except parts.PartMissing as why:
            return parts.not_run(why)
        except (AssertionError, ServerFailed) as problem:
            print(f"FAILED: {problem}")
            return 1
    for text in problems:
        print(f"FAILED: {text}")
    print(f"{len(stream.written)} records written meanwhile are all there")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
