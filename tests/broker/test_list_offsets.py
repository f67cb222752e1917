"""ListOffsets: offsets by time, the special ones, and the versions that brought them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.storage.ledger.ledger import Partition
from penstock.wire.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.wire.api.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire.errors import ErrorCode
from tests.broker.rig import Rig, batch

VERSIONS = range(1, 12)
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = range(-1, -7, -1)
SINCE = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    PENDING_UPLOAD: 11,
    -7: 99,
}
START = 1_700_000_000_000


async def ask(
    rig: Rig, *asked: tuple[str, list[ListOffsetsPartition]], version: int, **fields: int
) -> dict[tuple[str, int], ListOffsetsPartitionResponse]:
    topics = [ListOffsetsTopic(name=name, partitions=partitions) for name, partitions in asked]
    message = ListOffsetsRequest(replica_id=fields.pop("replica_id", -1), topics=topics, **fields)
    answer = await rig.ask(message, ListOffsetsResponse, version)
    found = {(topic.name, p.partition_index): p for topic in answer.topics for p in topic.partitions}
    assert sum(len(topic.partitions) for topic in answer.topics) == len(found)
    return found


async def one(
    rig: Rig, timestamp: int, version: int, epoch: int = -1, **fields: int
) -> ListOffsetsPartitionResponse:
    wanted = ListOffsetsPartition(timestamp=timestamp, current_leader_epoch=epoch)
    return (await ask(rig, ("orders", [wanted]), version=version, **fields))["orders", 0]


def seen(answer: ListOffsetsPartitionResponse) -> tuple[int, int, int, int]:
    return answer.error_code, answer.offset, answer.timestamp, answer.leader_epoch


async def fill(rig: Rig, *timestamps: int) -> Partition:
    """One batch of two records per timestamp, both with that timestamp."""
    topic = await rig.topic("orders")
    for timestamp in timestamps:
        data: Any = batch(b"a", b"b", timestamp=timestamp)
        message = ProduceRequest(
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(name="orders", partition_data=[PartitionProduceData(index=0, records=data)])
            ],
        )
        answer = await rig.ask(message, ProduceResponse, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
    partition = rig.broker.ledger.partition(topic.id, 0)
    assert partition is not None
    return partition


@pytest.mark.parametrize("version", VERSIONS)
async def test_first_last_and_by_time(rig: Rig, version: int) -> None:
    await fill(rig, START, START + 100, START + 50)
    epoch = 0 if version >= 4 else -1
    assert seen(await one(rig, LATEST, version)) == (0, 6, -1, epoch)
    assert seen(await one(rig, EARLIEST, version)) == (0, 0, -1, epoch)
    assert seen(await one(rig, 0, version)) == (0, 0, START, epoch)
    assert seen(await one(rig, START + 1, version)) == (0, 2, START + 100, epoch)
    assert seen(await one(rig, START + 101, version)) == (0, -1, -1, -1)


@pytest.mark.parametrize("version", VERSIONS)
async def test_special_timestamps_from_their_version_on(rig: Rig, version: int) -> None:
    await fill(rig, START, START + 100, START + 50)
    expected = {
        LATEST: (6, -1, 0),
        EARLIEST: (0, -1, 0),
        MAX_TIMESTAMP: (2, START + 100, 0),
        EARLIEST_LOCAL: (0, -1, 0),
        LATEST_TIERED: (-1, -1, -1),
        PENDING_UPLOAD: (-1, -1, -1),
    }
    for special, since in SINCE.items():
        answer = await one(rig, special, version)
        if version < since:
            assert seen(answer) == (ErrorCode.UNSUPPORTED_VERSION, -1, -1, -1)
        else:
            offset, timestamp, epoch = expected[special]
            assert seen(answer) == (0, offset, timestamp, epoch if version >= 4 else -1)


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_empty_partition(rig: Rig, version: int) -> None:
    await rig.topic("orders")
    epoch = 0 if version >= 4 else -1
    assert seen(await one(rig, LATEST, version)) == (0, 0, -1, epoch)
    assert seen(await one(rig, EARLIEST, version)) == (0, 0, -1, epoch)
    assert seen(await one(rig, 5, version)) == (0, -1, -1, -1)
    if version >= 7:
        assert seen(await one(rig, MAX_TIMESTAMP, version)) == (0, -1, -1, -1)


@pytest.mark.parametrize("version", VERSIONS[1:])
async def test_committed_readers_are_held_back_by_an_open_transaction(
    rig: Rig, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await fill(rig, START, START + 100, START + 50)
    monkeypatch.setattr(type(partition), "last_stable_offset", 2)
    assert (await one(rig, LATEST, version, isolation_level=0)).offset == 6
    assert (await one(rig, LATEST, version, isolation_level=1)).offset == 2
    assert (await one(rig, LATEST, version, isolation_level=1, replica_id=-2)).offset == 6
    assert (await one(rig, START + 1, version, isolation_level=0)).offset == 2
    assert (await one(rig, START + 1, version, isolation_level=1)).offset == -1
    if version >= 7:
        assert (await one(rig, MAX_TIMESTAMP, version, isolation_level=1)).offset == -1


@pytest.mark.parametrize("version", VERSIONS[3:])
async def test_the_leader_epoch_that_the_client_believes_in(rig: Rig, version: int) -> None:
    await rig.topic("orders")
    for epoch, code in (
        (0, ErrorCode.NONE),
        (1, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (-2, ErrorCode.FENCED_LEADER_EPOCH),
    ):
        assert (await one(rig, LATEST, version, epoch)).error_code == code


@pytest.mark.parametrize("version", VERSIONS)
async def test_each_partition_has_its_own_code(rig: Rig, version: int) -> None:
    await rig.topic("orders", 2)
    partitions = [ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in (0, 1, 2, -1)]
    answers = await ask(rig, ("orders", partitions), ("nope", partitions[:1]), version=version)
    assert {key: answer.error_code for key, answer in answers.items()} == {
        ("orders", 0): 0,
        ("orders", 1): 0,
        ("orders", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("orders", -1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("nope", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_partition_that_is_named_twice_is_refused_once(rig: Rig, version: int) -> None:
    await rig.topic("orders", 2)
    twice = [ListOffsetsPartition(timestamp=LATEST), ListOffsetsPartition(timestamp=EARLIEST)]
    other = [ListOffsetsPartition(partition_index=1, timestamp=LATEST)]
    answers = await ask(rig, ("orders", [*twice, *other]), ("orders", twice[:1]), version=version)
    assert {key: answer.error_code for key, answer in answers.items()} == {
        ("orders", 0): ErrorCode.INVALID_REQUEST,
        ("orders", 1): 0,
    }


async def test_an_isolation_level_that_does_not_exist(rig: Rig) -> None:
    await rig.topic("orders")
    assert (await one(rig, LATEST, 6, isolation_level=7)).error_code == ErrorCode.INVALID_REQUEST


async def old_style(rig: Rig, timestamp: int, count: int) -> tuple[int, list[int]]:
    wanted = ListOffsetsPartition(timestamp=timestamp, max_num_offsets=count)
    answer = (await ask(rig, ("orders", [wanted]), version=0))["orders", 0]
    return answer.error_code, answer.old_style_offsets


async def test_version_0_answers_lists(rig: Rig) -> None:
    await fill(rig, START, START + 100)
    rig.clock.ahead_ms = 1000
    now = rig.clock.time_ms()
    assert await old_style(rig, LATEST, 1) == (0, [4])
    assert await old_style(rig, LATEST, 10) == (0, [4, 0])
    assert await old_style(rig, EARLIEST, 10) == (0, [0])
    assert await old_style(rig, LATEST, 0) == (0, [])
    assert await old_style(rig, START + 99, 10) == (0, [])
    assert await old_style(rig, START + 100, 10) == (0, [0])
    assert await old_style(rig, now + 1000, 10) == (0, [4, 0])
    assert await old_style(rig, MAX_TIMESTAMP, 1) == (ErrorCode.UNSUPPORTED_VERSION, [])
    assert await old_style(rig, LATEST, -1) == (ErrorCode.INVALID_REQUEST, [])


async def test_version_0_of_an_empty_partition(rig: Rig) -> None:
    await rig.topic("orders")
    assert await old_style(rig, LATEST, 10) == (0, [0])
    assert await old_style(rig, EARLIEST, 10) == (0, [0])
    assert await old_style(rig, 5, 10) == (0, [])
