"""DeleteRecords, OffsetForLeaderEpoch, DescribeProducers and InitProducerId, on real partitions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker.produce.producer_ids import BLOCK_SIZE
from penstock.wire.api.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.wire.api.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicRequest,
)
from penstock.wire.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.api.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from penstock.wire.api.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire.errors import ErrorCode
from tests.broker.rig import Rig, batch

OUT_OF_RANGE = ErrorCode.OFFSET_OUT_OF_RANGE
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def produce(rig: Rig, topic: str, records: Any) -> None:
    message = ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name=topic, partition_data=[PartitionProduceData(records=records)])],
    )
    answer = await rig.ask(message, ProduceResponse, 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


# DeleteRecords.


async def delete(
    rig: Rig, *asked: tuple[str, int, int], version: int = 2
) -> dict[tuple[str, int], tuple[int, int]]:
    topics = [
        DeleteRecordsTopic(
            name=name, partitions=[DeleteRecordsPartition(partition_index=index, offset=offset)]
        )
        for name, index, offset in asked
    ]
    message = DeleteRecordsRequest(topics=topics, timeout_ms=1000)
    answer = await rig.ask(message, DeleteRecordsResponse, version)
    return {
        (topic.name, p.partition_index): (p.error_code, p.low_watermark)
        for topic in answer.topics
        for p in topic.partitions
    }


@pytest.mark.parametrize("version", range(3))
async def test_records_below_an_offset_are_gone(rig: Rig, version: int) -> None:
    topic = await rig.topic("orders")
    await produce(rig, "orders", batch(b"a", b"b", b"c"))
    key = ("orders", 0)
    assert await delete(rig, (*key, 2), version=version) == {key: (0, 2)}
    partition = rig.broker.ledger.partition(topic.id, 0)
    assert partition is not None
    assert (partition.log_start_offset, partition.high_watermark) == (2, 3)
    assert rig.broker.image.topics["orders"].partitions[0].log_start == 2
    assert await delete(rig, (*key, 1), version=version) == {key: (0, 2)}, "the log start never goes back"
    assert await delete(rig, (*key, 4), version=version) == {key: (OUT_OF_RANGE, -1)}
    assert await delete(rig, (*key, -2), version=version) == {key: (OUT_OF_RANGE, -1)}
    assert await delete(rig, (*key, -1), version=version) == {key: (0, 3)}


async def test_where_records_cannot_be_deleted(rig: Rig) -> None:
    await rig.topic("compacted", cleanup_policy="compact")
    await rig.topic("both", cleanup_policy="compact,delete")
    await rig.topic("__consumer_offsets")
    answers = await delete(
        rig, ("compacted", 0, 0), ("both", 0, 0), ("__consumer_offsets", 0, 0), ("both", 9, 0), ("nope", 0, 0)
    )
    assert answers == {
        ("compacted", 0): (ErrorCode.POLICY_VIOLATION, -1),
        ("both", 0): (0, 0),
        ("__consumer_offsets", 0): (ErrorCode.INVALID_TOPIC_EXCEPTION, -1),
        ("both", 9): (UNKNOWN, -1),
        ("nope", 0): (UNKNOWN, -1),
    }


async def test_of_a_repeated_partition_the_last_offset_counts(rig: Rig) -> None:
    await rig.topic("orders")
    await produce(rig, "orders", batch(b"a", b"b", b"c"))
    assert await delete(rig, ("orders", 0, 3), ("orders", 0, 1)) == {("orders", 0): (0, 1)}


# OffsetForLeaderEpoch.


@pytest.mark.parametrize("version", range(5))
async def test_where_an_epoch_ended(rig: Rig, version: int) -> None:
    await rig.topic("orders")
    await produce(rig, "orders", batch(b"a", b"b"))
    wanted = [OffsetForLeaderPartition(partition=0, leader_epoch=epoch) for epoch in (0, 1, -1)]
    wanted.append(OffsetForLeaderPartition(partition=5, leader_epoch=0))
    message = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="orders", partitions=wanted)])
    answer = await rig.ask(message, OffsetForLeaderEpochResponse, version)
    (topic,) = answer.topics
    first = 0 if version >= 1 else -1
    assert [(p.error_code, p.leader_epoch, p.end_offset) for p in topic.partitions] == [
        (0, first, 2),
        (0, -1, -1),
        (0, -1, -1),
        (UNKNOWN, -1, -1),
    ]


@pytest.mark.parametrize("version", range(2, 5))
async def test_a_client_with_another_epoch(rig: Rig, version: int) -> None:
    await rig.topic("orders")
    wanted = [OffsetForLeaderPartition(current_leader_epoch=epoch) for epoch in (0, 1, -2)]
    topics = [OffsetForLeaderTopic(topic=name, partitions=wanted) for name in ("orders", "nope")]
    answer = await rig.ask(OffsetForLeaderEpochRequest(topics=topics), OffsetForLeaderEpochResponse, version)
    codes = {topic.topic: [p.error_code for p in topic.partitions] for topic in answer.topics}
    assert codes == {
        "orders": [0, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH],
        "nope": [UNKNOWN] * 3,
    }


# Producers.


async def test_producers_that_a_partition_remembers(rig: Rig) -> None:
    await rig.topic("orders", 2)
    producer = {"producer_id": 7, "producer_epoch": 3}
    await produce(rig, "orders", batch(b"a", b"b", base_sequence=0, **producer))
    await produce(rig, "orders", batch(b"c", base_sequence=2, timestamp=1_700_000_000_500, **producer))
    message = DescribeProducersRequest(
        topics=[
            TopicRequest(name="orders", partition_indexes=[0, 1, 9]),
            TopicRequest(name="nope", partition_indexes=[0]),
            TopicRequest(name="a b", partition_indexes=[0]),
        ]
    )
    answer = await rig.ask(message, DescribeProducersResponse, 0)
    partitions = {topic.name: topic.partitions for topic in answer.topics}
    (state,) = partitions["orders"][0].active_producers
    assert (state.producer_id, state.producer_epoch, state.last_sequence) == (7, 3, 2)
    assert (state.last_timestamp, state.current_txn_start_offset) == (1_700_000_000_500, -1)
    assert partitions["orders"][1:] == [
        PartitionResponse(partition_index=1),
        PartitionResponse(partition_index=9, error_code=UNKNOWN),
    ]
    (nope,) = partitions["nope"]
    assert (nope.error_code, nope.error_message) == (
        UNKNOWN,
        "This server does not host this topic-partition.",
    )
    assert partitions["a b"][0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def init(rig: Rig, version: int = 4, **fields: Any) -> InitProducerIdResponse:
    return await rig.ask(InitProducerIdRequest(**fields), InitProducerIdResponse, version)


@pytest.mark.parametrize("version", range(6))
async def test_every_producer_gets_an_id_of_its_own(rig: Rig, version: int) -> None:
    answers = [await init(rig, version, transactional_id=None) for _ in range(3)]
    assert [(a.error_code, a.producer_epoch) for a in answers] == [(0, 0)] * 3
    assert len({answer.producer_id for answer in answers}) == 3


async def test_ids_go_on_when_a_block_is_used_up(rig: Rig) -> None:
    count = 2 * BLOCK_SIZE + 500
    answers = await asyncio.gather(*(init(rig, transactional_id=None) for _ in range(count)))
    ids = {answer.producer_id for answer in answers}
    assert {answer.error_code for answer in answers} == {0}
    assert len(ids) == count
    assert max(ids) < rig.broker.image.next_producer_id


async def test_ids_are_never_given_again_after_a_restart(rig: Rig) -> None:
    before = (await init(rig, transactional_id=None)).producer_id
    del rig.broker.services.producer_ids
    after = (await init(rig, transactional_id=None)).producer_id
    assert after >= before + BLOCK_SIZE


REFUSED: list[tuple[dict[str, Any], ErrorCode]] = [
    ({"transactional_id": None, "producer_id": 5}, ErrorCode.INVALID_REQUEST),
    ({"transactional_id": None, "producer_epoch": 5}, ErrorCode.INVALID_REQUEST),
    ({"transactional_id": "", "transaction_timeout_ms": 5}, ErrorCode.INVALID_REQUEST),
    ({"transactional_id": "t", "transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ({"transactional_id": "t", "transaction_timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ({"transactional_id": "t", "transaction_timeout_ms": 5}, ErrorCode.NOT_COORDINATOR),
]


@pytest.mark.parametrize(("fields", "code"), REFUSED)
async def test_producers_that_get_no_id(rig: Rig, fields: dict[str, Any], code: ErrorCode) -> None:
    answer = await init(rig, **fields)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (code, -1, -1)


async def test_an_idempotent_producer_that_comes_back_gets_a_new_id(rig: Rig) -> None:
    answer = await init(rig, transactional_id=None, producer_id=5, producer_epoch=3)
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    assert answer.producer_id != 5
