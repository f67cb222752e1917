"""What peers can make the server hold is bounded, and a bad or slow peer is nobody else's business."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from time import perf_counter

import pytest

from penstock.server.limits import Limits
from penstock.server.loop import new_event_loop
from penstock.server.server import ListenError, Server
from penstock.testing.waiting import eventually
from penstock.wire.buffers import Buffer
from penstock.wire.exchange import LightRelay, Reply, Request
from tests.server.conftest import BIG, ECHO, HOLD, HOLD_ALONE, Bench, Desk, frame


async def test_huge_and_negative_lengths_close_only_that_connection(bench: Bench, desk: Desk) -> None:
    await bench.serve(desk.handle)
    healthy = await bench.connect()
    for size in (-1, -(2**31), 2**31 - 1, 104_857_601, 0, 7):
        peer = await bench.connect()
        await peer.send(struct.pack(">i", size) + b"x" * 16)
        assert await peer.closed()
    await healthy.send(frame(ECHO, 1, b"still here"))
    assert await healthy.receive() == (1, b"still here")


async def test_the_largest_frame_passes_and_one_more_byte_does_not(bench: Bench, desk: Desk) -> None:
    whole = frame(ECHO, 1, b"x" * 1000)
    await bench.serve(desk.handle, frame_bytes_max=len(whole) - 4)
    peer = await bench.connect()
    await peer.send(whole)
    assert (await peer.receive())[0] == 1
    await peer.send(frame(ECHO, 2, b"x" * 1001))
    assert await peer.closed()


async def test_random_bytes_harm_nobody_else(bench: Bench, desk: Desk) -> None:
    server = await bench.serve(desk.handle)
    healthy = await bench.connect()
    seeded = random.Random(7)
    for number in range(60):
        peer = await bench.connect()
        await peer.send(seeded.randbytes(seeded.randrange(1, 4000)))
        await peer.close()
        await healthy.send(frame(ECHO, number))
        assert (await healthy.receive())[0] == number
    await eventually(lambda: server.connections == 1)
    assert server.memory.used == 0


async def test_half_open_connections_by_the_hundred_cost_little(bench: Bench, desk: Desk) -> None:
    server = await bench.serve(desk.handle)
    healthy = await bench.connect()
    announcing = [await bench.connect() for _ in range(100)]
    for peer in announcing:
        await peer.send(struct.pack(">i", 104_857_600) + b"\0" * 40)
    silent = [await bench.connect() for _ in range(100)]
    await eventually(lambda: server.connections == 201)
    await healthy.send(frame(ECHO, 1))
    assert (await healthy.receive())[0] == 1
    await eventually(lambda: len(server.memory.line) == 100)
    assert server.memory.used <= 100 * 16_384
    assert len(silent) == 100


async def test_too_many_connections(bench: Bench, desk: Desk) -> None:
    await bench.serve(desk.handle, connections_max=3)
    peers = [await bench.connect() for _ in range(3)]
    for number, peer in enumerate(peers):
        await peer.send(frame(ECHO, number))
        assert (await peer.receive())[0] == number
    surplus = await bench.connect()
    assert await surplus.closed()
    await peers.pop().close()
    await asyncio.sleep(0)
    again = await bench.connect()
    await again.send(frame(ECHO, 9))
    assert (await again.receive())[0] == 9


async def test_too_many_connections_from_one_address(bench: Bench, desk: Desk) -> None:
    await bench.serve(desk.handle, connections_per_host_max=1)
    first = await bench.connect()
    await first.send(frame(ECHO, 1))
    assert (await first.receive())[0] == 1
    assert await (await bench.connect()).closed()


async def test_an_ipv4_peer_has_an_ipv4_address_where_both_families_are_served(bench: Bench) -> None:
    """Rules, limits and quotas that name 127.0.0.1 would not see ::ffff:127.0.0.1."""
    server = Server(
        lambda request: [struct.pack(">i", request.correlation_id), request.session.peer_host.encode()],
        Limits(connections_of_hosts={"127.0.0.1": 1}),
    )
    bench.port = server.bind("PLAINTEXT", "::", 0).port
    await server.start()
    bench.serves(server)
    peer = await bench.connect()
    await peer.send(frame(ECHO, 1))
    assert await peer.receive() == (1, b"127.0.0.1")
    assert await (await bench.connect()).closed(), "the limit of the address holds"


async def test_a_slow_reader_is_not_read_from_and_others_are(bench: Bench, desk: Desk) -> None:
    server = await bench.serve(desk.handle)
    slow = await bench.connect()
    slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
    for number in range(200):
        slow.writer.write(frame(BIG, number, b"1000000"))
    await eventually(lambda: bool(desk.seen))
    healthy = await bench.connect()
    for number in range(1000, 1020):
        await healthy.send(frame(ECHO, number))
        assert (await healthy.receive())[0] == number
    started = [number for number in desk.seen if number < 1000]
    assert len(started) < 50, "requests of a peer that does not read were started all the same"
    slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for number in range(200):
        correlation_id, body = await slow.receive()
        assert (correlation_id, len(body)) == (number, 1_000_000)
    await eventually(lambda: server.memory.used == 0)


async def test_an_idle_connection_is_closed_and_a_waiting_one_is_not(bench: Bench, desk: Desk) -> None:
    await bench.serve(desk.handle, idle_timeout_ms=1000)
    waiting = await bench.connect()
    await waiting.send(frame(HOLD_ALONE, 1, b"patience"))
    idle = await bench.connect()
    assert await idle.closed()
    desk.complete()
    assert await waiting.receive() == (1, b"patience")
    assert await waiting.closed()


async def test_memory_in_flight_stops_reading_until_it_falls(bench: Bench, desk: Desk) -> None:
    server = await bench.serve(desk.handle, memory_bytes_max=1_000_000)
    peers = [await bench.connect() for _ in range(8)]
    sending = [
        asyncio.ensure_future(peer.send(frame(HOLD, n, b"m" * 400_000))) for n, peer in enumerate(peers)
    ]
    answered = 0
    while answered < 8:
        await eventually(lambda: bool(desk.held))
        # One that grew over the limit, one whose turn it is, one that came whole. Which of these there are
        # depends on how much a socket takes at a time.
        assert server.memory.used <= 1_000_000 + 3 * 400_100
        desk.complete()
        answered += 1
    for number, peer in enumerate(peers):
        correlation_id, body = await peer.receive()
        assert (correlation_id, len(body)) == (number, 400_000)
    await asyncio.gather(*sending)
    await eventually(lambda: server.memory.used == 0)


async def test_stalled_frames_cannot_hold_memory_for_ever(bench: Bench, desk: Desk) -> None:
    server = await bench.serve(desk.handle, memory_bytes_max=300_000, stalled_timeout_ms=200)
    stalled = [await bench.connect() for _ in range(4)]
    for peer in stalled:
        await peer.send(struct.pack(">i", 1_000_000) + b"\0" * 100_000)
    await eventually(lambda: server.memory.short)
    healthy = await bench.connect()
    await healthy.send(frame(ECHO, 1))
    assert (await healthy.receive())[0] == 1


async def test_a_failing_handler_closes_only_that_connection(bench: Bench, desk: Desk) -> None:
    def broken(request: object) -> None:
        raise ValueError("a bug")

    await bench.serve(broken)
    peer = await bench.connect()
    await peer.send(frame(ECHO, 1))
    assert await peer.closed()
    another = await bench.connect()
    await another.send(frame(ECHO, 2))
    assert await another.closed()


async def test_a_used_port_is_told_in_one_sentence(desk: Desk) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = Server(desk.handle, Limits())
        with pytest.raises(ListenError, match=rf"127\.0\.0\.1:{port} is in use by another process"):
            server.bind("PLAINTEXT", "127.0.0.1", port)
        with pytest.raises(ListenError, match="cannot be resolved"):
            server.bind("PLAINTEXT", "no-such-host.invalid", 0)
        await server.abort()


def test_a_port_that_others_take_before_a_server_listens_is_told(desk: Desk) -> None:
    """Both are bound while neither listens. A broker's own event loop says nothing then."""

    async def both() -> None:
        first, second = Server(desk.handle, Limits()), Server(desk.handle, Limits())
        try:
            port = first.bind("PLAINTEXT", "127.0.0.1", 0).port
            with pytest.raises(ListenError, match=rf"127\.0\.0\.1:{port} is in use by another process"):
                second.bind("PLAINTEXT", "127.0.0.1", port)
                await first.start()
                await second.start()
        finally:
            await first.abort()
            await second.abort()

    loop = new_event_loop()
    try:
        loop.run_until_complete(both())
    finally:
        loop.close()


