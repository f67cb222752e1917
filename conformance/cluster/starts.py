"""A cluster starts in any order, and each broker serves as soon as it listens.

Brokers are started in every order, one alone, two and then the third, all at once, and all at once after a
kill -9 of all of them; then many times over, stopped or killed, in random orders. As soon as a port accepts,
the broker behind it must answer, list itself and lead the partitions that it is said to lead. Every record
that was acknowledged before is there after. A start that takes more than five seconds fails the run.
`--patience 4` makes that twenty, and all other bounds four times as long, on a machine that is slow or busy.
"""

import argparse
import contextlib
import itertools
import random
import socket
import sys
import threading
import time
from collections.abc import Iterable, Sequence

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance.cluster.processes import HOST, Cluster, Member
from conformance.cluster.streams import Written
from conformance.cluster.views import View, agreed_view, wait_for_brokers
from conformance.server import ServerFailed, interrupted_cleanly
from penstock.client import ClientError, Connection
from penstock.wire.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.api.metadata import MetadataRequest, MetadataResponse

START_MAX_S = 5.0
SESSION_TIMEOUT_S = 3.0
FAILOVER_MAX_S = 8.0
TOPIC = "kept"
PARTITIONS = 6
AGREEMENT_MAX_S = 2.0
DELIVERY_MAX_S = 20.0
SETTINGS = {
    "broker.session.timeout.ms": str(int(SESSION_TIMEOUT_S * 1000)),
    "group.initial.rebalance.delay.ms": "0",
}
GROUPS = [f"group-{number}" for number in range(50)]


class Brokers(Cluster):
    """A cluster, and how patient to be with it."""

    def __init__(self, patience: float) -> None:
        super().__init__(3, SETTINGS)
        self.patience = patience


class Watchdog(threading.Thread):
    """Knocks at a port until it accepts, and then demands an answer through that very connection."""

    def __init__(self, member: Member, start_max_s: float) -> None:
        super().__init__(name=f"watchdog of broker {member.broker}", daemon=True)
        self.member = member
        self.problem: str | None = "it never accepted a connection"
        self.start_max_s = self.seconds = start_max_s

    def run(self) -> None:
        began = time.monotonic()
        while time.monotonic() - began < self.start_max_s:
            with contextlib.suppress(OSError):
                socket.create_connection((HOST, self.member.port), 1).close()
                self.seconds = time.monotonic() - began
                self.problem = self._demand()
                return
            time.sleep(0.005)

    def _demand(self) -> str | None:
        """The first question after the first connection: asked once, never again."""
        seconds = self.start_max_s
        try:
            with contextlib.closing(Connection(HOST, self.member.port, seconds)) as connection:
                answer = connection.ask(MetadataRequest(topics=None), MetadataResponse, seconds=seconds)
                request = FindCoordinatorRequest(key_type=0, coordinator_keys=GROUPS)
                found = connection.ask(request, FindCoordinatorResponse, seconds=seconds)
                later = connection.ask(MetadataRequest(topics=None), MetadataResponse, seconds=seconds)
        except ClientError as error:
            return f"it accepted and did not answer: {error}"
        listed = {one.node_id for one in answer.brokers}
        if self.member.broker not in listed:
            return f"it does not list itself: {sorted(listed)}"
        if answer.controller_id not in listed:
            return f"controller {answer.controller_id} is not in its list {sorted(listed)}"
        # Others start meanwhile: who is named stands in the list before it or in the one after.
        listed |= {one.node_id for one in later.brokers}
        named = {one.node_id for one in found.coordinators if one.error_code == 0}
        if not named <= listed:
            return f"coordinators {sorted(named)} are not all in its list {sorted(listed)}"
        return None


def start(cluster: Brokers, brokers: Sequence[int], *, pause_s: float = 0.0) -> float:
    """Start these brokers, each `pause_s` after the one before; the slowest start. AssertionError if one of
    them did not serve as soon as it listened, or took too long."""
    dogs = []
    start_max_s = START_MAX_S * cluster.patience
    for broker in brokers:
        cluster[broker].spawn()
        dogs.append(Watchdog(cluster[broker], start_max_s))
        dogs[-1].start()
        time.sleep(pause_s)
    slowest = 0.0
    for broker in brokers:
        slowest = max(slowest, cluster[broker].wait_until_serving())
    for dog in dogs:
        dog.join()
        assert dog.problem is None, f"broker {dog.member.broker}: {dog.problem}"
    assert slowest <= start_max_s, f"a start took {slowest:.1f} s"
    return slowest


