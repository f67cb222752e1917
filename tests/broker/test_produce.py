"""Produce, in every version: what is accepted, where it goes, and how refusals are worded."""

from __future__ import annotations

import asyncio
import struct
import zlib
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.metadata.commands import DeleteTopic
from penstock.wire import compression
from penstock.wire.api.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.batch import CRC_FROM, HEADER_SIZE, Record, build_batch, iter_records, refresh_crc
from penstock.wire.codec import decode, encode
from penstock.wire.errors import ErrorCode
from penstock.wire.exchange import Reply, Session
from penstock.wire.headers import parse_response_header, request_header
from penstock.wire.schema import ZERO_UUID
from tests.broker.rig import Rig, batch

VERSIONS = range(3, 14)


def request(
    rig: Rig, name: str, records: Any, *, index: int = 0, acks: int = -1, **fields: Any
) -> ProduceRequest:
    topic = rig.broker.image.topics.get(name)
    return ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name=name,
                topic_id=topic.id if topic else b"?" * 16,
                partition_data=[PartitionProduceData(index=index, records=records)],
            )
        ],
        **fields,
    )


async def produce(
    rig: Rig, name: str, records: Any, version: int = 9, *, owned: bool = False, **fields: Any
) -> PartitionProduceResponse:
    message = request(rig, name, records, **fields)
    if version < 13:
        message.topic_data[0].topic_id = ZERO_UUID
    answer = await rig.ask(message, ProduceResponse, version, owned=owned)
    (topic,) = answer.responses
    (partition,) = topic.partition_responses
    return partition


def stored(rig: Rig, name: str, index: int = 0) -> list[Record]:
    """What a reader of the partition would see."""
    topic = rig.broker.image.topics[name]
    partition = rig.broker.ledger.partition(topic.id, index)
    assert partition is not None
    found = rig.broker.ledger.read(
        partition, partition.log_start_offset, 10_000_000, limit_offset=partition.high_watermark
    )
    assert isinstance(found, tuple)
    records: list[Record] = []
    for buffer in found.buffers:
        at = 0
        while at < len(buffer):
            records += iter_records(buffer, at)
            at += struct.unpack_from(">i", buffer, at + 8)[0] + 12
    return records


@pytest.mark.parametrize("version", VERSIONS)
async def test_batches_get_consecutive_offsets(rig: Rig, version: int) -> None:
    await rig.topic("t")
    offsets = []
    for number in range(4):  # the first goes the general way, the others may take the route
        answer = await produce(rig, "t", batch(b"a%d" % number, b"b%d" % number), version)
        assert answer.error_code == ErrorCode.NONE
        offsets.append(answer.base_offset)
        assert answer.log_append_time_ms == -1
        assert answer.log_start_offset == (0 if version >= 5 else -1)
    assert offsets == [0, 2, 4, 6]
    assert rig.session.fast is not None
    assert [(r.offset, r.value) for r in stored(rig, "t")][-2:] == [(6, b"a3"), (7, b"b3")]


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_fast_way_answers_as_the_general_way_does(rig: Rig, version: int) -> None:
    await rig.topic("t")
    message = request(rig, "t", batch(b"x" * 300))
    if version < 13:
        message.topic_data[0].topic_id = ZERO_UUID
    for expected in range(3):
        buffers = await rig.finished(rig.send(message, version))
        assert buffers is not None
        data = memoryview(b"".join(buffers))
        _correlation_id, at = parse_response_header(0, version, data)
        answer, end = decode(ProduceResponse, version, data, at)
        assert end == len(data)
        assert answer.responses[0].partition_responses[0].base_offset == expected
        assert encode(answer, version) == data[at:]