async def test_a_peer_that_never_reads_holds_one_answer(bench: Bench, desk: Desk) -> None:
    """However many requests it sends at once, and whatever the answers are."""
    server = await bench.serve(desk.handle, write_buffer_bytes=65_536)
    deaf = await bench.connect()
    deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
    deaf.writer.write(b"".join(frame(BIG, number, b"500000") for number in range(2000)))
    await eventually(lambda: server.memory.used > 0)
    healthy = await bench.connect()
    for number in range(10_000, 10_050):
        await healthy.send(frame(ECHO, number))
        assert (await healthy.receive())[0] == number
    held = server.memory.used
    assert held <= 65_536 + 500_100 + 2 * server.scratch_view.nbytes
    assert not server.memory.short


async def test_hundreds_that_never_read_harm_nobody(bench: Bench, desk: Desk) -> None:
    """Together they hold more than there is: those that do not get on are closed, and nobody else waits."""
    server = await bench.serve(desk.handle, memory_bytes_max=20_000_000)
    healthy = await bench.connect()
    deaf = []
    most = 0
    for number in range(100):
        peer = await bench.connect()
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await peer.send(frame(BIG, number, b"8000000"))
        deaf.append(peer)
        async with asyncio.timeout(60):
            await healthy.send(frame(ECHO, number))
            assert (await healthy.receive())[0] == number
        most = max(most, server.memory.used)
    assert most <= 20_000_000 + 20_000_000 // 4 + 2 * 8_000_000
    await eventually(lambda: not server.memory.short)
    assert 0 < server.connections < 60


