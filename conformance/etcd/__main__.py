"""Penstock with its metadata log and leases in a real etcd of three members, whose leader is killed and paused.

    suite      the behaviour suite of stores, against etcd
    log        four writers of one metadata log, while the leader of etcd is killed again and again: every
               change that was answered is in it once, and all read the same
    access     users and passwords; an etcd whose space is used up
    cluster    three brokers under the clients and the checker of `conformance.faults`; topics are created
               through every broker meanwhile. Nothing lost, nothing twice, and all brokers agree

etcd is built by Go, once. Everything runs on loopback.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import KafkaError, KafkaException, NewTopic

from conformance import parts
from conformance.cluster.processes import Cluster, Member, penstock
from conformance.cluster.streams import QUIET
from conformance.cluster.views import agreed_view
from conformance.etcd.server import Etcd
from conformance.faults.world import GO_ON_WITHIN_S, PAUSE_S, TOPIC, Fault, FaultyWorld, report
from conformance.server import ServerFailed, interrupted_cleanly
from penstock.clock import SystemClock
from penstock.cluster.metadata_log import MetadataLog, MetadataUnavailableError
from penstock.cluster.reading import ImageReader
from penstock.metadata.commands import RegisterBroker
from penstock.metadata.image import ClusterImage, Listener
from penstock.storage.stores.etcd import EtcdStore, parse_url
from penstock.storage.stores.etcd_gateway import Credentials, Gateway
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import StoreError
from penstock.storage.stores.opening import open_store

if TYPE_CHECKING:
    from penstock.metadata.image import ClusterImage

SUITE = "tests/storage/test_store_behaviour.py"
WRITERS = 4


def run_suite(etcd: Etcd) -> bool:
    environment = {**os.environ, "PENSTOCK_TEST_STORE": etcd.url}
    command = [sys.executable, "-m", "pytest", "-q", SUITE, "-k", "remote"]
    return subprocess.run(command, env=environment, cwd=parts.ROOT, check=False).returncode == 0


# One log, many writers.


class Race:
    """Writers of one metadata log, each of whose changes takes a number that nobody else may get."""

    def __init__(self, etcd: Etcd) -> None:
        self._etcd = etcd
        self._store = MemoryStore()
        self._logs = [
            MetadataLog(
                self._store,
                SystemClock(),
                metadata=f"{etcd.url}/log",
                poll_interval=0.2,
                snapshot_entries=100,
            )
            for _ in range(WRITERS)
        ]
        self._given: list[int] = []
        self._doubtful = 0
        self._done = asyncio.Event()

    async def run(self, kills: int) -> list[str]:
        """What is wrong."""
        try:
            epochs = [await self._begin(number) for number in range(WRITERS)]
            writing = [asyncio.create_task(self._write(number, epochs[number])) for number in range(WRITERS)]
            for _ in range(kills):
                await self._kill_leader()
            self._done.set()
            await asyncio.gather(*writing)
            images = [await log.catch_up() for log in self._logs]
            images.append(await ImageReader(self._store).refresh())
        finally:
            for log in self._logs:
                await log.close()
        last, answered = images[0], len(self._given)
        print(
            f"log: {answered} changes by {WRITERS} writers over {kills} deaths of the leader, {self._doubtful} not "
            f"answered in time, {last.version} entries"
        )
        problems = []
        if any(image != last for image in images):
            problems.append("the writers and a reader do not have the same image")
        if len(set(self._given)) != answered:
            problems.append(f"{answered - len(set(self._given))} changes got a number that another one had")
        if not answered <= last.next_producer_id <= answered + self._doubtful:
            problems.append(f"{answered} changes were answered, and the log holds {last.next_producer_id}")
        return problems

    async def _begin(self, number: int) -> int:
        await self._logs[number].open()
        command = RegisterBroker(number, (Listener("PLAINTEXT", "127.0.0.1", 9000 + number),))
        image = await self._logs[number].propose(lambda _image: [command])
        assert isinstance(image, ClusterImage)
        return image.brokers[number].epoch

    async def _write(self, number: int, epoch: int) -> None:
        while not self._done.is_set():
            try:
                block = await self._logs[number].allocate_producer_ids(number, epoch, 1)
            except MetadataUnavailableError:
                self._doubtful += 1
                continue
            assert isinstance(block, range), f"a change was refused: {block.message}"
            self._given.append(block.start)

    async def _kill_leader(self) -> None:
        await asyncio.sleep(1.0)
        leader = await asyncio.to_thread(self._etcd.wait)
        self._etcd.kill(leader)
        await asyncio.to_thread(self._etcd.wait)
        await asyncio.sleep(1.0)
        self._etcd.start(leader)


async def race_for_the_log(etcd: Etcd, kills: int) -> list[str]:
    return await Race(etcd).run(kills)


# Who may write, and how much.

USERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("user/add", {"name": "root", "password": "root"}),
    ("role/add", {"name": "root"}),
    ("user/grant", {"user": "root", "role": "root"}),
    ("user/add", {"name": "penstock", "password": "secret"}),
    ("role/add", {"name": "ours"}),
    # Keys from "ours/" up to "ours0".
    (
        "role/grant",
        {"name": "ours", "perm": {"permType": "READWRITE", "key": "b3Vycy8=", "range_end": "b3VyczA="}},
    ),
    ("user/grant", {"user": "penstock", "role": "ours"}),
    ("enable", {}),
)


async def _try(url: str, user: str = "", password: str = "", size: int = 1) -> str:
    """What became of a create: "created", or the kind of error."""
    # Patient: on a slow machine, a refusal after an attempt that was not answered leaves a create in doubt.
    gateway = Gateway(
        parse_url(url)[1], credentials=Credentials(user=user, password=password), attempt_seconds=5.0
    )
    store = EtcdStore(url, gateway=gateway)
    try:
        return "created" if await store.create(os.urandom(6).hex(), os.urandom(size)) else "there"
    except StoreError as error:
        return type(error).__name__
    finally:
        await store.close()


async def _access(users: str, small: str) -> list[str]:
    gateway = Gateway(parse_url(users)[1])
    for path, message in USERS:
        await gateway.ask(f"/v3/auth/{path}", message)
    await gateway.close()
    cases = {
        "nobody": (await _try(f"{users}/ours"), "StoreRefusedError"),
        "a wrong password": (await _try(f"{users}/ours", "penstock", "wrong"), "StoreRefusedError"),
        "a user": (await _try(f"{users}/ours", "penstock", "secret", 2_000_000), "created"),
        "a user elsewhere": (await _try(f"{users}/theirs", "penstock", "secret"), "StoreRefusedError"),
        "too much": (await _try(small, size=40_000_000), "StoreFullError"),
        "when it is full": (await _try(small), "StoreFullError"),
    }
    print("access: " + ", ".join(f"{name}: {found}" for name, (found, _wanted) in cases.items()))
    return [f"{name} got {found}, not {wanted}" for name, (found, wanted) in cases.items() if found != wanted]


def run_access(_etcd: Etcd) -> list[str]:
    with Etcd(1) as users, Etcd(1, "--quota-backend-bytes", "16777216") as small:
        return asyncio.run(_access(users.url, small.url))


# A cluster.


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
    from confluent_kafka import Consumer, TopicPartition

    from penstock.cluster.reading import view_of
    from penstock.storage.reader.view import Chosen

    def choose(image: "ClusterImage") -> dict[tuple[bytes, int], Chosen]:
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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.etcd", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--kills", type=int, default=10, help="deaths of the leader under one log (default: 10)"
    )
    parser.add_argument(
        "--rounds", type=int, default=12, help="rounds of faults under a cluster (default: 12)"
    )
    parser.add_argument("--only", choices=["suite", "log", "access", "cluster"], help="one part of it")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    problems: list[str] = []
    steps: list[tuple[str, Callable[[Etcd], list[str]]]] = [
        ("suite", lambda etcd: [] if run_suite(etcd) else ["the behaviour suite failed"]),
        ("log", lambda etcd: asyncio.run(race_for_the_log(etcd, chosen.kills))),
        ("access", run_access),
        ("cluster", lambda etcd: run_cluster(etcd, chosen.rounds, chosen.seed)),
    ]
    with interrupted_cleanly():
        try:
            for name, step in steps:
                if chosen.only not in (None, name):
                    continue
                with Etcd() as etcd:
                    problems += [f"{name}: {problem}" for problem in step(etcd)]
        except parts.PartMissing as why:
            return parts.not_run(why)
        except (AssertionError, ServerFailed) as error:
            problems.append(str(error))
    for problem in problems[:20]:
        print(f"FAILED: {problem}")
    print(f"{0 if problems else 1} passed, {1 if problems else 0} failed")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
