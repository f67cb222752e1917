"""Pipelined requests are answered in order, whatever order their answers become ready in."""

from __future__ import annotations

import asyncio
import struct

from penstock.testing.waiting import eventually
from tests.server.conftest import BIG, CLOSE, ECHO, HOLD, HOLD_ALONE, SILENT, Bench, Desk, frame


async def test_answers_leave_in_the_order_of_requests(bench: Bench, desk: Desk) -> None:
    await bench.serve(desk.handle)
    peer = await bench.connect()
    await peer.send(frame(HOLD, 1, b"a"), frame(HOLD, 2, b"b"), frame(ECHO, 3, b"c"), frame(HOLD, 4, b"d"))
    await eventually(lambda: len(desk.held) == 3)
    desk.complete(2)
    desk.complete(1)
    desk.complete(0)
    assert [await peer.receive() for _ in range(4)] == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]


async def test_a_ready_answer_waits_for_the_one_before_it(bench: Bench, desk: Desk) -> None:
    await bench.serve(desk.handle)
    peer = await bench.connect()
    await peer.send(frame(HOLD, 1), frame(ECHO, 2))
    await eventually(lambda: desk.seen == [1, 2])
    early = asyncio.ensure_future(peer.receive())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not early.done()
    desk.complete()
    assert (await early)[0] == 1
    assert (await peer.receive())[0] == 2


async def test_nothing_starts_while_an_exclusive_request_is_under_way(bench: Bench, desk: Desk) -> None:
    await bench.serve(desk.handle)
    peer = await bench.connect()
    await peer.send(frame(HOLD_ALONE, 1), frame(ECHO, 2, b"x"))
    await eventually(lambda: bool(desk.held))
    other = await bench.connect()
    await other.send(frame(ECHO, 9))
    assert (await other.receive())[0] == 9
    assert desk.seen == [1, 9]
    await peer.send(frame(ECHO, 3))
    desk.complete()
    assert [(await peer.receive())[0] for _ in range(3)] == [1, 2, 3]


async def test_frames_may_arrive_byte_by_byte(bench: Bench, desk: Desk) -> None:
    await bench.serve(desk.handle)
    peer = await bench.connect()
    data = frame(ECHO, 1, b"hello") + frame(ECHO, 2, b"")
    for at in range(len(data)):
        await peer.send(data[at : at + 1])
        await asyncio.sleep(0)
    assert await peer.receive() == (1, b"hello")
    assert await peer.receive() == (2, b"")


async def test_frames_of_many_sizes_in_odd_pieces(bench: Bench, desk: Desk) -> None:
    await bench.serve(desk.handle)
    peer = await bench.connect()
    sizes = [0, 1, 100, 32_000, 32_767, 33_000, 65_536, 200_000, 262_144, 300_000, 1_500_000, 7, 5_000_000, 3]
    bodies = [struct.pack(">i", size) * (size // 4) + b"z" * (size % 4) for size in sizes]
    data = b"".join(frame(ECHO, number, body) for number, body in enumerate(bodies))

    async def write() -> None:
        at, piece = 0, 1
        while at < len(data):
            await peer.send(data[at : at + piece])
            at += piece
            piece = piece * 3 % 400_009

    writing = asyncio.ensure_future(write())
    for number, body in enumerate(bodies):
        assert await peer.receive() == (number, body)
    await writing


async def test_more_pipelined_requests_than_may_be_in_flight(bench: Bench, desk: Desk) -> None:
    await bench.serve(desk.handle, requests_in_flight_max=5)
    peer = await bench.connect()
    await peer.send(*(frame(HOLD, number) for number in range(100)))
    for number in range(100):
        await eventually(lambda: bool(desk.held))
        assert len(desk.held) <= 5
        desk.complete()
        assert (await peer.receive())[0] == number


async def test_a_request_without_an_answer_leaves_no_gap(bench: Bench, desk: Desk) -> None:
    await bench.serve(desk.handle)
    peer = await bench.connect()
    await peer.send(frame(ECHO, 1), frame(SILENT, 2), frame(ECHO, 3))
    assert (await peer.receive())[0] == 1
    assert (await peer.receive())[0] == 3


async def test_a_reply_completed_with_nothing_sends_nothing(bench: Bench, desk: Desk) -> None:
    await bench.serve(desk.handle)
    peer = await bench.connect()
    await peer.send(frame(HOLD, 1), frame(HOLD, 2), frame(ECHO, 3))
    await eventually(lambda: len(desk.held) == 2)
    desk.held.pop(0)[2].complete(None)
    desk.complete()
    assert (await peer.receive())[0] == 2
    assert (await peer.receive())[0] == 3


async def test_a_reply_that_closes_lets_earlier_answers_out(bench: Bench, desk: Desk) -> None:
    await bench.serve(desk.handle)
    peer = await bench.connect()
    await peer.send(frame(HOLD, 1, b"first"), frame(CLOSE, 2), frame(ECHO, 3))
    await eventually(lambda: desk.seen == [1, 2])
    desk.complete()
    assert await peer.receive() == (1, b"first")
    assert await peer.closed()
    assert desk.seen == [1, 2], "a request behind the end was started"


async def test_a_half_closed_peer_still_gets_its_answers(bench: Bench, desk: Desk) -> None:
    await bench.serve(desk.handle)
    peer = await bench.connect()
    await peer.send(frame(HOLD_ALONE, 1, b"a"), frame(ECHO, 2, b"b"))
    peer.writer.write_eof()
    await eventually(lambda: bool(desk.held))
    desk.complete()
    assert await peer.receive() == (1, b"a")
    assert await peer.receive() == (2, b"b")
    assert await peer.closed()


async def test_replies_of_a_lost_connection_are_abandoned(bench: Bench, desk: Desk) -> None:
    server = await bench.serve(desk.handle)
    peer = await bench.connect()
    await peer.send(frame(HOLD_ALONE, 7))
    await eventually(lambda: bool(desk.held))
    peer.reset()
    await eventually(lambda: desk.abandoned == [7])
    desk.complete()
    assert server.connections == 0
    assert server.memory.used == 0


async def test_large_answers_go_out_whole(bench: Bench, desk: Desk) -> None:
    await bench.serve(desk.handle)
    peer = await bench.connect()
    await peer.send(*(frame(BIG, number, b"3000000") for number in range(4)))
    for number in range(4):
        correlation_id, body = await peer.receive()
        assert correlation_id == number
        assert len(body) == 3_000_000
