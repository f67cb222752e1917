"""One broker's answers about its cluster, asked over the network, and the rules that they must keep."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from conformance.cluster.processes import HOST, Member
from penstock.client import ClientError, Connection
from penstock.wire.api.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.wire.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.api.metadata import MetadataRequest, MetadataResponse

ANSWER_TIMEOUT_S = 10.0
COORDINATOR_NOT_AVAILABLE = 15


@dataclass(frozen=True, slots=True)
class View:
    """One broker's answers, all computed from one image, or the image did not change between them."""

    brokers: frozenset[int]
    controller: int
    leaders: dict[tuple[str, int], int]
    coordinators: dict[str, int]

    def contradictions(self) -> list[str]:
        """What is named and not listed."""
        found = []
        if self.controller not in self.brokers:
            found.append(f"controller {self.controller} is not in the broker list {sorted(self.brokers)}")
        for (topic, index), leader in self.leaders.items():
            if leader not in self.brokers and leader != -1:
                found.append(f"{topic}-{index} is led by {leader}, not in {sorted(self.brokers)}")
        for group, broker in self.coordinators.items():
            if broker not in self.brokers and broker != -1:
                found.append(f"{group} is coordinated by {broker}, not in {sorted(self.brokers)}")
        return found

    def gaps(self) -> list[str]:
        """What nobody leads or coordinates."""
        found = [f"{topic}-{index} has no leader" for (topic, index), who in self.leaders.items() if who < 0]
        return found + [f"{group} has no coordinator" for group, who in self.coordinators.items() if who < 0]


def view(member: Member, groups: Iterable[str]) -> View:
    """Ask one broker; again if the cluster changed between two of its answers."""
    with contextlib.closing(Connection(HOST, member.port, ANSWER_TIMEOUT_S)) as connection:
        before = _cluster(connection)
        while True:
            coordinators = _coordinators(connection, groups)
            after = _cluster(connection)
            if before == after:
                return View(*after, coordinators)
            before = after


def agreed_view(members: Iterable[Member], groups: Iterable[str], within_s: float = 2.0) -> View:
    """What all these brokers say; AssertionError if they still differ when time is up."""
    deadline = time.monotonic() + within_s
    chosen, asked = list(members), list(groups)
    while True:
        views = {member.broker: view(member, asked) for member in chosen}
        for broker, one in views.items():
            assert not one.contradictions(), f"broker {broker} contradicts itself: {one.contradictions()[:5]}"
        first = next(iter(views.values()))
        if all(one == first for one in views.values()):
            return first
        assert time.monotonic() < deadline, f"brokers disagree: {_difference(views)}"


def wait_for_brokers(
    members: Iterable[Member],
    groups: Iterable[str],
    expected: Iterable[int],
    within_s: float,
    *,
    patient: bool = False,
) -> float:
    """Wait until all these brokers list exactly `expected`, each named one being listed all the while, and
    everything is led and coordinated. Seconds it took; AssertionError if it took too long. `patient`: some
    of them may not answer yet."""
    began = time.monotonic()
    wanted, chosen, asked = frozenset(expected), list(members), list(groups)
    while True:
        try:
            views = [view(member, asked) for member in chosen]
        except ClientError as error:
            if not patient or time.monotonic() - began > within_s:
                raise AssertionError(str(error)) from error
            time.sleep(0.1)
            continue
        for member, one in zip(chosen, views, strict=True):
            found = one.contradictions()
            assert not found, f"broker {member.broker} contradicts itself: {found[:5]}"
        if all(one.brokers == wanted and not one.gaps() for one in views):
            return time.monotonic() - began
        seen = {member.broker: sorted(one.brokers) for member, one in zip(chosen, views, strict=True)}
        late = time.monotonic() - began > within_s
        assert not late, f"after {within_s:.0f} s brokers list {seen}, not {sorted(wanted)}"


def wait_for_balance(members: Iterable[Member], within_s: float) -> float:
    """Wait until every broker leads its share, to within a tenth. Seconds it took; AssertionError if it took
    too long."""
    began = time.monotonic()
    chosen = list(members)
    while True:
        leaders = Counter(view(chosen[0], ()).leaders.values())
        counts = [leaders[member.broker] for member in chosen]
        if max(counts) - min(counts) <= max(1, sum(counts) // (10 * len(counts))):
            return time.monotonic() - began
        late = time.monotonic() - began > within_s
        assert not late, f"after {within_s:.0f} s brokers lead {dict(leaders)}"
        time.sleep(0.2)


def answers(member: Member) -> bool:
    """Does a broker answer at all?"""
    try:
        with contextlib.closing(Connection(HOST, member.port, ANSWER_TIMEOUT_S)) as connection:
            return bool(connection.ask(MetadataRequest(topics=[]), MetadataResponse).brokers)
    except ClientError:
        return False


def _cluster(connection: Connection) -> tuple[frozenset[int], int, dict[tuple[str, int], int]]:
    while True:
        metadata = connection.ask(MetadataRequest(topics=None), MetadataResponse)
        described = connection.ask(DescribeClusterRequest(endpoint_type=1), DescribeClusterResponse)
        brokers = frozenset(one.node_id for one in metadata.brokers)
        same = brokers == frozenset(one.broker_id for one in described.brokers)
        if same and metadata.controller_id == described.controller_id:
            break
    leaders = {
        (topic.name or "", partition.partition_index): partition.leader_id
        for topic in metadata.topics
        for partition in topic.partitions
    }
    return brokers, metadata.controller_id, leaders


def _coordinators(connection: Connection, groups: Iterable[str]) -> dict[str, int]:
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=list(groups))
    answer = connection.ask(request, FindCoordinatorResponse)
    found = {}
    for one in answer.coordinators:
        assert one.error_code in (0, COORDINATOR_NOT_AVAILABLE), one
        found[one.key] = one.node_id if one.error_code == 0 else -1
    return found


def _difference(views: dict[int, View]) -> str:
    parts = []
    first_broker, first = next(iter(views.items()))
    for broker, one in views.items():
        if one.brokers != first.brokers or one.controller != first.controller:
            parts.append(
                f"{first_broker} lists {sorted(first.brokers)}, {broker} lists {sorted(one.brokers)}"
            )
        topics = {place for place in first.leaders if first.leaders[place] != one.leaders.get(place)}
        if topics or len(one.leaders) != len(first.leaders):
            parts.append(f"{first_broker} and {broker} differ on {len(topics)} leaders")
        if one.coordinators != first.coordinators:
            parts.append(f"{first_broker} and {broker} differ on coordinators")
    return "; ".join(parts)
