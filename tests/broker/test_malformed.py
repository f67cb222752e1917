"""Batches whose records do not parse, although header and CRC are right: refused, and nobody reads them."""

from __future__ import annotations

import asyncio
import gc
import os
import struct
from random import Random

import pytest
from conformance.wire import batches
from conformance.wire.batches import Item, record, zigzag

from penstock.broker.dispatch import make_handle
from penstock.broker.produce.checks import INLINE_BYTES, SKIM_FACTOR
from penstock.server.server import Server
from penstock.testing.waiting import eventually
from penstock.wire import compression
from penstock.wire.api.produce import ProduceResponse
from penstock.wire.batch import HEADER_SIZE, Record, build_batch, read_header
from penstock.wire.codec import decode, encode
from penstock.wire.errors import BatchError, ErrorCode
from penstock.wire.exchange import Reply
from penstock.wire.headers import parse_response_header, request_header
from tests.broker.rig import Rig, batch
from tests.broker.test_expanding import ZEROS, with_block
from tests.broker.test_produce import produce, request, stored
from tests.wire.test_legacy import message

CODECS = [compression.NONE, compression.GZIP, compression.SNAPPY, compression.LZ4, compression.ZSTD]
PACKED = CODECS[1:]

GOOD = record()
BLOCKS = {
    "nothing": (1, b""),
    "rubbish": (1, b"\xff" * 20),
    "zeros": (1, bytes(20)),
    "cut short": (1, GOOD[:-1]),
    "bytes after": (1, GOOD + b"\0"),
    "size too high": (1, record(size=zigzag(60))),
    "size too low": (1, record(size=zigzag(6))),
    "size negative": (1, record(size=zigzag(-1))),
    "size in six bytes": (1, record(size=b"\x96\x80\x80\x80\x80\0")),
    "key too long": (1, record(key=zigzag(100))),
    "value too long": (1, record(value=zigzag(6) + b"value")),
    "value too short": (1, record(value=zigzag(4) + b"value")),
    "headers negative": (1, record(headers=zigzag(-1))),
    "headers missing": (1, record(headers=zigzag(2))),
    "header without key": (1, record(headers=zigzag(1) + zigzag(-1) + zigzag(-1))),
    "time in eleven bytes": (1, record(time=b"\x80" * 10 + b"\0")),
    "delta in six bytes": (1, record(delta=b"\x80" * 5 + b"\0")),
    "delta 1": (1, record(delta=zigzag(1))),
    "deltas 0 and 0": (2, GOOD + GOOD),
    "one of two": (2, GOOD),
    "two of one": (1, GOOD + record(delta=zigzag(1))),
    "second too long": (2, GOOD + record(delta=zigzag(1), value=zigzag(9) + b"value")),
}


def sent(count: int, block: bytes, codec: int = compression.NONE, *, packs: bool = True) -> bytes:
    data = batches.compress(codec, block) if packs else block
    return batches.batch([Item(b"", timestamp=1_700_000_000_000)] * count, codec=codec, records=data)


async def refused_wherever(rig: Rig, data: bytes, word: str = "") -> None:
    """By the general way, and by the one of a connection that sent something like it before."""
    name = f"t{len(rig.broker.image.topics)}"
    await rig.topic(name)
    rig.session.fast = None
    for _ in range(2):
        answer = await produce(rig, name, data)
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert answer.base_offset == -1
        assert answer.error_message and word in answer.error_message
        assert (await produce(rig, name, batch(b"x" * 300))).error_code == ErrorCode.NONE
        assert rig.session.fast is not None
    assert [one.value for one in stored(rig, name)] == [b"x" * 300] * 2


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", BLOCKS)
async def test_records_that_do_not_parse(rig: Rig, name: str, codec: int) -> None:
    await refused_wherever(rig, sent(*BLOCKS[name], codec))


@pytest.mark.parametrize("codec", PACKED)
async def test_blocks_that_their_codec_did_not_make(rig: Rig, codec: int) -> None:
    random = Random(7)
    for block in (b"", b"not packed at all", random.randbytes(40_000), random.randbytes(400_000)):
        await refused_wherever(rig, sent(1, block, codec, packs=False))


@pytest.mark.parametrize("codec", PACKED)
async def test_a_packed_block_that_is_cut_short(rig: Rig, codec: int) -> None:
    for size in (100, 50_000, 300_000):
        value = Random(size).randbytes(size)
        whole = batches.compress(codec, record(value=zigzag(size) + value))
        await refused_wherever(rig, sent(1, whole[:-20], codec, packs=False))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [33, 1_000, 15_000])
async def test_large_batches_with_a_wrong_number_or_end(rig: Rig, codec: int, count: int) -> None:
    block = bytes(build_batch([Record(at, 5, b"k", b"v" * (at % 90)) for at in range(count)])[HEADER_SIZE:])
    await refused_wherever(rig, sent(count + 1, block, codec), "end too soon")
    await refused_wherever(rig, sent(count - 1, block, codec), "more records")
    await refused_wherever(rig, sent(count, block + b"\0\0", codec))


