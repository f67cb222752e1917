"""DescribeCluster, DescribeTopicPartitions and DescribeLogDirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.metadata.commands import FenceBroker, RegisterBroker
from penstock.metadata.image import Listener
from penstock.wire.api.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.wire.api.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from penstock.wire.api.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from penstock.wire.api.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import ZERO_UUID
from tests.broker.rig import Rig, batch

UNKNOWN = -0x80000000


# DescribeCluster.


async def cluster(rig: Rig, version: int, **fields: Any) -> DescribeClusterResponse:
    return await rig.ask(DescribeClusterRequest(**fields), DescribeClusterResponse, version)


@pytest.mark.parametrize("version", range(3))
async def test_the_controller_is_among_the_brokers(rig: Rig, version: int) -> None:
    answer = await cluster(rig, version)
    assert (answer.error_code, answer.error_message) == (0, None)
    assert (answer.cluster_id, answer.controller_id) == (rig.broker.image.cluster_id, 1)
    (broker,) = answer.brokers
    assert (broker.broker_id, broker.host, broker.port, broker.rack) == (1, "127.0.0.1", 9092, None)
    assert answer.cluster_authorized_operations == UNKNOWN
    answer = await cluster(rig, version, include_cluster_authorized_operations=True)
    assert answer.cluster_authorized_operations == 8096


async def test_fenced_brokers_are_listed_if_asked_for(rig: Rig) -> None:
    image = await rig.propose(RegisterBroker(2, (Listener("PLAINTEXT", "elsewhere", 9093),), rack="r"))
    await rig.propose(FenceBroker(2, image.brokers[2].epoch, 0))
    assert [broker.broker_id for broker in (await cluster(rig, 2)).brokers] == [1]
    brokers = (await cluster(rig, 2, include_fenced_brokers=True)).brokers
    assert [(broker.broker_id, broker.is_fenced, broker.rack) for broker in brokers] == [
        (1, False, None),
        (2, True, "r"),
    ]


@pytest.mark.parametrize(
    ("endpoint_type", "code", "message"),
    [
        (
            2,
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of type BROKER, "
            "but we wanted an endpoint of type CONTROLLER",
        ),
        (0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "Unsupported endpoint type 0"),
        (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "Unsupported endpoint type 9"),
    ],
)
async def test_other_kinds_of_endpoints(rig: Rig, endpoint_type: int, code: ErrorCode, message: str) -> None:
    answer = await cluster(rig, 1, endpoint_type=endpoint_type)
    assert (answer.error_code, answer.error_message) == (code, message)
    assert (answer.brokers, answer.cluster_id, answer.controller_id) == ([], "", -1)


# DescribeTopicPartitions.


class Page:
    """An answer in short: topics with the indexes of their partitions, codes, and where to go on."""

    def __init__(self, answer: DescribeTopicPartitionsResponse) -> None:
        self.topics = [
            (topic.name or "", [partition.partition_index for partition in topic.partitions])
            for topic in answer.topics
        ]
        self.codes = [topic.error_code for topic in answer.topics]
        cursor = answer.next_cursor
        self.next = None if cursor is None else (cursor.topic_name, cursor.partition_index)


async def page(
    rig: Rig, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
) -> DescribeTopicPartitionsResponse:
    message = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    return await rig.ask(message, DescribeTopicPartitionsResponse, 0)


async def test_partitions_of_topics(rig: Rig) -> None:
    topic = await rig.topic("orders", 2)
    answer = await page(rig, "orders", "nope", "a b", "orders")
    assert [(found.name, found.error_code, found.topic_id) for found in answer.topics] == [
        ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION, ZERO_UUID),
        ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ZERO_UUID),
        ("orders", 0, topic.id),
    ]
    assert {found.topic_authorized_operations for found in answer.topics} == {3576}
    partition = answer.topics[2].partitions[1]
    assert (partition.leader_id, partition.leader_epoch, partition.error_code) == (1, 0, 0)
    assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([1], [1], [])
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])
    assert "nope" not in rig.broker.image.topics


async def test_pages_together_are_everything_once(rig: Rig) -> None:
    wanted = {"a": 3, "b": 1, "c": 4}
    for name, count in wanted.items():
        await rig.topic(name, count)
    for limit in range(1, 9):
        seen: list[tuple[str, int]] = []
        cursor = None
        for _ in range(20):
            found = Page(await page(rig, limit=limit, cursor=cursor))
            here = [(name, index) for name, indexes in found.topics for index in indexes]
            assert len(here) <= limit
            seen += here
            cursor = found.next
            if cursor is None:
                break
        assert seen == [(name, index) for name, count in wanted.items() for index in range(count)]


async def test_limits_and_cursors(rig: Rig) -> None:
    await rig.topic("a", 2)
    await rig.topic("m", 3)
    full = Page(await page(rig, "a", "m", limit=2))
    assert (full.topics, full.next) == ([("a", [0, 1])], ("m", 0))
    inside = Page(await page(rig, "a", "m", cursor=("m", 1)))
    assert (inside.topics, inside.next) == ([("m", [1, 2])], None)
    beyond = Page(await page(rig, "m", cursor=("m", 99)))
    assert (beyond.topics, beyond.next) == ([("m", [])], None)
    between = Page(await page(rig, cursor=("b", 1)))
    assert between.topics == [("m", [0, 1, 2])]
    for limit in (0, -5):
        assert Page(await page(rig, limit=limit)).topics == [("a", [0])]


@pytest.mark.parametrize("cursor", [("z", 0), ("a", -1)])
async def test_a_cursor_that_does_not_fit(rig: Rig, cursor: tuple[str, int]) -> None:
    await rig.topic("a")
    found = Page(await page(rig, "a", cursor=cursor))
    assert (found.topics, found.codes) == ([("a", [])], [ErrorCode.INVALID_REQUEST])


# DescribeLogDirs.


async def sizes(rig: Rig, version: int, topics: dict[str, list[int]] | None) -> dict[str, dict[int, int]]:
    asked = None
    if topics is not None:
        asked = [DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in topics.items()]
    answer = await rig.ask(DescribeLogDirsRequest(topics=asked), DescribeLogDirsResponse, version)
    (result,) = answer.results
    assert (answer.error_code, result.error_code) == (0, 0)
    assert result.log_dir == rig.broker.settings.store
    if version >= 4:
        assert result.total_bytes >= result.usable_bytes > 0
    return {t.name: {p.partition_index: p.partition_size for p in t.partitions} for t in result.topics}


@pytest.mark.parametrize("version", range(6))
async def test_sizes_of_partitions(rig: Rig, version: int, tmp_path: Path) -> None:
    rig.broker.settings = msgspec.structs.replace(rig.broker.settings, store=str(tmp_path))
    await rig.topic("orders", 2)
    await rig.topic("bills")
    records: Any = batch(b"x" * 100)
    message = ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name="orders", partition_data=[PartitionProduceData(records=records)])],
    )
    await rig.ask(message, ProduceResponse, 9)
    size = len(records)
    assert await sizes(rig, version, None) == {"orders": {0: size, 1: 0}, "bills": {0: 0}}
    assert await sizes(rig, version, {"orders": [0, 9], "nope": [0], "bills": []}) == {"orders": {0: size}}


async def test_an_object_store_has_no_number_for_its_room(rig: Rig) -> None:
    rig.broker.settings = msgspec.structs.replace(rig.broker.settings, store="s3://key:secret@bucket/x")
    answer = await rig.ask(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, 5)
    (result,) = answer.results
    assert (result.log_dir, result.total_bytes, result.usable_bytes) == ("s3://bucket/x", -1, -1)
