"""A muted connection starts nothing, whatever lies ready; others do. Connections are counted and rated."""

from __future__ import annotations

import asyncio
import struct

import pytest

from penstock.server.limits import Limits
from penstock.testing.waiting import eventually
from penstock.wire.buffers import Buffer
from penstock.wire.exchange import Reply, Request
from tests.server.conftest import ECHO, HOLD, Bench, Desk, frame

MUTED_SECONDS = 0.3
MUTING = 7
"""The api key that is answered at once, and mutes its connection."""


class MutingDesk(Desk):
    def handle(self, request: Request) -> list[Buffer] | Reply | None:
        if request.api_key != MUTING:
            return super().handle(request)
        assert request.session.mute is not None
        request.session.mute(MUTED_SECONDS)
        self.seen.append(request.correlation_id)
        return [struct.pack(">i", request.correlation_id)]


@pytest.mark.parametrize("size", [10, 3_000_000])
async def test_what_follows_waits_and_others_do_not(bench: Bench, size: int) -> None:
    desk = MutingDesk()
    await bench.serve(desk.handle)
    loop = asyncio.get_running_loop()
    peer, other = await bench.connect(), await bench.connect()
    began = loop.time()
    sending = asyncio.ensure_future(peer.send(frame(MUTING, 1), frame(ECHO, 2, bytes(size)), frame(ECHO, 3)))
    assert (await peer.receive())[0] == 1, "its own answer goes out"
    assert loop.time() - began < MUTED_SECONDS
    await other.send(frame(ECHO, 9))
    assert (await other.receive())[0] == 9
    assert loop.time() - began < MUTED_SECONDS
    assert desk.seen == [1, 9]
    assert [(await peer.receive())[0] for _ in range(2)] == [2, 3]
    assert loop.time() - began >= MUTED_SECONDS - 0.02
    await sending


async def test_what_was_pipelined_after_a_request_that_mutes_as_it_starts_waits(bench: Bench) -> None:
    class StartedDesk(Desk):
        def handle(self, request: Request) -> list[Buffer] | Reply | None:
            answer = super().handle(request)
            if request.correlation_id == 1:
                assert request.session.mute is not None
                request.session.mute(MUTED_SECONDS)
            return answer

    desk = StartedDesk()
    await bench.serve(desk.handle)
    loop = asyncio.get_running_loop()
    peer = await bench.connect()
    began = loop.time()
    await peer.send(*(frame(HOLD, number) for number in range(1, 6)))
    await desk.arrived.wait()
    assert desk.seen == [1]
    desk.complete()
    assert (await peer.receive())[0] == 1
    assert loop.time() - began < MUTED_SECONDS
    assert desk.seen == [1], "its answer does not let the next ones in"
    await eventually(lambda: desk.seen == [1, 2, 3, 4, 5])
    assert loop.time() - began >= MUTED_SECONDS - 0.02


async def test_the_longest_time_counts(bench: Bench) -> None:
    desk = MutingDesk()
    server = await bench.serve(desk.handle)
    loop = asyncio.get_running_loop()
    peer = await bench.connect()
    began = loop.time()
    await peer.send(frame(MUTING, 1))
    await peer.receive()
    [connection] = server._connections
    connection.mute(2 * MUTED_SECONDS)
    connection.mute(MUTED_SECONDS / 2)
    await peer.send(frame(ECHO, 2))
    assert (await peer.receive())[0] == 2
    assert loop.time() - began >= 2 * MUTED_SECONDS - 0.02


async def test_a_muted_connection_may_go(bench: Bench) -> None:
    desk = MutingDesk()
    server = await bench.serve(desk.handle)
    peer = await bench.connect()
    await peer.send(frame(MUTING, 1))
    await peer.receive()
    peer.writer.close()
    await eventually(lambda: server.connections == 0)


# -- connections -----------------------------------------------------------------------------------------


async def test_an_address_has_a_limit_of_its_own(bench: Bench, desk: Desk) -> None:
    server = await bench.serve(desk.handle)
    server.limits = Limits(connections_per_host_max=1, connections_of_hosts={"127.0.0.1": 2})
    first, second = await bench.connect(), await bench.connect()
    third = await bench.connect()
    assert await third.closed()
    for peer in (first, second):
        await peer.send(frame(ECHO, 1))
        assert (await peer.receive())[0] == 1


async def test_connections_beyond_the_rate_wait(bench: Bench, desk: Desk) -> None:
    await bench.serve(desk.handle, connection_rate_max=10)
    loop = asyncio.get_running_loop()
    began = loop.time()
    peers = [await bench.connect() for _ in range(20)]
    for peer in peers:
        await peer.send(frame(ECHO, 1))
    for peer in peers:
        assert (await peer.receive())[0] == 1
    assert loop.time() - began >= 0.9, "a second's worth comes in at once, the others in the next"


async def test_an_address_beyond_its_rate_is_closed_after_a_while(bench: Bench, desk: Desk) -> None:
    server = await bench.serve(desk.handle)
    server.rate_of_host = {"127.0.0.1": 2.0}.get
    loop = asyncio.get_running_loop()
    began = loop.time()
    peers = [await bench.connect() for _ in range(3)]
    await peers[0].send(frame(ECHO, 1))
    assert (await peers[0].receive())[0] == 1
    await peers[2].send(frame(ECHO, 1))
    assert await peers[2].closed()
    assert loop.time() - began >= 0.4
    assert desk.seen == [1]
