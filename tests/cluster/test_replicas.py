"""DescribeLogDirs and DescribeProducers at brokers that are replicas of a partition and do not lead it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.peers.peers import PeerError, Peers
from penstock.broker.topics import replicas
from penstock.storage.stores.objects import StoreUnavailableError
from penstock.testing.waiting import eventually
from penstock.wire.api.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from penstock.wire.api.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.wire.api.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from penstock.wire.api.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicRequest,
)
from penstock.wire.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.errors import ErrorCode
from tests.broker.rig import batch

from .nodes import Nodes
from .test_reassignments import create

Sizes = dict[str, dict[int, int]]


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    """Led by 1, with 2 as the other replica. Broker 3 has nothing to do with it."""
    made = Nodes(tmp_path / "store", broker_session_timeout_ms="5000", wal_settle_interval_ms="3600000")
    await made.start(1, 2, 3)
    await create(made, "t", (1, 2), (1, 2))
    yield made
    await made.close()


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers do not answer each other."""

    async def ask(*_arguments: object, **_options: object) -> None:
        raise PeerError("it is silent")

    monkeypatch.setattr(Peers, "ask", ask)


async def produce(nodes: Nodes, sequence: int, index: int = 0) -> int:
    records = batch(b"x" * 100, producer_id=7, producer_epoch=0, base_sequence=sequence)
    data = PartitionProduceData(index=index, records=records)
    request = ProduceRequest(
        acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(name="t", partition_data=[data])]
    )
    answer = await nodes.ask(1, request, ProduceResponse, 9)
    assert answer.responses[0].partition_responses[0].error_code == 0
    return len(records)


async def settle(nodes: Nodes) -> None:
    """Settle, and let all know of it."""
    await nodes.nodes[1].broker.ledger.settle()
    await eventually(lambda: len({nodes.image(broker).version for broker in nodes.nodes}) == 1)


async def sizes(nodes: Nodes, broker: int) -> Sizes:
    answer = await nodes.ask(broker, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, 4)
    (result,) = answer.results
    assert all(one.offset_lag == 0 for topic in result.topics for one in topic.partitions)
    return {
        topic.name: {p.partition_index: p.partition_size for p in topic.partitions} for topic in result.topics
    }


async def producers(nodes: Nodes, broker: int, index: int = 0) -> PartitionResponse:
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[index])])
    answer = await nodes.ask(broker, request, DescribeProducersResponse, 0)
    return answer.topics[0].partitions[0]


async def test_each_replica_lists_the_partition_with_what_is_settled(nodes: Nodes) -> None:
    size = await produce(nodes, 0)
    assert [await sizes(nodes, broker) for broker in (1, 2, 3)] == [
        {"t": {0: size, 1: 0}},
        {"t": {0: 0, 1: 0}},
        {},
    ]
    await settle(nodes)
    await produce(nodes, 1)
    assert await sizes(nodes, 1) == {"t": {0: 2 * size, 1: 0}}
    assert await sizes(nodes, 2) == {"t": {0: size, 1: 0}}
    await settle(nodes)
    assert await sizes(nodes, 2) == await sizes(nodes, 1)
    topic = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=2)])
    await nodes.ask(1, DeleteRecordsRequest(topics=[topic], timeout_ms=5000), DeleteRecordsResponse, 2)
    await settle(nodes)
    assert await sizes(nodes, 2) == await sizes(nodes, 1) == {"t": {0: 0, 1: 0}}


async def test_what_is_known_is_not_read_again_and_what_cannot_be_read_stays_as_it_was(
    nodes: Nodes, silent: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = await produce(nodes, 0)
    await settle(nodes)
    ledger = nodes.nodes[2].broker.ledger
    assert await sizes(nodes, 2) == {"t": {0: size, 1: 0}}

    async def out(refs: object) -> None:
        raise StoreUnavailableError("the store is out")

    monkeypatch.setattr(ledger, "manifests", out)
    assert await sizes(nodes, 2) == {"t": {0: size, 1: 0}}
    await produce(nodes, 1)
    await settle(nodes)
    assert await sizes(nodes, 2) == {"t": {0: size, 1: 0}}
    assert (await producers(nodes, 2)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    monkeypatch.undo()
    assert await sizes(nodes, 2) == {"t": {0: 2 * size, 1: 0}}


async def test_one_request_reads_few_objects(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "OBJECTS_MAX", 1)
    for index in range(2):
        size = await produce(nodes, 0, index)
        await settle(nodes)
    assert await sizes(nodes, 2) == {"t": {0: size, 1: 0}}
    assert await sizes(nodes, 2) == {"t": {0: size, 1: size}}


async def test_a_replica_is_in_the_one_directory_that_there_is(nodes: Nodes) -> None:
    answer = await nodes.ask(2, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, 4)
    here = answer.results[0].log_dir
    topics = [
        AlterReplicaLogDirTopic(name="t", partitions=[0, 9]),
        AlterReplicaLogDirTopic(name="nope", partitions=[0]),
    ]
    elsewhere = AlterReplicaLogDir(
        path="/elsewhere", topics=[AlterReplicaLogDirTopic(name="t", partitions=[1])]
    )
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=here, topics=topics), elsewhere])
    unknown, not_found = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LOG_DIR_NOT_FOUND
    for broker, code in ((1, 0), (2, 0), (3, ErrorCode.REPLICA_NOT_AVAILABLE)):
        told = await nodes.ask(broker, request, AlterReplicaLogDirsResponse, 2)
        found = {
            (topic.topic_name, one.partition_index): one.error_code
            for topic in told.results
            for one in topic.partitions
        }
        assert found == {("t", 0): code, ("t", 9): unknown, ("nope", 0): unknown, ("t", 1): not_found}


async def test_another_replica_asks_the_leader_for_its_producers(nodes: Nodes) -> None:
    for sequence in range(7):
        await produce(nodes, sequence)
    leader, replica, neither = [await producers(nodes, broker) for broker in (1, 2, 3)]
    assert [one.last_sequence for one in leader.active_producers] == [6]
    assert replica == leader
    assert neither.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_replica_whose_leader_is_silent_tells_of_producers_what_is_settled(
    nodes: Nodes, silent: None
) -> None:
    await produce(nodes, 0)
    replica = await producers(nodes, 2)
    assert (replica.error_code, replica.active_producers) == (0, [])
    await settle(nodes)
    await produce(nodes, 1)
    assert [one.last_sequence for one in (await producers(nodes, 2)).active_producers] == [0]
