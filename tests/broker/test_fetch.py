"""Fetch, in every version: limits, long polls, sessions, epochs, conversion."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.metadata.commands import CreateTopic, DeleteTopic
from penstock.wire import compression
from penstock.wire.api.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from penstock.wire.batch import iter_batches, iter_records
from penstock.wire.codec import decode, encode
from penstock.wire.errors import ErrorCode
from penstock.wire.exchange import Reply
from penstock.wire.headers import parse_response_header
from penstock.wire.schema import ZERO_UUID
from tests.broker.rig import Rig, batch
from tests.storage.world import admitted

VERSIONS = range(19)
Asked = tuple[str, int, int]
"""Topic, partition, offset."""


async def fill(rig: Rig, name: str, *batches: Any, index: int = 0) -> None:
    """Append straight to the ledger."""
    partition = rig.broker.ledger.partition(rig.broker.image.topics[name].id, index)
    assert partition is not None
    results: list[Any] = []
    for data in batches:
        rig.broker.ledger.append(partition, admitted(bytearray(data)), results.append)
    async with asyncio.timeout(60):
        while len(results) < len(batches):  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert not any(isinstance(result, ErrorCode) for result in results)


def request(rig: Rig, version: int, asked: Sequence[Asked], **fields: Any) -> FetchRequest:
    partition_fields = {
        key: fields.pop(key)
        for key in ("partition_max_bytes", "current_leader_epoch", "last_fetched_epoch")
        if key in fields
    }
    topics = []
    for name, index, offset in asked:
        topic = rig.broker.image.topics.get(name)
        partition = FetchPartition(
            partition=index, fetch_offset=offset, **{"partition_max_bytes": 1_000_000, **partition_fields}
        )
        topic_id = (topic.id if topic else b"?" * 16) if version >= 13 else ZERO_UUID
        topics.append(
            FetchTopic(topic=name if version < 13 else "", topic_id=topic_id, partitions=[partition])
        )
    fields.setdefault("min_bytes", 0 if "max_wait_ms" not in fields else 1)
    return FetchRequest(topics=topics, **fields)


async def fetch(rig: Rig, version: int, asked: Sequence[Asked], **fields: Any) -> list[PartitionData]:
    answer = await rig.ask(request(rig, version, asked, **fields), FetchResponse, version)
    assert answer.error_code == 0
    return [partition for topic in answer.responses for partition in topic.partitions]


def values(partition: PartitionData) -> list[bytes | None]:
    data = partition.records
    assert data is not None
    return [record.value for at, _header in iter_batches(data) for record in iter_records(data, at)]


def old_values(data: Any) -> list[tuple[int, bytes]]:
    """Offset and value of each uncompressed message of magic 0 or 1."""
    found = []
    at = 0
    while at < len(data):
        offset, size, _crc, magic = struct.unpack_from(">qiIb", data, at)
        key_at = at + 18 + (8 if magic else 0)
        key_size = max(0, struct.unpack_from(">i", data, key_at)[0])
        value_at = key_at + 4 + key_size
        value_size = struct.unpack_from(">i", data, value_at)[0]
        found.append((offset, bytes(data[value_at + 4 : value_at + 4 + value_size])))
        at += 12 + size
    return found


@pytest.mark.parametrize("version", VERSIONS)
async def test_records_come_back_in_every_version(rig: Rig, version: int) -> None:
    await rig.topic("t")
    await fill(rig, "t", batch(b"one", b"two"), batch(b"three"))
    (partition,) = await fetch(rig, version, [("t", 0, 0)])
    assert (partition.error_code, partition.high_watermark) == (0, 3)
    if version >= 4:
        assert values(partition) == [b"one", b"two", b"three"]
    else:
        assert partition.records is not None
        assert old_values(partition.records) == [(0, b"one"), (1, b"two"), (2, b"three")]
        assert partition.records[16] == (0 if version < 2 else 1)
    assert partition.last_stable_offset == (3 if version >= 4 else -1)
    assert partition.log_start_offset == (0 if version >= 5 else -1)
    assert partition.preferred_read_replica == -1


@pytest.mark.parametrize("version", range(4))
async def test_small_records_of_several_partitions_are_converted_together(rig: Rig, version: int) -> None:
    await rig.topic("t", 3)
    for index in range(3):
        await fill(rig, "t", batch(b"v%d" % index), index=index)
    found = await fetch(rig, version, [("t", index, 0) for index in range(3)])
    assert [old_values(one.records) for one in found] == [[(0, b"v0")], [(0, b"v1")], [(0, b"v2")]]


async def test_what_is_converted_of_many_partitions_is_bounded(rig: Rig) -> None:
    await rig.topic("t", 4)
    for index in range(4):
        await fill(rig, "t", batch(*[b""] * 20_000), index=index)  # Converted, they are larger.
    asked = [("t", index, 0) for index in range(4)]
    sizes = [len(one.records or b"") for one in await fetch(rig, 2, asked)]
    assert [size > 0 for size in sizes] == [True, True, False, False]
    assert [one.error_code for one in await fetch(rig, 2, asked)] == [0, 0, 0, 0]


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_answer_is_what_the_codec_would_write(rig: Rig, version: int) -> None:
    await rig.topic("t", 2)
    await rig.topic("another")
    await fill(rig, "t", batch(b"x" * 200))
    asked = [("t", 0, 0), ("t", 1, 0), ("another", 0, 0), ("t", 7, 0), ("nobody", 0, 0), ("t", 0, 5)]
    for fields in ({}, {"isolation_level": 1}, {"current_leader_epoch": 99}, {"current_leader_epoch": 0}):
        known = {key: value for key, value in fields.items() if key != "isolation_level" or version >= 4}
        if version < 9:
            known.pop("current_leader_epoch", None)
        buffers = await rig.finished(rig.send(request(rig, version, asked, **known), version))
        assert buffers is not None
        data = memoryview(b"".join(buffers))
        _correlation_id, at = parse_response_header(1, version, data)
        answer, end = decode(FetchResponse, version, data, at)
        assert end == len(data)
        assert encode(answer, version) == data[at:]


async def test_an_offset_inside_a_batch_gives_the_whole_batch(rig: Rig) -> None:
    await rig.topic("t")
    await fill(rig, "t", batch(b"a", b"b", b"c"), batch(b"d", b"e"))
    (partition,) = await fetch(rig, 11, [("t", 0, 1)])
    assert values(partition) == [b"a", b"b", b"c", b"d", b"e"]
    (partition,) = await fetch(rig, 11, [("t", 0, 4)])
    assert values(partition) == [b"d", b"e"]
    (partition,) = await fetch(rig, 2, [("t", 0, 1)])
    assert partition.records is not None
    assert [offset for offset, _value in old_values(partition.records)] == [1, 2, 3, 4]


async def test_offsets_out_of_range(rig: Rig) -> None:
    await rig.topic("t")
    await fill(rig, "t", batch(b"a"), batch(b"b"))
    for offset in (-1, 3, 100):
        (partition,) = await fetch(rig, 12, [("t", 0, offset)], max_wait_ms=60_000)
        assert partition.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (partition.high_watermark, partition.log_start_offset) == (-1, -1)
    (partition,) = await fetch(rig, 12, [("t", 0, 2)])
    assert (partition.error_code, partition.records) == (0, b"")


async def test_unknown_partitions_are_answered_one_by_one(rig: Rig) -> None:
    await rig.topic("t")
    await fill(rig, "t", batch(b"a"))
    by_name = await fetch(rig, 12, [("nobody", 0, 0), ("t", 9, 0), ("t", 0, 0)], max_wait_ms=60_000)
    assert [one.error_code for one in by_name] == [3, 3, 0]
    by_id = await fetch(rig, 13, [("nobody", 0, 0), ("t", 9, 0), ("t", 0, 0)])
    assert [one.error_code for one in by_id] == [ErrorCode.UNKNOWN_TOPIC_ID, 3, 0]


async def test_leader_epochs(rig: Rig) -> None:
    await rig.topic("t")
    partition = rig.broker.ledger.partition(rig.broker.image.topics["t"].id, 0)
    assert partition is not None
    epoch = partition.leader_epoch
    for asked, code in (
        (-1, ErrorCode.NONE),
        (epoch, ErrorCode.NONE),
        (epoch + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ):
        (answer,) = await fetch(rig, 9, [("t", 0, 0)], current_leader_epoch=asked)
        assert answer.error_code == code
    partition.leader_epoch += 1
    message = request(rig, 16, [("t", 0, 0)], current_leader_epoch=epoch)
    whole = await rig.ask(message, FetchResponse, 16)
    (topic,) = whole.responses
    assert topic.partitions[0].error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert topic.partitions[0].current_leader.leader_id == 1
    assert [(node.node_id, node.host, node.port) for node in whole.node_endpoints] == [(1, "127.0.0.1", 9092)]


async def test_a_diverging_epoch(rig: Rig) -> None:
    await rig.topic("t")
    await fill(rig, "t", batch(b"a"))
    led = rig.broker.ledger.partition(rig.broker.image.topics["t"].id, 0)
    assert led is not None
    epoch = led.leader_epoch
    (unknown,) = await fetch(rig, 12, [("t", 0, 1)], last_fetched_epoch=epoch + 1, max_wait_ms=60_000)
    assert unknown.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    (beyond,) = await fetch(rig, 12, [("t", 0, 5)], last_fetched_epoch=epoch, max_wait_ms=60_000)
    assert (beyond.error_code, beyond.records) == (0, b"")
    assert (beyond.diverging_epoch.epoch, beyond.diverging_epoch.end_offset) == (epoch, 1)
    (fine,) = await fetch(rig, 12, [("t", 0, 0)], last_fetched_epoch=epoch)
    assert values(fine) == [b"a"]


async def test_replicas_are_not_served(rig: Rig) -> None:
    await rig.topic("t")
    (partition,) = await fetch(rig, 12, [("t", 0, 0)], replica_id=2)
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    (partition,) = await fetch(rig, 16, [("t", 0, 0)], replica_state=ReplicaState(replica_id=2))
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    (partition,) = await fetch(rig, 12, [("t", 0, 0)], replica_id=-2)
    assert partition.error_code == 0


# -- limits ----------------------------------------------------------------------------------------------


async def test_the_first_batch_is_given_even_if_it_is_larger(rig: Rig) -> None:
    await rig.topic("t", 2)
    for index in range(2):
        await fill(rig, "t", batch(b"x" * 5000), batch(b"y" * 5000), index=index)
    for version in (2, 4, 11, 12):
        fields = {"max_bytes": 1} if version >= 3 else {}
        partitions = await fetch(rig, version, [("t", 0, 0), ("t", 1, 0)], partition_max_bytes=1, **fields)
        sizes = [len(one.records or b"") for one in partitions]
        assert 5000 < sizes[0] < 5200
        assert sizes[1] == 0
        assert [one.high_watermark for one in partitions] == [2, 2]


async def test_partition_and_answer_limits(rig: Rig) -> None:
    await rig.topic("t", 3)
    one = len(batch(b"x" * 1000))
    for index in range(3):
        await fill(rig, "t", *(batch(b"x" * 1000) for _ in range(10)), index=index)
    asked = [("t", index, 0) for index in range(3)]
    partitions = await fetch(rig, 12, asked, partition_max_bytes=3 * one + 10, max_bytes=5 * one + 10)
    assert [len(found.records or b"") // one for found in partitions] == [3, 2, 0]


async def test_the_brokers_own_limit(tmp_path: Any) -> None:
    rig = await Rig.start(tmp_path / "store", fetch_max_bytes=3000)
    try:
        await rig.topic("t")
        await fill(rig, "t", *(batch(b"x" * 1000) for _ in range(10)))
        (partition,) = await fetch(rig, 12, [("t", 0, 0)])
        assert len(partition.records or b"") < 3000
    finally:
        await rig.close()


# -- long polls ------------------------------------------------------------------------------------------


async def test_a_long_poll_is_woken_by_an_append_to_any_partition(rig: Rig) -> None:
    await rig.topic("t", 3)
    asked = [("t", index, 0) for index in range(3)]
    answer = rig.send(request(rig, 12, asked, max_wait_ms=60_000, min_bytes=1), 12)
    assert isinstance(answer, Reply)
    assert not answer.done
    await fill(rig, "t", batch(b"news"), index=2)
    buffers = await rig.finished(answer)
    assert buffers is not None
    assert b"news" in b"".join(buffers)


async def test_a_long_poll_ends_when_its_time_is_over(rig: Rig) -> None:
    await rig.topic("t")
    loop = asyncio.get_running_loop()
    began = loop.time()
    (partition,) = await fetch(rig, 12, [("t", 0, 0)], max_wait_ms=150)
    assert (partition.error_code, partition.records) == (0, b"")
    assert 0.14 <= loop.time() - began < 5


async def test_a_long_poll_waits_for_enough_bytes(rig: Rig) -> None:
    await rig.topic("t", 2)
    message = request(rig, 12, [("t", 0, 0), ("t", 1, 0)], max_wait_ms=60_000, min_bytes=2500)
    answer = rig.send(message, 12)
    assert isinstance(answer, Reply)
    for index in (0, 1, 0):
        for _ in range(5):
            await asyncio.sleep(0)
        assert not answer.done
        await fill(rig, "t", batch(b"x" * 1000), index=index)
    assert await rig.finished(answer) is not None


async def test_an_error_ends_a_long_poll_at_once(rig: Rig) -> None:
    topic = await rig.topic("t")
    await rig.topic("other")
    message = request(rig, 12, [("t", 0, 0), ("other", 0, 0)], max_wait_ms=60_000, min_bytes=1)
    answer = rig.send(message, 12)
    assert isinstance(answer, Reply)
    assert not answer.done
    await rig.propose(DeleteTopic(topic.id))
    buffers = await rig.finished(answer)
    assert buffers is not None
    data = memoryview(b"".join(buffers))
    decoded, _end = decode(FetchResponse, 12, data, 5)
    codes = [one.error_code for found in decoded.responses for one in found.partitions]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]


async def test_a_hurried_long_poll_answers_with_what_there_is(rig: Rig) -> None:
    await rig.topic("t")
    await fill(rig, "t", batch(b"a"))
    answer = rig.send(request(rig, 12, [("t", 0, 0)], max_wait_ms=60_000, min_bytes=10_000), 12)
    assert isinstance(answer, Reply)
    assert not answer.done
    assert answer.on_hurry is not None
    answer.on_hurry()
    assert answer.done
    assert answer.buffers is not None
    assert len(b"".join(answer.buffers)) > 60


async def test_an_abandoned_long_poll_leaves_nothing_behind(rig: Rig) -> None:
    await rig.topic("t")
    answer = rig.send(request(rig, 12, [("t", 0, 0)], max_wait_ms=60_000, min_bytes=1), 12)
    assert isinstance(answer, Reply)
    assert answer.on_abandon is not None
    answer.on_abandon()
    partition = rig.broker.ledger.partition(rig.broker.image.topics["t"].id, 0)
    assert partition is not None
    assert not partition._watchers
    await fill(rig, "t", batch(b"a"))
    assert not answer.done


# -- sessions --------------------------------------------------------------------------------------------


async def test_a_session_sends_only_news(rig: Rig) -> None:
    await rig.topic("t", 3)
    asked = [("t", index, 0) for index in range(3)]
    for version in (7, 11, 12, 13, 18):
        full = await rig.ask(request(rig, version, asked, session_epoch=0), FetchResponse, version)
        assert full.session_id > 0
        assert sum(len(topic.partitions) for topic in full.responses) == 3
        ids = {"session_id": full.session_id}
        same = await rig.ask(request(rig, version, [], session_epoch=1, **ids), FetchResponse, version)
        assert (same.error_code, same.session_id, same.responses) == (0, full.session_id, [])
        end = rig.broker.ledger.partition(rig.broker.image.topics["t"].id, 1).high_watermark  # type: ignore[union-attr]
        moved = await rig.ask(
            request(rig, version, [("t", 1, end)], session_epoch=2, **ids), FetchResponse, version
        )
        assert moved.responses == []
        await fill(rig, "t", batch(b"n"), index=1)
        news = await rig.ask(request(rig, version, [], session_epoch=3, **ids), FetchResponse, version)
        (topic,) = news.responses
        assert [one.partition_index for one in topic.partitions] == [1]
        assert values(topic.partitions[0]) == [b"n"]
        asked[1] = ("t", 1, end + 1)


@pytest.mark.parametrize("version", [12, 13, 18])
async def test_a_session_outlives_its_topics(rig: Rig, version: int) -> None:
    """By id a partition stays the one that it was. In another session nobody knows it."""
    topic = await rig.topic("t")
    asked = request(rig, version, [("t", 0, 0)], session_epoch=0)
    session_id = (await rig.ask(asked, FetchResponse, version)).session_id

    async def told(epoch: int) -> list[int]:
        message = request(rig, version, [], session_id=session_id, session_epoch=epoch)
        answer = await rig.ask(message, FetchResponse, version)
        assert (answer.error_code, answer.session_id) == (0, session_id)
        return [one.error_code for found in answer.responses for one in found.partitions]

    by_id = version >= 13
    assert await told(1) == []
    await rig.propose(DeleteTopic(topic.id))
    assert [await told(2), await told(3)] == [[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]] * 2
    await rig.propose(CreateTopic(b"again".ljust(16), "t", ((1,),)))
    recreated = ErrorCode.INCONSISTENT_TOPIC_ID if by_id else ErrorCode.NONE
    assert await told(4) == [recreated]
    assert await told(5) == ([recreated] if by_id else [])
    session_id = (await rig.ask(asked, FetchResponse, version)).session_id
    assert await told(1) == ([ErrorCode.UNKNOWN_TOPIC_ID] if by_id else [])


async def test_session_errors(rig: Rig) -> None:
    await rig.topic("t")
    asked = [("t", 0, 0)]
    full = await rig.ask(request(rig, 12, asked, session_epoch=0), FetchResponse, 12)
    for version, session_id, epoch, code in (
        (12, full.session_id + 1, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (12, full.session_id, 2, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (13, full.session_id, 1, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ):
        message = request(rig, version, [], session_id=session_id, session_epoch=epoch)
        answer = await rig.ask(message, FetchResponse, version)
        assert (answer.error_code, answer.session_id, answer.responses) == (code, 0, [])
    # A full fetch that names a session closes it.
    await rig.ask(request(rig, 12, asked, session_id=full.session_id, session_epoch=-1), FetchResponse, 12)
    gone = await rig.ask(request(rig, 12, [], session_id=full.session_id, session_epoch=1), FetchResponse, 12)
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_partitions_can_be_forgotten(rig: Rig) -> None:
    await rig.topic("t", 2)
    full = await rig.ask(request(rig, 12, [("t", 0, 0), ("t", 1, 0)], session_epoch=0), FetchResponse, 12)
    ids = {"session_id": full.session_id}
    forget = [ForgottenTopic(topic="t", partitions=[0])]
    message = request(rig, 12, [], session_epoch=1, forgotten_topics_data=forget, **ids)
    await rig.ask(message, FetchResponse, 12)
    for index in range(2):
        await fill(rig, "t", batch(b"n"), index=index)
    news = await rig.ask(request(rig, 12, [], session_epoch=2, **ids), FetchResponse, 12)
    assert [one.partition_index for topic in news.responses for one in topic.partitions] == [1]
    forget = [ForgottenTopic(topic="t", partitions=[1])]
    message = request(rig, 12, [], session_epoch=3, forgotten_topics_data=forget, **ids)
    empty = await rig.ask(message, FetchResponse, 12)
    assert (empty.session_id, empty.responses) == (0, [])


async def test_partitions_with_data_go_to_the_end(rig: Rig) -> None:
    await rig.topic("t", 3)
    one = len(batch(b"x" * 1000))
    for index in range(3):
        await fill(rig, "t", *(batch(b"x" * 1000) for _ in range(3)), index=index)
    asked = [("t", index, 0) for index in range(3)]
    full = await rig.ask(request(rig, 12, asked, session_epoch=0, max_bytes=one), FetchResponse, 12)
    positions = [1, 0, 0]
    served = []
    update = [("t", 0, 1)]
    for epoch in range(1, 7):
        message = request(
            rig, 12, update, session_id=full.session_id, session_epoch=epoch, max_bytes=one, min_bytes=1
        )
        answer = await rig.ask(message, FetchResponse, 12)
        (found,) = [one for topic in answer.responses for one in topic.partitions if one.records]
        served.append(found.partition_index)
        positions[found.partition_index] += 1
        update = [("t", found.partition_index, positions[found.partition_index])]
    assert served == [0, 1, 2, 0, 1, 2]


async def test_the_cache_of_sessions_is_bounded(tmp_path: Any) -> None:
    rig = await Rig.start(tmp_path / "store", max_incremental_fetch_session_cache_slots=2)
    try:
        await rig.topic("t", 3)

        async def open_session(count: int) -> int:
            asked = [("t", index, 0) for index in range(count)]
            return (await rig.ask(request(rig, 12, asked, session_epoch=0), FetchResponse, 12)).session_id

        first, second = await open_session(1), await open_session(2)
        assert first > 0
        assert second > 0
        assert await open_session(3) == 0
        rig.clock.ahead_ms += 130_000
        touch = request(rig, 12, [], session_id=first, session_epoch=1)
        assert (await rig.ask(touch, FetchResponse, 12)).error_code == 0
        assert await open_session(1) > 0
        gone = await rig.ask(request(rig, 12, [], session_id=second, session_epoch=1), FetchResponse, 12)
        assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert len(rig.broker.services.fetch_sessions) == 2
    finally:
        await rig.close()


# -- older readers ---------------------------------------------------------------------------------------


async def test_zstd_for_readers_that_may_not_know_it(rig: Rig) -> None:
    await rig.topic("t")
    await fill(rig, "t", batch(b"plain"), batch(b"z" * 100, codec=compression.ZSTD), batch(b"after"))
    for version in (0, 1, 2, 3):
        (partition,) = await fetch(rig, version, [("t", 0, 0)])
        assert partition.error_code == 0
        assert [value for _offset, value in old_values(partition.records)] == [b"plain"]
        (partition,) = await fetch(rig, version, [("t", 0, 1)], max_wait_ms=60_000)
        assert (partition.error_code, partition.records) == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, None)
    for version in (4, 9, 10):
        (partition,) = await fetch(rig, version, [("t", 0, 0)])
        assert values(partition) == [b"plain", b"z" * 100, b"after"]


async def test_a_zstd_topic_is_for_readers_that_know_it(rig: Rig) -> None:
    await rig.topic("t", compression_type="zstd")
    await fill(rig, "t", batch(b"plain"))
    for version in (1, 3, 4, 9):
        (partition,) = await fetch(rig, version, [("t", 0, 0)])
        assert partition.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    (partition,) = await fetch(rig, 10, [("t", 0, 0)])
    assert values(partition) == [b"plain"]


async def test_odd_requests_are_refused_as_kafka_refuses_them(rig: Rig) -> None:
    await rig.topic("t")
    await fill(rig, "t", batch(b"a"))
    for version in (4, 7, 12, 18):
        answer = await rig.ask(
            request(rig, version, [("t", 0, 0)], isolation_level=7), FetchResponse, version
        )
        codes = [one.error_code for topic in answer.responses for one in topic.partitions]
        assert answer.error_code == (ErrorCode.UNKNOWN_SERVER_ERROR if version >= 7 else 0)
        assert codes == ([ErrorCode.UNKNOWN_SERVER_ERROR] if version < 13 else [])
        (partition,) = await fetch(rig, version, [("t", 0, 0)], partition_max_bytes=-1)
        assert partition.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        (partition,) = await fetch(rig, version, [("t", 0, 1)], partition_max_bytes=-1)
        assert partition.error_code == 0


async def test_read_committed_lists_no_transaction_where_there_is_none(rig: Rig) -> None:
    await rig.topic("t")
    await fill(rig, "t", batch(b"a"))
    for version in (4, 11, 12):
        (committed,) = await fetch(rig, version, [("t", 0, 0)], isolation_level=1)
        assert committed.aborted_transactions == []
        assert values(committed) == [b"a"]
        (uncommitted,) = await fetch(rig, version, [("t", 0, 0)])
        assert uncommitted.aborted_transactions is None


async def test_a_bounded_memory_of_partitions(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.fetch.sessions.PARTITIONS_MAX", 4)
    await rig.topic("t", 6)
    many = await rig.ask(
        request(rig, 12, [("t", index, 0) for index in range(6)], session_epoch=0), FetchResponse, 12
    )
    assert many.session_id == 0
    few = await rig.ask(
        request(rig, 12, [("t", index, 0) for index in range(3)], session_epoch=0), FetchResponse, 12
    )
    assert few.session_id > 0
    message = request(
        rig, 12, [("t", index, 0) for index in range(6)], session_id=few.session_id, session_epoch=1
    )
    assert (await rig.ask(message, FetchResponse, 12)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("version", [0, 4, 7, 12, 13, 18])
async def test_a_bug_is_an_error_for_all_that_was_asked(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    await rig.topic("t", 2)

    def broken(*_: object, **__: object) -> None:
        raise ValueError("a bug")

    async def check(answer: Any) -> None:
        buffers = await rig.finished(answer)
        assert buffers is not None
        data = memoryview(b"".join(buffers))
        _correlation_id, at = parse_response_header(1, version, data)
        decoded, _end = decode(FetchResponse, version, data, at)
        if version >= 7:
            assert decoded.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        codes = [one.error_code for topic in decoded.responses for one in topic.partitions]
        assert codes == ([ErrorCode.UNKNOWN_SERVER_ERROR] * 2 if version < 13 else [])

    asked = [("t", 0, 0), ("t", 1, 0)]
    waiting = rig.send(request(rig, version, asked, max_wait_ms=60_000), version)
    assert isinstance(waiting, Reply)
    monkeypatch.setattr("penstock.broker.handlers.fetch.read_all", broken)
    await check(rig.send(request(rig, version, asked), version))
    rig._correlation_id -= 1
    assert waiting.on_hurry is not None
    waiting.on_hurry()
    await check(waiting)
