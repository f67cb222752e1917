"""A stopping server answers what is under way and leaves nobody hanging."""

from __future__ import annotations

import asyncio

import pytest

from penstock.testing.waiting import eventually
from tests.server.conftest import BIG, ECHO, HOLD, HOLD_ALONE, Bench, Desk, frame


async def test_requests_under_way_are_answered(bench: Bench, desk: Desk) -> None:
    server = await bench.serve(desk.handle)
    busy = await bench.connect()
    await busy.send(frame(HOLD, 1, b"a"), frame(HOLD, 2, b"b"))
    idle = await bench.connect()
    await eventually(lambda: len(desk.held) == 2 and server.connections == 2)
    draining = asyncio.ensure_future(server.drain(10))
    assert await idle.closed()
    desk.complete(1)
    desk.complete(0)
    assert await busy.receive() == (1, b"a")
    assert await busy.receive() == (2, b"b")
    assert await busy.closed()
    assert await draining


async def test_a_long_poll_is_asked_to_hurry(bench: Bench, desk: Desk) -> None:
    server = await bench.serve(desk.handle)
    peer = await bench.connect()
    await peer.send(frame(HOLD_ALONE, 1, b"now"))
    await eventually(lambda: bool(desk.held))
    desk.held[0][2].on_hurry = desk.complete
    assert await server.drain(10)
    assert await peer.receive() == (1, b"now")


async def test_nobody_new_is_let_in(bench: Bench, desk: Desk) -> None:
    server = await bench.serve(desk.handle)
    await server.drain(1)
    with pytest.raises(ConnectionError):
        await bench.connect()


async def test_what_does_not_finish_in_time_is_cut_off(bench: Bench, desk: Desk) -> None:
    server = await bench.serve(desk.handle)
    never = await bench.connect()
    await never.send(frame(HOLD, 1))
    stuck = await bench.connect()
    stuck.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await stuck.send(frame(BIG, 2, b"20000000"))
    await eventually(lambda: len(desk.seen) == 2)
    assert not await server.drain(0.1)
    assert server.connections == 0
    assert await never.closed()


async def test_a_drained_server_takes_no_further_requests(bench: Bench, desk: Desk) -> None:
    server = await bench.serve(desk.handle)
    peer = await bench.connect()
    await peer.send(frame(HOLD, 1))
    await eventually(lambda: bool(desk.held))
    draining = asyncio.ensure_future(server.drain(10))
    await asyncio.sleep(0)
    await peer.send(frame(ECHO, 2))
    desk.complete()
    assert (await peer.receive())[0] == 1
    assert await peer.closed()
    await draining
    assert desk.seen == [1]