class Kept:
    """What was acknowledged, and must be there after every restart."""

    def __init__(self) -> None:
        self.written = Written(TOPIC)
        self._number = 0

    def write(self, cluster: Brokers, count: int) -> None:
        address = random.choice(cluster.running).address
        producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0})
        for _ in range(count):
            value, partition = b"%d" % self._number, self._number % PARTITIONS
            producer.produce(TOPIC, value, partition=partition, on_delivery=self.written.delivered)
            self._number += 1
        left = producer.flush(DELIVERY_MAX_S * cluster.patience)
        failures = self.written.failures
        assert not failures and not left, f"a healthy cluster did not take {left} records: {failures[:3]}"

    def check(self, cluster: Brokers) -> None:
        """Read everything through one broker and compare."""
        address = random.choice(cluster.running).address
        lacking = self.written.lacking(address, DELIVERY_MAX_S * cluster.patience)
        assert not lacking, f"what was acknowledged is not what is read back: {lacking[:3]}"


def prepare(cluster: Brokers, kept: Kept) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.running[0].address, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)
    kept.write(cluster, 60)


def agree(cluster: Brokers, groups: Iterable[str] = ()) -> View:
    return agreed_view(cluster.running, groups, AGREEMENT_MAX_S * cluster.patience)


def come_to_rest(cluster: Brokers, within_s: float = FAILOVER_MAX_S) -> float:
    """Everything is led by brokers that run, and all agree."""
    running = [member.broker for member in cluster.running]
    seconds = wait_for_brokers(cluster.running, GROUPS, running, within_s * cluster.patience)
    agree(cluster, GROUPS)
    return seconds


def every_order(cluster: Brokers, kept: Kept, short: bool) -> None:
    orders = list(itertools.permutations(cluster.members))
    for order in orders[:2] if short else orders:
        slowest = start(cluster, order, pause_s=0.3)
        if TOPIC not in {topic for topic, _ in agree(cluster).leaders}:
            prepare(cluster, kept)
        come_to_rest(cluster)
        kept.write(cluster, 30)
        cluster.kill()
        print(f"order {order}: slowest start {slowest:.2f} s", flush=True)


def one_alone(cluster: Brokers, kept: Kept) -> None:
    for broker in cluster.members:
        slowest = start(cluster, [broker])
        taken = come_to_rest(cluster)
        kept.write(cluster, 30)
        kept.check(cluster)
        cluster.kill()
        print(f"broker {broker} alone: started in {slowest:.2f} s, led everything {taken:.2f} s later")


def late_third(cluster: Brokers, kept: Kept) -> None:
    first, second, third = cluster.members
    slowest = start(cluster, [first, second])
    taken = come_to_rest(cluster)
    kept.write(cluster, 30)
    late = start(cluster, [third])
    come_to_rest(cluster, 1.0)
    kept.write(cluster, 30)
    kept.check(cluster)
    print(f"two in {slowest:.2f} s, leading everything {taken:.2f} s later; the third in {late:.2f} s")
    cluster.kill()


def restarts(cluster: Brokers, kept: Kept, count: int, chance: random.Random) -> list[float]:
    """Full restarts: killed, stopped, or some of each; started at once or one after the other."""
    times = [start(cluster, list(cluster.members))]
    come_to_rest(cluster)
    for number in range(count):
        kept.write(cluster, 12)
        how = ("kill", "stop", "mixed")[number % 3]
        if how == "kill":
            cluster.kill()
        else:
            for member in cluster.running:
                member.terminate()
            if how == "mixed":
                chance.choice(cluster.running).kill()
            for member in cluster.running:
                member.wait_until_ended(time.monotonic())
        order = chance.sample(list(cluster.members), len(cluster.members))
        slowest = start(cluster, order, pause_s=chance.choice((0.0, 0.0, 0.2)))
        taken = come_to_rest(cluster)
        times.append(slowest)
        print(
            f"restart {number + 1} ({how}, {order}): slowest start {slowest:.2f} s, whole {taken:.2f} s later"
        )
    kept.check(cluster)
    return times


def main(arguments: Sequence[str] | None = None) -> int:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m conformance.cluster.starts", description=summary)
    parser.add_argument("--restarts", type=int, default=50, help="how many full restarts (default: 50)")
    parser.add_argument("--short", action="store_true", help="fewer orders and 5 restarts: for CI")
    parser.add_argument("--patience", type=float, default=1.0, help="times as long as usual (default: 1)")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    chance = random.Random(chosen.seed)
    kept = Kept()
    with interrupted_cleanly(), Brokers(chosen.patience) as cluster:
        try:
            every_order(cluster, kept, chosen.short)
            one_alone(cluster, kept)
            late_third(cluster, kept)
            times = restarts(cluster, kept, 5 if chosen.short else chosen.restarts, chance)
        except (AssertionError, ServerFailed) as problem:
            print(f"FAILED: {problem}")
            for member in cluster.members.values():
                print(f"--- broker {member.broker} said last:\n{member.tail(8)}")
            return 1
        problems = cluster.tracebacks()
    for problem_text in problems:
        print(f"FAILED: {problem_text}")
    times.sort()
    print(
        f"{len(times)} full starts of three brokers: median {times[len(times) // 2]:.2f} s, slowest "
        f"{times[-1]:.2f} s; {len(kept.written)} acknowledged records all there"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
