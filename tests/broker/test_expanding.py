"""Batches that must be expanded: beside the event loop, bounded, in order, and with the right answer."""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker.dispatch import make_handle
from penstock.server.server import Server
from penstock.storage.partitions.answers import Slice
from penstock.wire import compression
from penstock.wire.api.produce import ProduceResponse
from penstock.wire.batch import (
    EXPANDED_BYTES_FLOOR,
    EXPANDED_BYTES_MAX,
    HEADER_SIZE,
    Record,
    build_batch,
    expanded_max,
    read_header,
    refresh_crc,
    stamp,
)
from penstock.wire.codec import decode, encode
from penstock.wire.errors import ErrorCode
from penstock.wire.exchange import Reply
from penstock.wire.headers import parse_response_header, request_header
from penstock.wire.markers import COMMIT, marker_batch
from tests.broker.rig import Rig, batch
from tests.broker.test_fetch import fetch, fill, old_values
from tests.broker.test_fetch import request as fetch_request
from tests.broker.test_produce import produce, request, stored
from tests.wire.test_legacy import message

ZEROS = bytes(EXPANDED_BYTES_FLOOR + 1)


def with_block(codec: int, block: bytes) -> bytearray:
    """A batch of one record, by its header, with something else in it."""
    made = bytearray(batch(b"x"))[:HEADER_SIZE] + block
    struct.pack_into(">i", made, 8, len(made) - 12)
    struct.pack_into(">h", made, 21, codec)
    refresh_crc(made)
    return made


@pytest.fixture(scope="module", params=[compression.GZIP, compression.LZ4, compression.ZSTD])
def bomb(request: pytest.FixtureRequest) -> bytearray:
    return with_block(request.param, compression.compress(request.param, ZEROS))


def test_what_a_batch_may_become() -> None:
    assert expanded_max(0) == expanded_max(1 << 20) == EXPANDED_BYTES_FLOOR
    assert expanded_max(2 << 20) == 64 << 20
    assert expanded_max(1 << 30) == EXPANDED_BYTES_MAX


async def test_a_bomb_is_too_large_wherever_it_must_be_expanded(rig: Rig, bomb: bytearray) -> None:
    await rig.topic("anew", compression_type="snappy")
    await rig.topic("keys", cleanup_policy="compact")
    await rig.topic("times", message_timestamp_before_max_ms="1000")
    for name in ("anew", "keys", "times"):
        answer = await produce(rig, name, bomb)
        assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE, name
        assert "expand to more than" in str(answer.error_message)
        assert (await produce(rig, name, batch(b"x", timestamp=rig.clock.time_ms()))).base_offset == 0


