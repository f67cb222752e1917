"""A cluster whose metadata log is in etcd, under clients, while etcd's members die and are paused."""

import asyncio
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import KafkaError, KafkaException, NewTopic

from conformance.cluster.processes import Cluster, Member, penstock
from conformance.cluster.streams import QUIET
from conformance.cluster.views import agreed_view
from conformance.etcd.server import Etcd
from conformance.faults.world import GO_ON_WITHIN_S, PAUSE_S, TOPIC, Fault, FaultyWorld, report
from penstock.cluster.reading import ImageReader, view_of
from penstock.metadata.image import ClusterImage
from penstock.storage.reader.view import Chosen
from penstock.storage.stores.opening import open_store


class Topics:
    """Creates topics through one broker after the other, and notes those that were acknowledged."""

    def __init__(self, cluster: Cluster) -> None:
        self._admins = [
            AdminClient({"bootstrap.servers": member.address, **QUIET}) for member in cluster.members.values()
        ]
        self._number = 0
        self.created: list[str] = []
        self.refused: list[str] = []
        self.repeated = 0
        self.slowest_s = 0.0

    @contextmanager
    def created_meanwhile(self) -> Iterator[None]:
        """Not longer than that: what all brokers say is compared afterwards, and they learn of a topic one
        after the other."""
        end = threading.Event()
        thread = threading.Thread(target=self._create_until, args=(end,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join(60)

    def _create_until(self, end: threading.Event) -> None:
        while not end.wait(0.2):
            self._number += 1
            name = f"meanwhile-{self._number}"
            began = time.monotonic()
            try:
                admin = self._admins[self._number % len(self._admins)]
                admin.create_topics([NewTopic(name, 2, 1)], request_timeout=20)[name].result(30)
                self.created.append(name)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    # The library lost the connection, asked again by itself, and found its own topic.
                    self.created.append(name)
                    self.repeated += 1
                else:
                    self.refused.append(str(error))
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)


def faults_of(etcd: Etcd, topics: Topics) -> tuple[Fault, ...]:
    def kill_leader(world: FaultyWorld, victim: Member) -> None:
        leader = etcd.wait()
        etcd.kill(leader)
        etcd.wait()
        time.sleep(1.0)
        etcd.start(leader)

    def pause_leader(world: FaultyWorld, victim: Member) -> None:
        leader = etcd.wait()
        etcd.pause(leader, True)
        try:
            time.sleep(PAUSE_S)
        finally:
            etcd.pause(leader, False)

    def kill_both(world: FaultyWorld, victim: Member) -> None:
        leader = etcd.wait()
        etcd.kill(leader)
        victim.kill()
        etcd.wait()
        victim.start()
        etcd.start(leader)

    def kill_all_members(world: FaultyWorld, victim: Member) -> None:
        for number in range(3):
            etcd.kill(number)
        time.sleep(2.0)
        for number in range(3):
            etcd.start(number)
        etcd.wait()

    def busy(act: Callable[[FaultyWorld, Member], None]) -> Callable[[FaultyWorld, Member], None]:
        def acting(world: FaultyWorld, victim: Member) -> None:
            with topics.created_meanwhile():
                act(world, victim)

        return acting

    return (
        Fault("death of etcd's leader", busy(kill_leader), GO_ON_WITHIN_S),
        Fault("pause of etcd's leader", busy(pause_leader), GO_ON_WITHIN_S),
        # etcd elects before the broker is fenced.
        Fault("death of etcd's leader and a broker", busy(kill_both), 2 * GO_ON_WITHIN_S),
        Fault("death of all of etcd", busy(kill_all_members), None),
    )


def run_cluster(etcd: Etcd, rounds: int, seed: int) -> list[str]:
    """What is wrong."""
    world = FaultyWorld("sound", seed, settings={"metadata": f"{etcd.url}/cluster"})
    with world.cluster:
        world.begin()
        topics = Topics(world.cluster)
        faults = faults_of(etcd, topics)
        for number in range(rounds):
            world.round(faults[number % len(faults)])
        problems = [str(violation) for violation in world.finish()]
        said = agreed_view(world.cluster.running, [f"group-{n}" for n in range(20)])
        missing = set(topics.created) - {topic for topic, _partition in said.leaders}
        if missing:
            problems.append(
                f"{len(missing)} topics were acknowledged and are not there: {sorted(missing)[:3]}"
            )
        problems += _told_by_commands(world.cluster)
        problems += [*world.late, *world.cluster.tracebacks()]
    report(world)
    print(
        f"{len(topics.created)} topics created meanwhile, {topics.repeated} of them asked for twice, {len(topics.refused)} refused, the slowest took "
        f"{topics.slowest_s:.1f} s"
    )
    for refused in topics.refused[:3]:
        print(f"  a topic was not created: {refused}")
    return problems


def _told_by_commands(cluster: Cluster) -> list[str]:
    """The commands that people look with find the log, from a broker and from the store alone."""
    problems = []
    status = subprocess.run(
        [penstock(), "cluster", "status", "--bootstrap", cluster.bootstrap, "--json"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    if status.returncode or '"problems": []' not in status.stdout:
        problems.append(f"penstock cluster status: {status.stdout[-300:]}{status.stderr[-300:]}")
    store = open_store(str(cluster.store))
    image = asyncio.run(ImageReader(store).refresh())
    if len(image.live_brokers) != len(cluster.members):
        problems.append(f"a reader of the store finds {len(image.live_brokers)} live brokers")
    problems += _told_by_spark(cluster)
    audit = subprocess.run(
        [penstock(), "store", "audit", "--store", str(cluster.store)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    if audit.returncode:
        problems.append(f"penstock store audit: {audit.stdout[-300:]}{audit.stderr[-300:]}")
    return problems


def _told_by_spark(cluster: Cluster) -> list[str]:
    """What Spark plans with, from the store alone, ends where the brokers say that partitions end."""

    def choose(image: ClusterImage) -> dict[tuple[bytes, int], Chosen]:
        topic = image.topics[TOPIC]
        return {
            (topic.id, number): Chosen(topic, number, info) for number, info in enumerate(topic.partitions)
        }

    views = asyncio.run(view_of(open_store(str(cluster.store)), choose).refresh())
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "ends", **QUIET})
    problems = []
    for (_id, number), view in views.items():
        _low, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, number), timeout=30)
        if view.end != end:
            problems.append(f"Spark's view of partition {number} ends at {view.end}, the broker's at {end}")
    consumer.close()
    return problems
