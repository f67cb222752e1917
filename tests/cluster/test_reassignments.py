"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments, UnregisterBroker and DescribeQuorum
on three brokers, each request through a broker that is not the one it concerns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.metadata.commands import SetReplicas
from penstock.metadata.image import PartitionInfo
from penstock.metadata.refusal import Refusal
from penstock.wire.api.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.wire.api.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.api.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionData,
    TopicData,
)
from penstock.wire.api.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from penstock.wire.api.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
)
from penstock.wire.api.metadata import MetadataRequest, MetadataResponse
from penstock.wire.api.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from penstock.wire.errors import ErrorCode

from .nodes import Nodes
from .rig import until_led_by

Elected = dict[tuple[str, int], ErrorCode]


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    # Whoever was killed is not fenced before the test has looked.
    made = Nodes(tmp_path / "store", broker_session_timeout_ms="5000")
    await made.start(1, 2, 3)
    yield made
    await made.close()


async def create(nodes: Nodes, name: str, *orders: tuple[int, ...]) -> bytes:
    assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=list(order))
        for index, order in enumerate(orders)
    ]
    topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=5000)
    answer = await nodes.ask(1, request, CreateTopicsResponse, 7)
    assert answer.topics[0].error_code == 0, answer
    return answer.topics[0].topic_id


async def elect(
    nodes: Nodes, broker: int, *places: tuple[str, int], kind: int = 0, timeout_ms: int = 5000
) -> Elected:
    asked = [TopicPartitions(topic=name, partitions=[index]) for name, index in places] or None
    request = ElectLeadersRequest(election_type=kind, topic_partitions=asked, timeout_ms=timeout_ms)
    answer = await nodes.ask(broker, request, ElectLeadersResponse, 2)
    assert answer.error_code == 0
    return {
        (topic.topic, one.partition_id): ErrorCode(one.error_code)
        for topic in answer.replica_election_results
        for one in topic.partition_result
    }