async def test_a_bomb_among_old_messages(rig: Rig) -> None:
    await rig.topic("t")
    packed = message(1, compression.GZIP, compression.compress(compression.GZIP, ZEROS))
    assert (await produce(rig, "t", packed, 2)).error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_what_comes_before_a_stored_bomb_is_given_to_old_readers(rig: Rig, bomb: bytearray) -> None:
    await rig.topic("t")
    await fill(rig, "t", batch(b"one"), bomb, batch(b"three"))
    (before,) = await fetch(rig, 2, [("t", 0, 0)])
    assert old_values(before.records) == [(0, b"one")]
    (there,) = await fetch(rig, 2, [("t", 0, 1)])
    expected = ErrorCode.CORRUPT_MESSAGE
    if bomb[22] == compression.ZSTD:
        expected = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert there.error_code == expected
    (after,) = await fetch(rig, 2, [("t", 0, 2)])
    assert old_values(after.records) == [(2, b"three")]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Where blocks larger than a few kilobytes were expanded."""
    names: set[str] = set()
    expand = compression.decompress

    def noted(codec: int, data: Any, limit: int) -> Any:
        out = expand(codec, data, limit)
        if len(out) > 32_768:
            names.add(threading.current_thread().name.rpartition("_")[0])
        return out

    monkeypatch.setattr(compression, "decompress", noted)
    return names


@pytest.mark.parametrize(
    ("size", "expected"), [(100_000, "penstock-expand"), (3_000_000, "penstock-expand-heavy")]
)
@pytest.mark.parametrize("codec", [compression.GZIP, compression.SNAPPY, compression.LZ4, compression.ZSTD])
async def test_large_batches_are_expanded_beside_the_loop(
    rig: Rig, threads: set[str], size: int, expected: str, codec: int
) -> None:
    await rig.topic("t", compression_type="uncompressed", max_message_bytes="10000000")
    half = os.urandom(500) + bytes(size // 2 - 500)
    packed = batch(half, half, codec=codec)
    reply = rig.send(request(rig, "t", packed), 13)
    assert isinstance(reply, Reply)
    assert reply.exclusive and not reply.done, "nothing of the connection may overtake it"
    assert await rig.finished(reply) is not None
    assert [record.value for record in stored(rig, "t")] == [half, half]
    assert threads == {expected}


async def test_small_batches_are_expanded_at_once(rig: Rig, threads: set[str]) -> None:
    await rig.topic("t", compression_type="lz4")
    reply = rig.send(request(rig, "t", batch(b"small" * 100, codec=compression.GZIP)), 13)
    assert isinstance(reply, Reply) and not reply.exclusive
    await rig.finished(reply)
    assert not threads


async def test_a_bug_while_expanding_is_an_error_for_all(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.topic("t", compression_type="lz4")

    async def fail(work: Any) -> None:
        raise RuntimeError("as if")

    monkeypatch.setattr(rig.broker.ledger.expanders, "run", fail)
    answer = await produce(rig, "t", batch(bytes(100_000)))
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


# -- order ----------------------------------------------------------------------------------------------


async def test_an_idempotent_producer_with_many_in_flight_is_kept_in_order(rig: Rig) -> None:
    """Large batches, which are expanded elsewhere, and small ones in turns, in one write."""
    await rig.topic("t", compression_type="zstd")
    server = Server(make_handle(rig.broker))
    bound = server.bind("PLAINTEXT", "127.0.0.1", 0)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", bound.port)
    values = [os.urandom(400_000 if number % 3 == 0 else 100) for number in range(20)]
    try:
        for number, value in enumerate(values):
            records = build_batch(
                [Record(0, 1_700_000_000_000, b"%d" % number, value)],
                codec=compression.GZIP if number % 2 else compression.NONE,
                producer_id=7,
                producer_epoch=0,
                base_sequence=number,
            )
            frame = request_header(0, 8, number, "c") + encode(request(rig, "t", records), 8)
            writer.write(struct.pack(">i", len(frame)) + frame)
        async with asyncio.timeout(60):
            for number in range(20):
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                answer = memoryview(await reader.readexactly(size))
                correlation_id, at = parse_response_header(0, 8, answer)
                partition = decode(ProduceResponse, 8, answer, at)[0].responses[0].partition_responses[0]
                assert (correlation_id, partition.error_code, partition.base_offset) == (number, 0, number)
    finally:
        writer.close()
        await server.abort()
    assert [record.value for record in stored(rig, "t")] == values


# -- reading on -----------------------------------------------------------------------------------------


def emptied(first: int, last: int) -> bytearray:
    """What compaction leaves of a batch whose records are all superseded."""
    return build_batch([], base_offset=first, last_offset=last)


def marker(offset: int) -> bytearray:
    made = bytearray(marker_batch(COMMIT, 1, 0, 0, 5))
    stamp(made, 0, offset, 0)
    return made


@pytest.fixture
def log_of(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make these batches, at their offsets, the log of a partition."""

    def fake(*batches: bytearray) -> None:
        partition = rig.broker.ledger.partition(rig.broker.image.topics["t"].id, 0)
        assert partition is not None
        end = read_header(batches[-1]).last_offset + 1

        def read(_partition: Any, offset: int, max_bytes: int, *, limit_offset: int) -> Slice:
            for one in batches:
                header = read_header(one)
                if header.last_offset >= offset and header.base_offset < limit_offset:
                    return Slice([one], len(one), header.last_offset + 1)
            return Slice([], 0, offset)

        monkeypatch.setattr(type(partition), "high_watermark", property(lambda _: end))
        monkeypatch.setattr(rig.broker.ledger, "read", read)

    return fake


@pytest.mark.parametrize("version", range(4))
async def test_old_readers_get_past_what_holds_nothing_for_them(
    rig: Rig, log_of: Callable[..., None], version: int
) -> None:
    await rig.topic("t")
    last = build_batch([Record(30, 5, b"k", b"last")], base_offset=30)
    cut_short = build_batch(
        [Record(12, 5, b"k", b"old")], base_offset=10, last_offset=19, codec=compression.GZIP
    )
    log_of(emptied(0, 9), cut_short, marker(20), emptied(21, 29), last)
    for offset in (13, 20, 25, 30):
        (found,) = await fetch(rig, version, [("t", 0, offset)])
        assert old_values(found.records) == [(30, b"last")], offset
    (wrapped,) = await fetch(rig, version, [("t", 0, 0)])
    assert struct.unpack_from(">q", wrapped.records or b"")[0] == 12


async def test_old_readers_wait_where_nothing_follows(rig: Rig, log_of: Callable[..., None]) -> None:
    await rig.topic("t")
    log_of(emptied(0, 9), emptied(10, 19))
    began = rig.clock.monotonic()
    (found,) = await fetch(rig, 2, [("t", 0, 3)], max_wait_ms=200)
    assert not found.records
    assert rig.clock.monotonic() - began >= 0.2, "it would be asked for again and again"


async def test_an_old_reader_that_goes_away_is_not_read_on_for(rig: Rig, log_of: Callable[..., None]) -> None:
    await rig.topic("t")
    log_of(emptied(0, 9), emptied(10, 19))
    reply = rig.send(fetch_request(rig, 2, [("t", 0, 0)], max_wait_ms=60_000), 2)
    assert isinstance(reply, Reply) and reply.on_abandon is not None
    reply.on_abandon()
    await rig.broker.ledger.expanders.run(lambda _limit: None)
    tasks = [task for task in asyncio.all_tasks() if "_convert" in repr(task)]
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks)
    partition = rig.broker.ledger.partition(rig.broker.image.topics["t"].id, 0)
    assert partition is not None and not partition._watchers