async def test_a_record_like_the_last_one_is_looked_at_where_it_differs(rig: Rig) -> None:
    """A connection that sends records of one size is spared their reading, but for the number of headers."""
    await rig.topic("t")
    good = build_batch([Record(0, 1_700_000_000_000, None, b"x" * 300)])
    for _ in range(3):
        assert (await produce(rig, "t", good)).error_code == ErrorCode.NONE
    block = bytes(good[HEADER_SIZE:])
    for bad in (block[:-1] + b"\2", block[:7] + b"\7" + block[8:], block[:5] + b"\2" + block[6:]):
        assert (await produce(rig, "t", sent(1, bad))).error_code == ErrorCode.INVALID_RECORD
    assert (await produce(rig, "t", sent(2, block))).error_code == ErrorCode.INVALID_RECORD
    assert (await produce(rig, "t", sent(1, block[:-1] + b"\0"))).base_offset == 3


@pytest.mark.parametrize("codec", [compression.GZIP, compression.LZ4, compression.ZSTD])
async def test_a_bomb_is_too_large_for_any_topic(rig: Rig, codec: int) -> None:
    await rig.topic("t", max_message_bytes="3000000")
    answer = await produce(rig, "t", with_block(codec, compression.compress(codec, ZEROS)))
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert "expand to more than" in str(answer.error_message)


async def test_what_was_expanded_is_not_kept(rig: Rig) -> None:
    """Nor is the exception that stopped it, whose frames refer to it, until the next collection of cycles."""
    await rig.topic("t")
    data = with_block(compression.GZIP, compression.compress(compression.GZIP, ZEROS))
    old = message(1, compression.GZIP, compression.compress(compression.GZIP, ZEROS))

    def nothing_left() -> bool:
        return not any(isinstance(one, BatchError) for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        for version, records in ((9, data), (2, old)):
            answer = await produce(rig, "t", records, version)
            assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
            # The thread that opened it lets go of it a moment later; a cycle would stay.
            await eventually(nothing_left, "the end of the exception", 10)
    finally:
        gc.enable()


@pytest.mark.parametrize("codec", PACKED)
async def test_packed_batches_of_every_size(rig: Rig, codec: int) -> None:
    await rig.topic("t")
    expected = []
    for size in (1, 100, 10_000, 100_000, INLINE_BYTES * SKIM_FACTOR + 1, 900_000):
        value = os.urandom(size // 3) + bytes(size - size // 3)
        for _ in range(3):
            data = batch(value, codec=codec)
            assert (await produce(rig, "t", data)).error_code == ErrorCode.NONE, size
            expected.append(value)
        data = build_batch([Record(at, 5, b"k", b"%d" % at) for at in range(size // 10 + 1)], codec=codec)
        assert (await produce(rig, "t", data)).error_code == ErrorCode.NONE, size
        expected += [b"%d" % at for at in range(read_header(data).record_count)]
    assert [one.value for one in stored(rig, "t")] == expected


@pytest.mark.parametrize("codec", PACKED)
async def test_what_expands_far_is_opened_beside_the_loop(rig: Rig, codec: int) -> None:
    await rig.topic("t")
    at_once = rig.send(request(rig, "t", batch(bytes(1000), codec=codec)), 13)
    assert isinstance(at_once, Reply) and not at_once.exclusive
    await rig.finished(at_once)
    later = rig.send(request(rig, "t", batch(bytes(INLINE_BYTES * SKIM_FACTOR + 1), codec=codec)), 13)
    assert isinstance(later, Reply)
    assert later.exclusive and not later.done, "nothing of the connection may overtake it"
    await rig.finished(later)
    assert len(stored(rig, "t")) == 2


async def test_order_among_what_is_opened_here_and_there(rig: Rig) -> None:
    """An idempotent producer with many in flight, all codecs, large and small, good and bad, in one write."""
    await rig.topic("t")
    server = Server(make_handle(rig.broker))
    bound = server.bind("PLAINTEXT", "127.0.0.1", 0)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", bound.port)
    values = [os.urandom(300_000 if number % 3 == 0 else 100) for number in range(30)]
    bad = sent(1, b"not packed at all", compression.ZSTD, packs=False)
    try:
        for number, value in enumerate(values):
            good = build_batch(
                [Record(0, 1_700_000_000_000, b"%d" % number, value)],
                codec=number % 5,
                producer_id=7,
                producer_epoch=0,
                base_sequence=number,
            )
            for data in (bad, good):
                frame = request_header(0, 8, number, "c") + encode(request(rig, "t", data), 8)
                writer.write(struct.pack(">i", len(frame)) + frame)
        async with asyncio.timeout(60):
            for number in range(30):
                for code, offset in ((ErrorCode.INVALID_RECORD, -1), (ErrorCode.NONE, number)):
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    answer = memoryview(await reader.readexactly(size))
                    correlation_id, at = parse_response_header(0, 8, answer)
                    one = decode(ProduceResponse, 8, answer, at)[0].responses[0].partition_responses[0]
                    assert (correlation_id, one.error_code, one.base_offset) == (number, code, offset)
    finally:
        writer.close()
        await server.abort()
    assert [one.value for one in stored(rig, "t")] == values