async def reassign(
    nodes: Nodes, broker: int, name: str, index: int, replicas: list[int] | None, *, factor: bool = True
) -> ErrorCode:
    partition = ReassignablePartition(partition_index=index, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=factor,
        topics=[ReassignableTopic(name=name, partitions=[partition])],
    )
    answer = await nodes.ask(broker, request, AlterPartitionReassignmentsResponse, 1)
    assert answer.error_code == 0
    (topic,) = answer.responses
    (result,) = topic.partitions
    assert (topic.name, result.partition_index) == (name, index)
    speechless = (ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    assert (result.error_message is None) == (result.error_code in speechless)
    return ErrorCode(result.error_code)


async def under_way(
    nodes: Nodes, broker: int, topics: list[ListPartitionReassignmentsTopics] | None = None
) -> dict[tuple[str, int], tuple[list[int], list[int], list[int]]]:
    request = ListPartitionReassignmentsRequest(topics=topics)
    answer = await nodes.ask(broker, request, ListPartitionReassignmentsResponse, 0)
    assert answer.error_code == 0
    return {
        (topic.name, one.partition_index): (one.replicas, one.adding_replicas, one.removing_replicas)
        for topic in answer.topics
        for one in topic.partitions
    }


async def led_by(nodes: Nodes, broker: int, name: str, index: int, leader: int) -> PartitionInfo:
    """Wait until a broker knows who leads."""
    log = nodes.nodes[broker].broker.metadata
    await until_led_by(log, name, index, leader)
    return log.image.topics[name].partitions[index]


async def test_the_preferred_leader_is_elected_through_any_broker(nodes: Nodes) -> None:
    topic_id = await create(nodes, "t", (2, 3))
    # The order changes and the leader stays in it: nobody has to hand over, until somebody asks for it.
    done = await nodes.nodes[1].broker.metadata.propose(lambda _: [SetReplicas(topic_id, 0, (3, 2))])
    assert not isinstance(done, Refusal)
    assert await elect(nodes, 1, ("t", 0)) == {("t", 0): ErrorCode.NONE}
    partition = nodes.image(1).topics["t"].partitions[0]
    assert (partition.leader, partition.replicas) == (3, (3, 2))
    assert await elect(nodes, 2, ("t", 0), ("t", 7), ("u", 0)) == {
        ("t", 0): ErrorCode.ELECTION_NOT_NEEDED,
        ("t", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


async def test_an_election_of_everything_names_only_what_was_elected(nodes: Nodes) -> None:
    topic_id = await create(nodes, "t", (1, 2), (2, 3), (3, 1))
    done = await nodes.nodes[1].broker.metadata.propose(lambda _: [SetReplicas(topic_id, 1, (1, 2))])
    assert not isinstance(done, Refusal)
    assert await elect(nodes, 3) == {("t", 1): ErrorCode.NONE}
    assert [p.leader for p in nodes.image(3).topics["t"].partitions] == [1, 1, 3]
    assert await elect(nodes, 3) == {}


async def test_elections_that_cannot_be(nodes: Nodes) -> None:
    await create(nodes, "t", (3, 1))
    assert await elect(nodes, 1, ("t", 0), kind=1) == {("t", 0): ErrorCode.ELECTION_NOT_NEEDED}
    await nodes.stop(3)
    await led_by(nodes, 1, "t", 0, 1)
    assert await elect(nodes, 1, ("t", 0)) == {("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    request = ElectLeadersRequest(election_type=7, topic_partitions=[])
    assert (await nodes.ask(1, request, ElectLeadersResponse, 2)).error_code == ErrorCode.INVALID_REQUEST


async def test_an_election_whose_leader_does_not_hand_over_in_time(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = await create(nodes, "t", (2, 1))

    async def nothing(plans: object) -> int:
        return 0

    membership = nodes.nodes[2].broker.membership
    assert membership is not None
    monkeypatch.setattr(membership.balance, "hand_over", nothing)
    done = await nodes.nodes[1].broker.metadata.propose(lambda _: [SetReplicas(topic_id, 0, (1, 2))])
    assert not isinstance(done, Refusal)
    answer = await elect(nodes, 1, ("t", 0), timeout_ms=50)
    assert answer == {("t", 0): ErrorCode.REQUEST_TIMED_OUT}


async def test_a_reassignment_moves_the_leader_and_is_done(nodes: Nodes) -> None:
    await create(nodes, "t", (1, 2))
    assert await reassign(nodes, 2, "t", 0, [3]) is ErrorCode.NONE
    partition = await led_by(nodes, 2, "t", 0, 3)
    assert partition.replicas == (3,)
    assert await under_way(nodes, 2) == {}
    assert await reassign(nodes, 2, "t", 0, None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    answer = await nodes.ask(1, MetadataRequest(topics=None), MetadataResponse, 12)
    (topic,) = answer.topics
    assert [(p.leader_id, p.replica_nodes, p.isr_nodes) for p in topic.partitions] == [(3, [3], [3])]


async def test_a_reassignment_under_way_is_listed_and_can_be_cancelled(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(nodes, "t", (1, 2), (2, 3))

    async def nothing(plans: object) -> int:
        return 0

    membership = nodes.nodes[1].broker.membership
    assert membership is not None
    with monkeypatch.context() as patch:
        patch.setattr(membership.balance, "hand_over", nothing)
        assert await reassign(nodes, 3, "t", 0, [2, 3]) is ErrorCode.NONE
        expected = {("t", 0): ([2, 3, 1], [3], [1])}
        assert await under_way(nodes, 2) == expected
        asked = [ListPartitionReassignmentsTopics(name="t", partition_indexes=[0, 1, 5])]
        assert await under_way(nodes, 2, asked) == expected
        other = [ListPartitionReassignmentsTopics(name="other", partition_indexes=[0])]
        assert await under_way(nodes, 2, other) == {}
        assert await reassign(nodes, 2, "t", 0, None) is ErrorCode.NONE
    assert await under_way(nodes, 3) == {}
    partition = nodes.image(3).topics["t"].partitions[0]
    assert (partition.leader, partition.replicas) == (1, (1, 2))


async def test_reassignments_that_cannot_be(nodes: Nodes) -> None:
    await create(nodes, "t", (1, 2))
    assert await reassign(nodes, 2, "t", 0, [9]) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await reassign(nodes, 2, "t", 0, [2, 2]) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await reassign(nodes, 2, "t", 0, []) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await reassign(nodes, 2, "t", 1, [1]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await reassign(nodes, 2, "u", 0, [1]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await reassign(nodes, 2, "t", 0, [1], factor=False) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert await reassign(nodes, 2, "t", 0, [2, 1], factor=False) is ErrorCode.NONE


async def unregister(nodes: Nodes, through: int, broker: int) -> ErrorCode:
    request = UnregisterBrokerRequest(broker_id=broker)
    return ErrorCode((await nodes.ask(through, request, UnregisterBrokerResponse, 0)).error_code)


async def test_a_dead_broker_is_unregistered(nodes: Nodes) -> None:
    await create(nodes, "t", (3, 1))
    await nodes.kill(3)
    assert await unregister(nodes, 2, 3) is ErrorCode.NONE
    assert sorted(nodes.image(2).brokers) == [1, 2]
    assert nodes.image(2).topics["t"].partitions[0].leader == 1
    assert await unregister(nodes, 1, 3) is ErrorCode.BROKER_ID_NOT_REGISTERED


@pytest.mark.parametrize("through", [1, 3])
async def test_a_live_broker_is_unregistered_and_stops(nodes: Nodes, through: int) -> None:
    await create(nodes, "t", (3, 1))
    assert await unregister(nodes, through, 3) is ErrorCode.NONE
    assert await asyncio.wait_for(nodes.runs[3], 60) == "Broker 3 was removed from the cluster."
    partition = await led_by(nodes, 1, "t", 0, 1)
    assert partition.leader == 1
    await nodes.nodes[1].broker.metadata.catch_up()
    assert sorted(nodes.image(1).brokers) == [1, 2]


async def test_the_quorum_is_the_brokers_and_how_far_they_have_come(nodes: Nodes) -> None:
    await create(nodes, "t", (3, 1))
    await nodes.nodes[2].broker.metadata.catch_up()
    await nodes.kill(3)
    partitions = [PartitionData(partition_index=0), PartitionData(partition_index=1)]
    request = DescribeQuorumRequest(
        topics=[TopicData(topic_name="__cluster_metadata", partitions=partitions)]
    )
    answer = await nodes.ask(2, request, DescribeQuorumResponse, 2)
    quorum, nothing = answer.topics[0].partitions
    image = nodes.image(2)
    assert nothing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (quorum.leader_id, quorum.leader_epoch) == (1, image.brokers[1].epoch)
    assert quorum.high_watermark == image.version
    assert [one.replica_id for one in quorum.current_voters] == [1, 2, 3]
    assert all(0 < one.log_end_offset <= image.version for one in quorum.current_voters)
    assert all(one.last_caught_up_timestamp > 0 for one in quorum.current_voters)
    assert [node.node_id for node in answer.nodes] == [1, 2, 3]
    await led_by(nodes, 2, "t", 0, 1)
    answer = await nodes.ask(2, request, DescribeQuorumResponse, 2)
    quorum = answer.topics[0].partitions[0]
    assert [one.replica_id for one in quorum.current_voters] == [1, 2]
    assert [one.replica_id for one in quorum.observers] == [3]


async def test_racks_are_shown(nodes: Nodes) -> None:
    answer = await nodes.ask(3, MetadataRequest(topics=[]), MetadataResponse, 12)
    assert {one.node_id: one.rack for one in answer.brokers} == {1: "rack-1", 2: "rack-2", 3: "rack-3"}