async def test_a_batch_is_stored_as_it_was_sent(rig: Rig) -> None:
    await rig.topic("t")
    sent = batch(b"one", b"two", b"three")
    for owned in (False, True, False, True):
        await produce(rig, "t", sent, owned=owned)
    topic = rig.broker.image.topics["t"]
    partition = rig.broker.ledger.partition(topic.id, 0)
    assert partition is not None
    found = rig.broker.ledger.read(partition, 0, 10_000, limit_offset=12)
    assert isinstance(found, tuple)
    data = b"".join(found.buffers)
    size = len(sent)
    for number in range(4):
        one = data[number * size : (number + 1) * size]
        assert one[:8] == struct.pack(">q", number * 3)
        assert one[16:] == sent[16:]


async def test_many_partitions_in_one_request(rig: Rig) -> None:
    await rig.topic("a", 3)
    await rig.topic("b")
    message = ProduceRequest(
        acks=1,
        topic_data=[
            TopicProduceData(
                name="a",
                partition_data=[
                    PartitionProduceData(index=at, records=batch(b"v%d" % at)) for at in (2, 0, 7)
                ],
            ),
            TopicProduceData(name="nobody", partition_data=[PartitionProduceData(records=batch(b"x"))]),
            TopicProduceData(name="b", partition_data=[PartitionProduceData(records=batch(b"y", b"z"))]),
        ],
    )
    answer = await rig.ask(message, ProduceResponse, 8)
    assert [
        (topic.name, one.index, one.error_code, one.base_offset)
        for topic in answer.responses
        for one in topic.partition_responses
    ] == [
        ("a", 2, 0, 0),
        ("a", 0, 0, 0),
        ("a", 7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        ("nobody", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        ("b", 0, 0, 0),
    ]
    assert [record.value for record in stored(rig, "b")] == [b"y", b"z"]


async def test_a_partition_named_twice_is_answered_once_and_the_last_counts(rig: Rig) -> None:
    await rig.topic("t")
    data = [PartitionProduceData(records=batch(b"first")), PartitionProduceData(records=batch(b"last"))]
    message = ProduceRequest(acks=1, topic_data=[TopicProduceData(name="t", partition_data=data)])
    answer = await rig.ask(message, ProduceResponse, 8)
    assert len(answer.responses[0].partition_responses) == 1
    assert [record.value for record in stored(rig, "t")] == [b"last"]


async def test_topic_ids(rig: Rig) -> None:
    await rig.topic("t")
    message = request(rig, "t", batch(b"x"))
    message.topic_data[0].topic_id = b"no such topic id"
    answer = await rig.ask(message, ProduceResponse, 13)
    assert answer.responses[0].topic_id == b"no such topic id"
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("acks", [-2, 2, 5])
async def test_other_acks_are_refused(rig: Rig, acks: int) -> None:
    await rig.topic("t")
    answer = await produce(rig, "t", batch(b"x"), acks=acks)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_REQUIRED_ACKS, -1)


async def test_acks_0_is_not_answered_and_is_stored(rig: Rig) -> None:
    await rig.topic("t")
    for number in range(3):
        answer = rig.send(request(rig, "t", batch(b"%d" % number), acks=0), 7)
        assert isinstance(answer, Reply)
        assert await rig.finished(answer) is None
        assert not answer.closed
    assert [record.value for record in stored(rig, "t")] == [b"0", b"1", b"2"]


async def test_acks_0_closes_the_connection_when_it_fails(rig: Rig) -> None:
    await rig.topic("t")
    await produce(rig, "t", batch(b"x"))
    for message in (
        request(rig, "nobody", batch(b"x"), acks=0),
        request(rig, "t", batch(b"x"), index=4, acks=0),
        request(rig, "t", batch(b"x", producer_id=9, producer_epoch=0, base_sequence=-1), acks=0),
    ):
        answer = rig.send(message, 7)
        assert isinstance(answer, Reply)
        await rig.finished(answer)
        assert answer.closed


async def test_an_internal_topic_is_protected(rig: Rig) -> None:
    await rig.topic("__consumer_offsets")
    answer = await produce(rig, "__consumer_offsets", batch(b"x"))
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_a_deleted_topic_is_unknown_at_once_also_to_a_route(rig: Rig) -> None:
    topic = await rig.topic("t")
    assert (await produce(rig, "t", batch(b"x"))).error_code == 0
    assert (await produce(rig, "t", batch(b"x"))).error_code == 0
    await rig.propose(DeleteTopic(topic.id))
    assert (await produce(rig, "t", batch(b"x"))).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -- what a batch must be like ---------------------------------------------------------------------------


def changed(data: bytearray, at: int, layout: str, value: int, *, crc: bool = True) -> bytearray:
    made = bytearray(data)
    struct.pack_into(layout, made, at, value)
    if crc:
        refresh_crc(made)
    return made


GOOD = batch(b"one", b"two")
CASES = {
    "crc": (changed(GOOD, 70, ">B", 1, crc=False), ErrorCode.CORRUPT_MESSAGE, -1),
    "magic 3": (changed(GOOD, 16, ">b", 3), ErrorCode.CORRUPT_MESSAGE, -1),
    "magic 1": (changed(GOOD, 16, ">b", 1), ErrorCode.INVALID_RECORD, -1),
    "tiny length": (changed(GOOD, 8, ">i", 13, crc=False), ErrorCode.CORRUPT_MESSAGE, -1),
    "negative length": (changed(GOOD, 8, ">i", -5, crc=False), ErrorCode.CORRUPT_MESSAGE, -1),
    "shorter than a header": (changed(GOOD, 8, ">i", 20, crc=False)[:32], ErrorCode.CORRUPT_MESSAGE, -1),
    "cut short": (GOOD[:-1], ErrorCode.INVALID_RECORD, -1),
    "empty": (b"", ErrorCode.INVALID_RECORD, -1),
    "null": (None, ErrorCode.INVALID_RECORD, -1),
    "two batches": (GOOD + GOOD, ErrorCode.INVALID_RECORD, -1),
    "base offset": (changed(GOOD, 0, ">q", 5), ErrorCode.INVALID_RECORD, 0),
    "count 0": (changed(GOOD, 57, ">i", 0), ErrorCode.INVALID_RECORD, 0),
    "count too large": (changed(GOOD, 57, ">i", 3), ErrorCode.INVALID_RECORD, 0),
    "count negative": (changed(GOOD, 57, ">i", -1), ErrorCode.INVALID_RECORD, 0),
    "last offset delta": (changed(GOOD, 23, ">i", -1), ErrorCode.INVALID_RECORD, 0),
    "control": (batch(b"x", control=True), ErrorCode.INVALID_RECORD, 0),
    "no sequence": (batch(b"x", producer_id=1, producer_epoch=0), ErrorCode.INVALID_RECORD, 0),
    "codec 5": (changed(GOOD, 21, ">h", 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, -1),
}


@pytest.mark.parametrize("remembered", [False, True], ids=["general", "route"])
@pytest.mark.parametrize("case", CASES)
async def test_bad_batches_are_refused(rig: Rig, case: str, remembered: bool) -> None:
    await rig.topic("t")
    if remembered:
        await produce(rig, "t", GOOD)
    records, code, log_start = CASES[case]
    answer = await produce(rig, "t", records)
    assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (code, -1, log_start)
    assert (await produce(rig, "t", GOOD)).base_offset == (2 if remembered else 0)


async def test_the_beginning_of_a_second_batch_is_trimmed(rig: Rig) -> None:
    await rig.topic("t")
    assert (await produce(rig, "t", GOOD + GOOD[:30])).error_code == 0
    assert [record.value for record in stored(rig, "t")] == [b"one", b"two"]


@pytest.mark.parametrize("remembered", [False, True], ids=["general", "route"])
async def test_too_large_a_batch(rig: Rig, remembered: bool) -> None:
    await rig.topic("t", max_message_bytes="1000")
    if remembered:
        await produce(rig, "t", GOOD)
    answer = await produce(rig, "t", batch(b"x" * 1000))
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_a_changed_setting_holds_for_the_next_request(rig: Rig) -> None:
    await rig.topic("t")
    large = batch(b"x" * 1000)
    assert (await produce(rig, "t", large)).error_code == 0
    assert (await produce(rig, "t", large)).error_code == 0
    await rig.configure("t", max_message_bytes="500")
    assert (await produce(rig, "t", large)).error_code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("version", [3, 6, 7])
async def test_zstd_needs_version_7(rig: Rig, version: int) -> None:
    await rig.topic("t")
    await produce(rig, "t", GOOD, version)
    answer = await produce(rig, "t", batch(b"x" * 100, codec=compression.ZSTD), version)
    assert answer.error_code == (0 if version >= 7 else ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


async def test_transactional_batches_need_a_transactional_id(rig: Rig) -> None:
    await rig.topic("t")
    records = batch(b"x", transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
    answer = await produce(rig, "t", records)
    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def test_a_timestamp_too_far_ahead(rig: Rig) -> None:
    await rig.topic("t")
    now = rig.clock.time_ms()
    records = build_batch(
        [Record(offset=at, timestamp=now + ahead, value=b"v") for at, ahead in enumerate((0, 3_700_000, 5))]
    )
    await produce(rig, "t", GOOD)
    for version in (8, 9):
        answer = await produce(rig, "t", records, version)
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
        assert answer.error_message == "One or more records have been rejected due to invalid timestamp"
        assert [one.batch_index for one in answer.record_errors] == [1]
        assert "is out of range" in str(answer.record_errors[0].batch_index_error_message)
    answer = await produce(rig, "t", records, 7)
    assert (answer.error_code, answer.error_message) == (ErrorCode.INVALID_TIMESTAMP, None)


async def test_a_timestamp_too_far_back(rig: Rig) -> None:
    await rig.topic("t", message_timestamp_before_max_ms="1000")
    now = rig.clock.time_ms()
    assert (await produce(rig, "t", batch(b"x", timestamp=now))).error_code == 0
    assert (await produce(rig, "t", batch(b"x", timestamp=now))).error_code == 0
    answer = await produce(rig, "t", batch(b"x", timestamp=now - 60_000))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert (await produce(rig, "t", batch(b"x", timestamp=-1))).error_code == 0


async def test_a_compacted_topic_wants_keys(rig: Rig) -> None:
    await rig.topic("t", cleanup_policy="compact")
    assert (await produce(rig, "t", GOOD)).error_code == 0
    keyless = build_batch([Record(offset=0, key=b"k", value=b"v"), Record(offset=1, value=b"v")])
    answer = await produce(rig, "t", keyless)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [one.batch_index for one in answer.record_errors] == [1]
    assert "Compacted topic cannot accept message without key" in str(answer.error_message)


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
async def test_compression_type_recompresses_whole_batches(rig: Rig, codec: str) -> None:
    await rig.topic("t", compression_type=codec)
    values = [b"value %d" % number * 20 for number in range(50)]
    for source in range(5):
        answer = await produce(rig, "t", batch(*values, codec=source))
        assert (answer.error_code, answer.base_offset) == (0, source * 50)
    assert [record.value for record in stored(rig, "t")] == values * 5
    number = 0 if codec == "uncompressed" else compression.CODEC_NAMES.index(codec)
    topic = rig.broker.image.topics["t"]
    partition = rig.broker.ledger.partition(topic.id, 0)
    assert partition is not None
    found = rig.broker.ledger.read(partition, 100, 1, limit_offset=250)
    assert isinstance(found, tuple)
    assert found.buffers[0][22] & 7 == number


async def test_a_batch_that_expands_without_end_is_refused(rig: Rig) -> None:
    await rig.topic("t", compression_type="gzip")
    bomb = bytearray(batch(b"x", codec=compression.LZ4))
    block = compression.compress(compression.ZSTD, bytes(300 * 1024 * 1024))
    bomb = bomb[:HEADER_SIZE] + block
    struct.pack_into(">i", bomb, 8, len(bomb) - 12)
    struct.pack_into(">h", bomb, 21, compression.ZSTD)
    refresh_crc(bomb)
    answer = await produce(rig, "t", bomb)
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_log_append_time(rig: Rig) -> None:
    await rig.topic("t", message_timestamp_type="LogAppendTime")
    rig.broker.ledger.partition(rig.broker.image.topics["t"].id, 0).log_append_time = True  # type: ignore[union-attr]
    before = rig.clock.time_ms()
    for _ in range(2):
        answer = await produce(rig, "t", batch(b"x", timestamp=before + 90_000_000))
        assert answer.error_code == 0
        assert before <= answer.log_append_time_ms <= rig.clock.time_ms()
    claimed = changed(GOOD, 21, ">h", 8)
    answer = await produce(rig, "t", claimed)
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP


async def test_a_producer_cannot_claim_the_brokers_time(rig: Rig) -> None:
    await rig.topic("t")
    answer = await produce(rig, "t", changed(GOOD, 21, ">h", 8))
    assert answer.error_code == 0
    topic = rig.broker.image.topics["t"]
    partition = rig.broker.ledger.partition(topic.id, 0)
    assert partition is not None
    found = rig.broker.ledger.read(partition, 0, 1, limit_offset=2)
    assert isinstance(found, tuple)
    assert found.buffers[0][CRC_FROM + 1] & 8 == 0


# -- idempotent producers --------------------------------------------------------------------------------


async def test_duplicates_are_answered_with_their_first_offset(rig: Rig) -> None:
    await rig.topic("t")
    first = batch(b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=0)
    second = batch(b"c", producer_id=7, producer_epoch=0, base_sequence=2)
    assert (await produce(rig, "t", first)).base_offset == 0
    assert (await produce(rig, "t", second)).base_offset == 2
    again = await produce(rig, "t", first)
    assert (again.error_code, again.base_offset) == (0, 0)
    gap = batch(b"d", producer_id=7, producer_epoch=0, base_sequence=9)
    answer = await produce(rig, "t", gap)
    assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        -1,
        0,
    )
    assert len(stored(rig, "t")) == 3


async def test_who_may_have_been_replaced_does_not_tell_of_gaps(rig: Rig) -> None:
    """Another broker may have taken the records between, and a producer gives up when it hears of a gap."""
    await rig.topic("t")
    for sequence in (0, 1):
        await produce(rig, "t", batch(b"a", producer_id=7, producer_epoch=0, base_sequence=sequence))
    gap = batch(b"d", producer_id=7, producer_epoch=0, base_sequence=9)
    rig.broker.membership = SimpleNamespace(heartbeats=SimpleNamespace(lease_until=rig.clock.monotonic()))  # type: ignore[assignment]
    assert (await produce(rig, "t", gap)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    rig.broker.membership = SimpleNamespace(
        heartbeats=SimpleNamespace(lease_until=rig.clock.monotonic() + 60)
    )  # type: ignore[assignment]
    assert (await produce(rig, "t", gap)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_who_is_refused_for_a_moment_stays_the_first(rig: Rig) -> None:
    """A partition is about to be given away, and is not after all: what comes then is not the first batch."""
    topic = await rig.topic("t")
    key = topic.id, 0
    await rig.broker.ledger.surrender([key])
    first = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    assert (await produce(rig, "t", first)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await produce(rig, "t", first[:20])).error_code != 0
    rig.broker.ledger.resume([key])
    second = batch(b"b", producer_id=7, producer_epoch=0, base_sequence=1)
    assert (await produce(rig, "t", second)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert (await produce(rig, "t", first)).base_offset == 0
    assert (await produce(rig, "t", second)).base_offset == 1


async def test_five_in_flight_keep_their_order(rig: Rig) -> None:
    await rig.topic("t")
    replies = [
        rig.send(
            request(rig, "t", batch(b"%d" % number, producer_id=7, producer_epoch=0, base_sequence=number)), 7
        )
        for number in range(20)
    ]
    await asyncio.gather(*(rig.finished(reply) for reply in replies))
    assert [record.value for record in stored(rig, "t")] == [b"%d" % number for number in range(20)]


# -- versions 0 to 2 -------------------------------------------------------------------------------------


def message_set(*values: bytes, magic: int = 1, codec: int = 0) -> bytes:
    out = b""
    for at, value in enumerate(values):
        body = struct.pack(">bb", magic, codec) + (struct.pack(">q", 1000 + at) if magic else b"")
        body += struct.pack(">i", 1) + b"k" + struct.pack(">i", len(value)) + value
        out += struct.pack(">qiI", at, len(body) + 4, zlib.crc32(body)) + body
    return out


@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1), (2, 0)])
async def test_message_sets_are_converted(rig: Rig, version: int, magic: int) -> None:
    await rig.topic("t")
    await produce(rig, "t", GOOD)
    for _ in range(2):
        answer = await produce(rig, "t", message_set(b"one", b"two", b"three", magic=magic), version)
        assert answer.error_code == 0
    assert answer.base_offset == 5
    records = stored(rig, "t")[-3:]
    assert [record.value for record in records] == [b"one", b"two", b"three"]
    assert [record.timestamp for record in records] == ([1000, 1001, 1002] if magic else [-1, -1, -1])


async def test_a_compressed_message_set(rig: Rig) -> None:
    await rig.topic("t")
    inner = message_set(b"one", b"two")
    wrapper = compression.compress(compression.GZIP, inner)
    answer = await produce(rig, "t", message_set(wrapper, codec=compression.GZIP), 2)
    assert answer.error_code == 0
    assert [record.value for record in stored(rig, "t")] == [b"one", b"two"]


async def test_bad_message_sets(rig: Rig) -> None:
    await rig.topic("t", max_message_bytes="200")
    good = message_set(b"one")
    broken = bytearray(good)
    broken[-1] ^= 1
    assert (await produce(rig, "t", broken, 2)).error_code == ErrorCode.CORRUPT_MESSAGE
    assert (await produce(rig, "t", message_set(b"x" * 300), 2)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert (await produce(rig, "t", good + good[:20], 2)).error_code == 0
    empty = await produce(rig, "t", b"", 2)
    assert (empty.error_code, empty.base_offset) == (0, -1)
    assert [record.value for record in stored(rig, "t")] == [b"one"]


# -- frames ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 8, 9, 13])
async def test_truncated_requests_close_the_connection(rig: Rig, version: int) -> None:
    await rig.topic("t")
    message = request(rig, "t", batch(b"hello"))
    if version < 13:
        message.topic_data[0].topic_id = ZERO_UUID
    assert isinstance(await rig.finished(rig.send(message, version)), list)
    whole = request_header(0, version, 5, "rig") + encode(message, version)
    for end in range(8, len(whole) - 1):
        answer = rig.handle(memoryview(bytearray(whole[:end])))
        assert isinstance(answer, Reply)
        await rig.finished(answer)
        if end < len(whole) - 3 or version < 9:
            assert answer.closed, end


@pytest.mark.parametrize("version", [8, 9])
async def test_batches_of_every_size_find_the_fast_way(rig: Rig, version: int) -> None:
    """Sizes at which the length of the records takes one byte more; each is taken by the same route."""
    await rig.topic("t", max_message_bytes="3000000")
    await produce(rig, "t", batch(b""), version)
    route = rig.session.fast
    assert route is not None
    empty = len(batch(b""))
    expected = 1
    for size in (100, 125, 126, 127, 128, 129, 16_380, 16_381, 16_382, 16_383, 16_384, 2_097_149, 2_097_152):
        value_size = size - empty
        for value in (b"v" * (value_size - 4), b"v" * value_size):
            answer = await produce(rig, "t", batch(value), version)
            assert (answer.error_code, answer.base_offset) == (0, expected)
            expected += 1
            assert rig.session.fast is route
    values = [len(record.value or b"") for record in stored(rig, "t")]
    assert len(values) == expected


async def in_turn(rig: Rig, version: int, partitions: int = 5) -> list[tuple[int, int]]:
    """One batch to each partition: codes and offsets."""
    answers = [await produce(rig, "t", batch(b"x"), version, index=index) for index in range(partitions)]
    return [(answer.error_code, answer.base_offset) for answer in answers]


@pytest.mark.parametrize("version", [3, 9, 13])
async def test_partitions_in_turn_find_their_routes(rig: Rig, version: int) -> None:
    await rig.topic("t", 5)
    assert await in_turn(rig, version) == [(0, 0)] * 5
    general = rig.general
    assert await in_turn(rig, version) == [(0, 1)] * 5
    rig.session = Session("PLAINTEXT", "127.0.0.1")  # Another connection finds them after its first request.
    assert await in_turn(rig, version) == [(0, 2)] * 5
    assert rig.general == general + 1
    assert [len(stored(rig, "t", index)) for index in range(5)] == [3] * 5


async def test_a_route_in_turn_is_as_fresh_as_the_image(rig: Rig) -> None:
    topic = await rig.topic("t", 3)
    await in_turn(rig, 9, 3)
    await in_turn(rig, 9, 3)
    await rig.configure("t", max_message_bytes="10")
    assert await in_turn(rig, 9, 3) == [(ErrorCode.MESSAGE_TOO_LARGE, -1)] * 3
    await rig.propose(DeleteTopic(topic.id))
    assert await in_turn(rig, 9, 3) == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)] * 3


async def test_listeners_and_clients_do_not_share_routes(rig: Rig) -> None:
    await rig.topic("t", 2)
    await in_turn(rig, 9, 2)
    general = rig.general
    rig.session = Session("OTHER", "127.0.0.1")
    await in_turn(rig, 9, 2)
    assert rig.general == general + 2


async def test_a_route_takes_only_what_is_exactly_of_its_shape(rig: Rig) -> None:
    """Tagged fields, other correlation ids, other acks, another client: all are understood all the same."""
    await rig.topic("t")
    data = batch(b"hello")
    message = encode(request_of("t", data), 9)
    header = request_header(0, 9, 77, "rig")
    assert isinstance(await rig.finished(rig.handle(memoryview(bytearray(header + message)))), list)
    tagged = message[:-1] + b"\1\x05\3abc"
    for frame, offset in (
        (header + tagged, 1),
        (request_header(0, 9, 78, "another") + message, 2),
        (header + message + b"left over", 3),
        (header + encode(request_of("t", data, acks=1), 9), 4),
        (header + message, 5),
    ):
        buffers = await rig.finished(rig.handle(memoryview(bytearray(frame))))
        assert buffers is not None
        answer, _end = decode(ProduceResponse, 9, memoryview(b"".join(buffers)), 5)
        assert answer.responses[0].partition_responses[0].base_offset == offset


def request_of(name: str, records: bytearray, acks: int = -1) -> ProduceRequest:
    data = TopicProduceData(name=name, partition_data=[PartitionProduceData(records=records)])
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[data])


async def test_a_bug_is_an_error_for_all_that_was_asked(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.topic("t")

    def broken(*_: object, **__: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("penstock.broker.handlers.produce.check", broken)
    assert (await produce(rig, "t", GOOD)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    monkeypatch.setattr("penstock.broker.handlers.produce._asked_for", broken)
    assert (await produce(rig, "unknown", GOOD)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    silent = rig.send(request(rig, "t", GOOD, acks=0), 7)
    assert isinstance(silent, Reply)
    assert silent.closed