async def test_a_reader_that_gets_on_is_kept_while_memory_is_short(bench: Bench, desk: Desk) -> None:
    server = await bench.serve(desk.handle, memory_bytes_max=20_000_000, untaken_timeout_ms=1000)
    slow = await bench.connect()
    await slow.send(frame(BIG, 1, b"30000000"))
    body = 0
    async with asyncio.timeout(60):
        header = await slow.reader.readexactly(8)
        size = struct.unpack_from(">i", header)[0] - 4
        began = asyncio.get_running_loop().time()
        while body < size:
            body += len(await slow.reader.read(200_000))
            if asyncio.get_running_loop().time() - began < 3:
                await asyncio.sleep(0.02)  # a slow reader, for longer than the patience
                assert server.memory.short or server.memory.used < 20_000_000
    await slow.send(frame(ECHO, 2))
    assert (await slow.receive())[0] == 2


async def test_half_frames_by_the_hundred_do_not_hold_up_small_requests(bench: Bench, desk: Desk) -> None:
    server = await bench.serve(
        desk.handle, memory_bytes_max=4_000_000, stalled_timeout_ms=300, paused_timeout_ms=900
    )
    healthy = await bench.connect()
    half = [await bench.connect() for _ in range(60)]
    sending = [
        asyncio.ensure_future(peer.send(struct.pack(">i", 1_000_000) + bytes(300_000))) for peer in half
    ]
    await eventually(lambda: server.memory.short)
    for number in range(20):
        await healthy.send(frame(ECHO, number))
        assert (await healthy.receive())[0] == number
    await eventually(lambda: server.connections < 58)  # they are closed one after the other
    for each in sending:
        each.cancel()
    await asyncio.gather(*sending, return_exceptions=True)


async def test_a_flood_of_requests_leaves_turns_to_others(bench: Bench, desk: Desk) -> None:
    """Thousands of requests in one read are not handled in one go."""
    slow_answers = 0

    def handle(request: Request) -> list[Buffer] | Reply | None:
        nonlocal slow_answers
        if request.correlation_id < 1_000_000:
            slow_answers += 1
            until = perf_counter() + 0.0002
            while perf_counter() < until:
                pass
        return desk.handle(request)

    await bench.serve(handle)
    flood, healthy = await bench.connect(), await bench.connect()
    flood.writer.write(b"".join(frame(ECHO, number) for number in range(5000)))
    await eventually(lambda: slow_answers > 0)
    await healthy.send(frame(ECHO, 1_000_000))
    assert (await healthy.receive())[0] == 1_000_000
    assert slow_answers < 1000, "the flood was served first"
    for number in range(5000):
        assert (await flood.receive())[0] == number


async def test_requests_that_wait_for_others_keep_nobody_out(bench: Bench) -> None:
    """Such as JoinGroup: if those who wait were too much together, nobody could come whom they wait for."""
    waiting: list[LightRelay] = []

    def handle(request: Request) -> list[Buffer] | Reply:
        prefix = struct.pack(">i", request.correlation_id)
        if request.api_key == ECHO:
            return [prefix]
        request.let_go()
        waiting.append(LightRelay())
        return waiting[-1]

    server = await bench.serve(handle, memory_bytes_max=1 << 20)
    peers = [await bench.connect() for _ in range(8)]
    for number, peer in enumerate(peers):
        await peer.send(frame(HOLD, number, bytes(1 << 19)))
    await eventually(lambda: len(waiting) == 8)
    assert server.memory.used == 0
    newcomer = await bench.connect()
    await newcomer.send(frame(ECHO, 99, bytes(1 << 19)))
    assert (await newcomer.receive())[0] == 99
    for relay in waiting:
        relay.complete([bytes(4)])
    assert (await peer.receive())[0] == 0
    assert server.memory.used == 0


async def test_large_requests_that_wait_for_more_are_answered_when_memory_is_short(bench: Bench) -> None:
    """Such as a Fetch of many partitions that would wait for days."""
    polls: list[Reply] = []

    def handle(request: Request) -> list[Buffer] | Reply:
        prefix = struct.pack(">i", request.correlation_id)
        if request.api_key == ECHO:
            return [prefix]
        reply = Reply()
        reply.on_hurry = lambda: reply.complete([prefix])
        polls.append(reply)
        return reply

    server = await bench.serve(handle, memory_bytes_max=1 << 20)
    small = await bench.connect()
    await small.send(frame(HOLD, 50))
    await eventually(lambda: len(polls) == 1)
    peers = [await bench.connect() for _ in range(4)]
    for number, peer in enumerate(peers):
        await peer.send(frame(HOLD, number, bytes(1 << 19)))
    newcomer = await bench.connect()
    await newcomer.send(frame(ECHO, 99, bytes(1 << 19)))
    assert (await newcomer.receive())[0] == 99
    await eventually(lambda: server.memory.used <= 1 << 20)
    assert not polls[0].done, "it holds next to nothing"
