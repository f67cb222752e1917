"""`penstock doctor` finds what is wrong in answers that contradict each other, and a broker of ours well."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from penstock.admin.doctor.checks import CHECKS, examine, lasting
from penstock.admin.doctor.questions import Address, Coordinator, Opinion, Picture, gather
from penstock.admin.groups import list_groups
from penstock.cli.app import app
from penstock.client import Client, addresses
from penstock.testing import Broker
from penstock.wire.api.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.wire.errors import ErrorCode

ONE, TWO = ("a", 1), ("b", 2)


def opinion() -> Opinion:
    """Of a cluster of two that is well."""
    partitions = [MetadataResponsePartition(partition_index=n, leader_id=n + 1) for n in range(2)]
    metadata = MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="a", port=1), MetadataResponseBroker(2, "b", 2)],
        cluster_id="c",
        controller_id=1,
        topics=[MetadataResponseTopic(name="t", partitions=partitions)],
    )
    places = [("t", 0), ("t", 1)]
    offsets = dict.fromkeys(places, (0, -1))
    return Opinion(metadata, {"g": Coordinator(0, 2, TWO), "h": Coordinator(0, 1, ONE)}, offsets, places)


def picture() -> Picture:
    return Picture({ONE: opinion(), TWO: opinion()}, {})


def test_a_cluster_that_is_well() -> None:
    assert examine(picture()) == []


def only_itself(one: Opinion) -> None:
    del one.metadata.brokers[1]
    one.metadata.topics[0].partitions[1].leader_id = 1
    one.coordinators["g"] = Coordinator(0, 1, ONE)  # type: ignore[index]


def no_controller(one: Opinion) -> None:
    one.metadata.controller_id = -1


def strange_leader(one: Opinion) -> None:
    one.metadata.topics[0].partitions[1].leader_id = 7


def no_leader(one: Opinion) -> None:
    one.metadata.topics[0].partitions[1].leader_id = -1


def missing_partition(one: Opinion) -> None:
    del one.metadata.topics[0].partitions[0]


def missing_topic(one: Opinion) -> None:
    del one.metadata.topics[0]


def strange_coordinator(one: Opinion) -> None:
    one.coordinators["g"] = Coordinator(0, 9, ("z", 9))  # type: ignore[index]


def moved_coordinator(one: Opinion) -> None:
    one.coordinators["g"] = Coordinator(0, 2, ("other", 2))  # type: ignore[index]


def two_minds(one: Opinion) -> None:
    one.coordinators["g"] = Coordinator(0, 1, ONE)  # type: ignore[index]


def no_coordinator(one: Opinion) -> None:
    one.coordinators["g"] = Coordinator(ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, ("", -1))  # type: ignore[index]


def no_right(one: Opinion) -> None:
    one.coordinators["g"] = Coordinator(ErrorCode.GROUP_AUTHORIZATION_FAILED, -1, ("", -1))  # type: ignore[index]


def left_out(one: Opinion) -> None:
    del one.offsets["t", 1]  # type: ignore[union-attr]


def made_up(one: Opinion) -> None:
    one.offsets["t", 1] = (0, 5)  # type: ignore[index]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (only_itself, "lists brokers 1 and not 2"),
        (no_controller, "names broker -1 as controller"),
        (strange_leader, "1 partitions are led by broker 7"),
        (no_leader, "1 partitions have no leader"),
        (missing_partition, "leaves partitions of topic 't' out"),
        (missing_topic, "does not know 1 topics that others know: t"),
        (strange_coordinator, "names broker 9 as coordinator of groups, which is not in its own list (1, 2)"),
        (moved_coordinator, "b:2 in Metadata, other:2 in FindCoordinator"),
        (two_minds, "Brokers disagree on who coordinates 1 of 2 groups"),
        (no_coordinator, "finds no coordinator for 1 of 2 groups: COORDINATOR_NOT_AVAILABLE"),
        (no_right, "This user may not ask the broker at a:1 about groups (GROUP_AUTHORIZATION_FAILED)"),
        (left_out, "leaves out 1 of 2 partitions (partition 1 of 't', for one)"),
        (made_up, "answers NONE and offset 5 for partition 1 of 't'"),
    ],
)
def test_what_is_wrong_is_said(spoil: Callable[[Opinion], None], words: str) -> None:
    seen = picture()
    spoil(seen.opinions[ONE])
    problems = [finding.problem for finding in examine(seen)]
    assert any(words in problem for problem in problems), problems


def test_a_broker_that_nobody_can_reach() -> None:
    seen = Picture({ONE: opinion()}, {TWO: "No broker answers at b:2 (refused).", ("c", 3): "Nor there."})
    problems = [finding.problem for finding in examine(seen)]
    assert any("lists a broker at b:2 that cannot be reached" in problem for problem in problems)
    assert any("bootstrap address c:3 does not answer" in problem for problem in problems)


def test_what_has_passed_at_the_second_look_is_no_problem() -> None:
    seen = picture()
    no_leader(seen.opinions[ONE])
    before = examine(seen)
    assert lasting(before, examine(picture())) == []
    assert lasting(before, before) == before
    assert lasting([], before) == []


def test_a_broker_of_ours_is_well() -> None:
    with Broker(settings={"group.initial.rebalance.delay.ms": "0"}) as broker:
        place: Address = addresses(broker.bootstrap_servers)[0]
        assert gather([place]).opinions.keys() == {place}
        result = CliRunner().invoke(app, ["doctor", "--write", "--bootstrap", broker.bootstrap_servers])
        assert result.exit_code == 0, result.output
        report = json.loads(result.stdout)
        assert report["brokers"] == [broker.bootstrap_servers]
        assert [one["problems"] for one in report["checks"]] == [[]] * (len(CHECKS) + 1)
        with Client(broker.bootstrap_servers) as client:
            assert [one.group_id for one in list_groups(client)] == [], "what it wrote for a trial is gone"
            assert [one.name for one in client.metadata().topics if not one.is_internal] == []


def test_nobody_there() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        result = CliRunner().invoke(app, ["doctor", "--bootstrap", address])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: No broker answers at {address}")
