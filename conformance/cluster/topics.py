"""Thousands of topics created by many threads through all brokers, beside Apache Kafka in the same run.

A hundred threads, each with a KafkaAdminClient of kafka-python, create first ten topics and then thousands.
They are spread over the brokers. As soon as the last creator is answered every broker must list every topic,
each with a leader that is alive. Time and memory are reported for both systems. `--tools` adds topics made by
Kafka's own kafka-topics.
"""

import argparse
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from conformance import parts
from conformance.cluster.processes import Cluster
from conformance.cluster.views import agreed_view
from conformance.oracle import ApacheKafka
from conformance.server import interrupted_cleanly
from penstock.client import Client

FEW = 10
CONNECT_TIMEOUT_S = 120


class Creators:
    """Threads that create topics as fast as they are answered."""

    def __init__(self, addresses: Sequence[str], threads: int) -> None:
        self._addresses = addresses
        self._threads = threads
        self._local = threading.local()
        self._opened: list[Any] = []
        self._pool = ThreadPoolExecutor(threads)
        self._numbers = iter(range(1_000_000))

    def create(self, prefix: str, count: int, factor: int) -> float:
        """Create topics one request each; seconds until all were answered. Raises what a client raised."""
        # The connections are made before the clock starts: they are not what is measured.
        ready = threading.Barrier(self._threads)
        list(self._pool.map(lambda _: (self._admin(), ready.wait(CONNECT_TIMEOUT_S)), range(self._threads)))
        began = time.monotonic()
        for _ in self._pool.map(
            lambda number: self._create_one(f"{prefix}-{number}", factor), range(count), chunksize=1
        ):
            pass
        return time.monotonic() - began

    def _create_one(self, name: str, factor: int) -> None:
        self._admin().create_topics([NewTopic(name, 1, factor)])

    def _admin(self) -> Any:
        admin = getattr(self._local, "admin", None)
        if admin is None:
            address = self._addresses[next(self._numbers) % len(self._addresses)]
            admin = self._local.admin = KafkaAdminClient(
                bootstrap_servers=address, request_timeout_ms=120_000
            )
            self._opened.append(admin)
        return admin

    def close(self) -> None:
        self._pool.shutdown()
        for admin in self._opened:
            with contextlib.suppress(Exception):
                admin.close()


class Figures:
    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[tuple[int, float, list[float]]] = []

    def add(self, count: int, seconds: float, memory_mb: list[float]) -> None:
        self.rows.append((count, seconds, memory_mb))
        memory = " + ".join(f"{one:.0f}" for one in memory_mb)
        rate = count / seconds
        print(
            f"{self.name}: {count} topics in {seconds:.2f} s ({rate:.0f} a second); memory {memory} MB",
            flush=True,
        )


def penstock(counts: Sequence[int], threads: int, tools: bool) -> tuple[Figures, list[str]]:
    figures = Figures("Penstock, 3 brokers")
    problems: list[str] = []
    with Cluster(3) as cluster:
        cluster.start()
        creators = Creators([member.address for member in cluster.members.values()], threads)
        expected: set[str] = set()
        try:
            for count in counts:
                seconds = creators.create(f"topic-{count}", count, 3)
                # At once: whoever was answered may ask any broker.
                expected |= {f"topic-{count}-{number}" for number in range(count)}
                problems += missing(cluster, expected)
                figures.add(count, seconds, [m.rss_bytes() / 2**20 for m in cluster.members.values()])
        finally:
            creators.close()
        if tools:
            names = {f"tool-{number}" for number in range(3)}
            for name, member in zip(sorted(names), cluster.members.values(), strict=True):
                kafka_topics(member.address, name)
                expected |= {name}
                problems += missing(cluster, expected)
        problems += cluster.tracebacks()
    return figures, problems


def missing(cluster: Cluster, expected: set[str]) -> list[str]:
    """What some broker does not list with a live leader."""
    found = []
    for member in cluster.members.values():
        with Client(member.address) as client:
            answer = client.metadata()
        live = {one.node_id for one in answer.brokers}
        listed = {topic.name for topic in answer.topics}
        lacking = expected - listed
        if lacking:
            found.append(f"broker {member.broker} lacks {len(lacking)} topics, such as {sorted(lacking)[0]}")
        headless = [
            topic.name
            for topic in answer.topics
            if not topic.partitions or any(one.leader_id not in live for one in topic.partitions)
        ]
        if headless:
            found.append(f"broker {member.broker} lists {len(headless)} topics without a live leader")
    try:
        agreed_view(cluster.running, ())
    except AssertionError as problem:
        found.append(str(problem))
    return found


def kafka_topics(address: str, name: str) -> None:
    """Create a topic as an operator of Kafka does."""
    command = parts.java(parts.kafka_classpath(parts.KAFKA_NEWEST), heap_mb=256)
    command += ["org.apache.kafka.tools.TopicCommand", "--bootstrap-server", address, "--create"]
    command += ["--topic", name, "--partitions", "3", "--replication-factor", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise AssertionError(f"kafka-topics failed: {done.stderr or done.stdout}")


def apache_kafka(counts: Sequence[int], threads: int) -> Figures:
    with ApacheKafka() as server:
        figures = Figures(f"{server.name}, 1 node")
        creators = Creators([server.bootstrap], threads)
        try:
            for count in counts:
                seconds = creators.create(f"topic-{count}", count, 1)
                figures.add(count, seconds, [server.rss_bytes() / 2**20])
        finally:
            creators.close()
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m conformance.cluster.topics", description=summary)
    parser.add_argument("--topics", type=int, default=3000, help="how many, after the first ten")
    parser.add_argument("--threads", type=int, default=100)
    parser.add_argument("--tools", action="store_true", help="kafka-topics creates some, too (needs Java)")
    parser.add_argument("--no-kafka", action="store_true", help="without Apache Kafka beside it")
    parser.add_argument("--short", action="store_true", help="200 topics, 20 threads, no Kafka: for CI")
    chosen = parser.parse_args(arguments)
    counts, threads = [FEW, chosen.topics], chosen.threads
    if chosen.short:
        counts, threads = [FEW, 200], 20
    theirs: Figures | None = None
    try:
        with interrupted_cleanly():
            ours, problems = penstock(counts, threads, chosen.tools)
            if not (chosen.no_kafka or chosen.short):
                theirs = apache_kafka(counts, threads)
    except parts.PartMissing as why:
        return parts.not_run(why)
    for problem in problems:
        print(f"FAILED: {problem}")
    if theirs is not None:
        for (count, seconds, memory), (_, peer_seconds, peer_memory) in zip(
            ours.rows, theirs.rows, strict=True
        ):
            print(
                f"{count} topics: {peer_seconds / seconds:.1f} times as fast as {theirs.name}, with "
                f"{sum(memory) / sum(peer_memory):.2f} of its memory"
            )
    if not problems:
        print("every topic is on every broker, with a live leader, as soon as its creator was answered")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
