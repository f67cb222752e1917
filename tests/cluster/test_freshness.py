"""A broker that was silent for too long tells readers nothing that another leader may have made untrue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker import freshness
from penstock.metadata.commands import AssignLeaders, CreateTopic, FenceBroker
from penstock.metadata.placement import successors
from penstock.metadata.refusal import Refusal
from penstock.wire.api.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionData,
    TopicData,
)
from penstock.wire.api.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.wire.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.wire.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from penstock.wire.errors import ErrorCode

from .nodes import Nodes

TOPIC_ID = b"t" * 16


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    # The tests say who is fenced, and when.
    made = Nodes(tmp_path / "store", broker_session_timeout_ms="60000")
    await made.start(1, 2)
    await propose(made, 1, CreateTopic(TOPIC_ID, "t", ((2, 1),)))
    await propose(made, 1, CreateTopic(b"o" * 16, "__consumer_offsets", ((2, 1),)))
    yield made
    await made.close()


async def propose(nodes: Nodes, broker: int, *commands: object) -> None:
    done = await nodes.nodes[broker].broker.metadata.propose(lambda _: commands)  # type: ignore[arg-type,return-value]
    assert not isinstance(done, Refusal), done


def sleep(nodes: Nodes, broker: int) -> None:
    """From now on the broker has been silent for longer than its lease holds, and follows nothing."""
    one = nodes.nodes[broker].broker
    assert one.membership is not None
    for task in one.membership._tasks:
        task.cancel()
    assert one.metadata._tail is not None
    one.metadata._tail.cancel()
    one.membership.heartbeats.lease_until = 0.0


async def told(nodes: Nodes, broker: int) -> list[ErrorCode]:
    """What the broker answers to those who ask for the end, for records, and for committed offsets."""
    place = ListOffsetsPartition(partition_index=0, timestamp=-1)
    ends = await nodes.ask(
        broker,
        ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[place])]),
        ListOffsetsResponse,
        7,
    )
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    fetched = await nodes.ask(
        broker,
        FetchRequest(max_wait_ms=0, max_bytes=1000, topics=[FetchTopic(topic="t", partitions=[part])]),
        FetchResponse,
        11,
    )
    group = OffsetFetchRequestGroup(group_id="g", topics=None)
    committed = await nodes.ask(broker, OffsetFetchRequest(groups=[group]), OffsetFetchResponse, 8)
    return [
        ErrorCode(ends.topics[0].partitions[0].error_code),
        ErrorCode(fetched.responses[0].partitions[0].error_code),
        ErrorCode(committed.groups[0].error_code),
    ]


async def named(nodes: Nodes, broker: int) -> tuple[int, int]:
    """Who leads the topic and who coordinates a group, by what the broker says."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    metadata = await nodes.ask(broker, request, MetadataResponse, 12)
    (partition,) = metadata.topics[0].partitions
    assert (partition.leader_id < 0) == (partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE)
    found = await nodes.ask(
        broker, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), FindCoordinatorResponse, 4
    )
    return partition.leader_id, found.coordinators[0].node_id


async def test_who_holds_its_lease_answers(nodes: Nodes) -> None:
    await nodes.nodes[2].broker.metadata.catch_up()
    assert await told(nodes, 2) == [ErrorCode.NONE] * 3


async def test_who_slept_and_was_not_missed_looks_first_and_answers(nodes: Nodes) -> None:
    sleep(nodes, 2)
    assert await told(nodes, 2) == [ErrorCode.NONE] * 3
    assert await named(nodes, 2) == (2, 2)


async def test_who_slept_and_was_replaced_says_so_at_the_first_question(nodes: Nodes) -> None:
    sleep(nodes, 2)
    image = nodes.image(1)
    epoch, own = image.brokers[2].epoch, image.brokers[1].epoch
    await propose(nodes, 1, FenceBroker(2, epoch, 0), AssignLeaders(1, own, successors(image, 2)))
    expected = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR]
    assert await told(nodes, 2) == expected
    assert await named(nodes, 2) == (1, 1)
    assert await told(nodes, 1) == [ErrorCode.NONE] * 3


async def quorum(nodes: Nodes, broker: int) -> tuple[int, int]:
    """Where the metadata log ends, and where the broker itself is, by what the broker says."""
    topic = TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)])
    answer = await nodes.ask(broker, DescribeQuorumRequest(topics=[topic]), DescribeQuorumResponse, 2)
    found = answer.topics[0].partitions[0]
    own = next(one for one in found.current_voters if one.replica_id == broker)
    return found.high_watermark, own.log_end_offset


async def test_who_holds_its_lease_is_seen_to_lag_and_who_slept_looks_first(nodes: Nodes) -> None:
    two = nodes.nodes[2].broker
    await two.metadata.catch_up()
    before = nodes.image(2).version
    sleep(nodes, 2)
    assert two.membership is not None
    two.membership.heartbeats.lease_until = float("inf")
    await propose(nodes, 1, CreateTopic(b"u" * 16, "u", ((1,),)))
    newest = nodes.image(1).version
    assert newest > before
    assert (await quorum(nodes, 2))[1] == before
    two.membership.heartbeats.lease_until = 0.0
    assert await quorum(nodes, 2) == (newest, newest)


async def test_who_slept_and_cannot_look_sends_readers_elsewhere(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await nodes.nodes[2].broker.metadata.catch_up()
    sleep(nodes, 2)

    async def hang(key: str) -> bytes | None:
        await asyncio.Event().wait()
        return None

    monkeypatch.setattr(freshness, "CATCH_UP_SECONDS_MAX", 0.05)
    monkeypatch.setattr(nodes.nodes[2].broker.metadata._store, "get", hang)
    expected = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR]
    assert await told(nodes, 2) == expected
    # Nor does it tell anybody to come to it.
    assert await named(nodes, 2) == (-1, -1)
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    request = FetchRequest(
        max_wait_ms=0, max_bytes=1000, topics=[FetchTopic(topic_id=TOPIC_ID, partitions=[part])]
    )
    fetched = await nodes.ask(2, request, FetchResponse, 16)
    assert fetched.node_endpoints == []
    assert fetched.responses[0].partitions[0].current_leader.leader_id == -1
