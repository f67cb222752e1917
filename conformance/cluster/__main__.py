"""Three brokers that never contradict themselves or each other, while brokers stop, die and come back.

For each broker as the only bootstrap address, and for each other broker: a controlled stop, a start, a kill
-9 and a start. Before, during and after each of these, every broker that runs is asked for Metadata,
DescribeCluster and the coordinators of hundreds of groups. Every broker that an answer names must be in the
broker list of the same broker. The list is exactly the live brokers (a killed one until its lease runs out).
The brokers agree. Meanwhile group consumers of many libraries, which know only that one address, read a topic
that is being written, and must come to its end without a gap. When a broker is back, leaders are spread
evenly again.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance import parts
from conformance.client import BY_NAME
from conformance.cluster.processes import Cluster, Member
from conformance.cluster.streams import Stream
from conformance.cluster.views import agreed_view, view, wait_for_balance, wait_for_brokers
from conformance.groups.members import History, MemberFailed
from conformance.groups.members import Member as GroupMember
from conformance.server import ServerFailed, interrupted_cleanly

SESSION_TIMEOUT_S = 3.0
LISTED_WITHIN_S = 8.0
"""A killed broker must be off every list by then: the session time-out, and slack for a busy machine."""
BALANCED_WITHIN_S = 20.0
SETTINGS = {
    "broker.session.timeout.ms": str(int(SESSION_TIMEOUT_S * 1000)),
    "group.initial.rebalance.delay.ms": "0",
    "leader.imbalance.check.interval.seconds": "2",
}
PARTITIONS = 3
FOLLOW_WITHIN_S = 45.0
"""How soon a group must have come to where the log was: some libraries wait long before they try again."""
RESTARTS_MAX = 10
ALL_CLIENTS = (
    "confluent-kafka",
    "kafka-python",
    "kafka-python-0.10",
    "aiokafka",
    "franz-go",
    "sarama",
    "java",
)
# kafka-python 3.0.12 forgets an assignment whose answer comes after a poll has timed out and before the next
# one, and then polls for ever without any partition. Its users find out, and start it again.
FORGETFUL = ("kafka-python", "kafka-python-0.10")
FORGETFUL_S = 10.0
FORGOT = "it forgot its assignment"
BROKEN_CONNECTION = (FORGOT, "refused", "REFUSED", "EOF", "reset", "broken pipe", "disconnected")
SHORT_CLIENTS = ("confluent-kafka", "kafka-python-0.10", "aiokafka")


class Follower:
    """One client library in a group of its own, whatever happens. Some libraries hand a broken connection to
    the application; it then joins again, as applications do."""

    def __init__(self, client: str, address: str, topic: str) -> None:
        self.client = client
        self.history = History()
        self.restarts = 0
        self.slowest_s = 0.0
        self._address = address
        self._topic = topic
        self._member = self._join()

    def _join(self) -> GroupMember:
        name = f"{self.client}-{self.restarts}"
        member = GroupMember(name, self.client, "classic", self._address, self.history)
        member.join(f"followers-{self._topic}-{self.client}", self._topic)
        return member

    def follow(self, ends: dict[int, int], within_s: float) -> None:
        """Wait until everything up to `ends` was consumed. AssertionError if it takes too long."""
        began = time.monotonic()
        while True:
            failure = self._member.failure
            if failure is not None:
                self._begin_again(failure)
            consumed = self.history.consumed()
            lacking = {
                partition: end
                for partition, end in ends.items()
                if end - 1 not in consumed.get(partition, ())
            }
            if not lacking:
                break
            waited = time.monotonic() - began
            if self.client in FORGETFUL and waited > FORGETFUL_S * (self.restarts + 1):
                self._begin_again(FORGOT)
            assert waited < within_s, f"{self.client} has not come to {lacking} in {within_s:.0f} s"
            with self.history.heard:
                self.history.heard.wait(0.2)
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def _begin_again(self, failure: str) -> None:
        passing = any(word in failure for word in BROKEN_CONNECTION)
        assert passing and self.restarts < RESTARTS_MAX, f"{self.client} gave up: {failure}"
        self.restarts += 1
        self._member.close()
        self._member = self._join()

    def missing(self) -> list[str]:
        """Offsets that it was never given."""
        found = []
        for partition, offsets in self.history.consumed().items():
            gaps = set(range(max(offsets) + 1)) - offsets
            if gaps:
                found.append(f"{self.client} was never given {sorted(gaps)[:5]} of partition {partition}")
        return found

    def close(self) -> None:
        self._member.close()


def prove(bootstrap: Member, cluster: Cluster, others: Sequence[int], clients: Sequence[str]) -> list[str]:
    """One bootstrap address: failures, as sentences."""
    topic = f"stream-{bootstrap.broker}-{time.monotonic_ns()}"
    groups = [f"group-{number}" for number in range(300)]
    admin = AdminClient({"bootstrap.servers": bootstrap.address})
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(30)
    # The coordinators' topic is created by the first question for one.
    view(bootstrap, groups[:1])
    stream = Stream(cluster.bootstrap, topic, PARTITIONS)
    stream.start()
    followers = [Follower(name, bootstrap.address, topic) for name in clients]
    failures = []
    try:
        follow(followers, stream)
        disturb(bootstrap, cluster, others, groups, lambda: follow(followers, stream))
        stream.end()
        follow(followers, stream)
        failures = [gap for follower in followers for gap in follower.missing()]
        for follower in followers:
            again = f", joined again {follower.restarts} times" if follower.restarts else ""
            print(f"  {follower.client}: {follower.slowest_s:.1f} s at most to be where the log was{again}")
    except (AssertionError, MemberFailed) as problem:
        failures.append(f"bootstrap {bootstrap.broker}: {problem}")
    finally:
        stream.end()
        for follower in followers:
            follower.close()
    return failures + [f"the producer failed: {failure}" for failure in stream.written.failures]


def follow(followers: Sequence[Follower], stream: Stream) -> None:
    """Everybody comes to where the log is now."""
    ends = {partition: max(offsets) + 1 for partition, offsets in list(stream.written.values.items())}
    for follower in followers:
        follower.follow(ends, FOLLOW_WITHIN_S)


def disturb(
    bootstrap: Member,
    cluster: Cluster,
    others: Sequence[int],
    groups: list[str],
    go_on: Callable[[], None],
) -> None:
    everybody = set(cluster.members)
    wait_for_brokers(cluster.running, groups, everybody, LISTED_WITHIN_S)
    agreed_view(cluster.running, groups)
    for broker in others:
        member = cluster[broker]
        rest = everybody - {broker}
        member.terminate()
        began = time.monotonic()
        looks = 0
        while member.running and time.monotonic() - began < 30:
            # During the stop: whoever answers contradicts nothing.
            found = view(bootstrap, groups).contradictions()
            assert not found, f"during the stop of {broker}: {found[:5]}"
            looks += 1
        stopped = member.wait_until_ended(began)
        gone = wait_for_brokers(cluster.running, groups, rest, 1.0)
        agreed_view(cluster.running, groups)
        go_on()
        started = member.start()
        back = wait_for_brokers(cluster.running, groups, everybody, 1.0)
        agreed_view(cluster.running, groups)
        member.kill()
        died = wait_for_brokers(cluster.running, groups, rest, LISTED_WITHIN_S)
        agreed_view(cluster.running, groups)
        go_on()
        again = member.start()
        wait_for_brokers(cluster.running, groups, everybody, 1.0)
        agreed_view(cluster.running, groups)
        even = wait_for_balance(cluster.running, BALANCED_WITHIN_S)
        go_on()
        print(
            f"  broker {broker}: stopped in {stopped:.2f} s ({looks} looks meanwhile), off all lists "
            f"{gone:.2f} s later; started in {started:.2f} s, on all lists {back:.2f} s later; killed, "
            f"off all lists after {died:.2f} s; started again in {again:.2f} s, leaders even "
            f"{even:.1f} s later",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.cluster", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--short", action="store_true", help="one bootstrap address, Python's clients: for CI"
    )
    parser.add_argument("--clients", help=f"comma-separated (default: {','.join(ALL_CLIENTS)})")
    chosen = parser.parse_args(arguments)
    clients = (chosen.clients or ",".join(SHORT_CLIENTS if chosen.short else ALL_CLIENTS)).split(",")
    try:
        for name in clients:
            BY_NAME[name].program()
    except parts.PartMissing as why:
        return parts.not_run(why)
    failures: list[str] = []
    began = time.monotonic()
    with interrupted_cleanly(), Cluster(3, SETTINGS, racks=True) as cluster:
        cluster.start()
        for broker in [2] if chosen.short else cluster.members:
            others = [other for other in cluster.members if other != broker]
            print(f"bootstrap only broker {broker}; groups of {', '.join(clients)}", flush=True)
            try:
                failures += prove(cluster[broker], cluster, others[:1] if chosen.short else others, clients)
            except ServerFailed as problem:
                failures.append(str(problem))
                break
        failures += cluster.tracebacks()
    for failure in failures:
        print(f"FAILED: {failure}")
    if not failures:
        print(f"no contradiction, and every group kept going ({time.monotonic() - began:.0f} s)")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
