"""Answers that a peer has not wholly taken count in full, whatever the kernel buffers."""

from __future__ import annotations

import asyncio
import socket

import pytest

from penstock.server.memory import pinned_bytes
from penstock.server.server import Server
from penstock.testing.waiting import eventually
from tests.server.conftest import BIG, ECHO, HOLD, Bench, Desk, Peer, frame


async def deaf_peer(bench: Bench, receive_buffer_bytes: int) -> Peer:
    """A peer that takes nothing but what its kernel takes."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", bench.port))
    peer = Peer(*await asyncio.open_connection(sock=connection))
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    bench.add(peer)
    return peer


def in_transports(server: Server) -> int:
    return sum(connection._transport.get_write_buffer_size() for connection in server._connections)


async def until_still(server: Server) -> int:
    """What is left in transports once the kernel takes no more."""
    left, same = in_transports(server), 0
    while same < 20:
        await asyncio.sleep(0.005)
        now = in_transports(server)
        left, same = now, same + 1 if now == left else 0
    return left


@pytest.mark.parametrize(("send_bytes", "receive_bytes"), [(8192, 4096), (65_536, 65_536), (-1, 1_000_000)])
async def test_an_answer_that_the_kernel_took_nearly_all_of_counts_in_full(
    bench: Bench, desk: Desk, send_bytes: int, receive_bytes: int
) -> None:
    server = await bench.serve(desk.handle, send_buffer_bytes=send_bytes)
    probe = await deaf_peer(bench, receive_bytes)
    size = 32_000_000
    await probe.send(frame(BIG, 1, b"%d" % size))
    await eventually(lambda: in_transports(server) > 0)
    taken = size - await until_still(server)
    assert taken < size - 1_000_000, "this machine's buffers take all of it: there is nothing to test with"
    assert server.memory.used >= size
    probe.reset()
    await eventually(lambda: server.memory.used == 0)

    nearly = await deaf_peer(bench, receive_bytes)
    size = taken + 100_000
    await nearly.send(frame(BIG, 2, b"%d" % size))
    await eventually(lambda: len(desk.seen) == 2)
    left = await until_still(server)
    assert (server.memory.used >= size) if left else (server.memory.used == 0)
    nearly.writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert len((await nearly.receive())[1]) == size
    await eventually(lambda: server.memory.used == 0)


async def test_nothing_is_started_while_an_answer_is_not_taken(bench: Bench, desk: Desk) -> None:
    server = await bench.serve(desk.handle, send_buffer_bytes=8192)
    deaf = await deaf_peer(bench, 4096)
    await deaf.send(frame(BIG, 1, b"1000000"), frame(ECHO, 2), frame(BIG, 3, b"1000000"))
    await eventually(lambda: server.memory.used > 0)
    await until_still(server)
    assert desk.seen == [1]
    deaf.writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert [(await deaf.receive())[0] for _ in range(3)] == [1, 2, 3]


async def test_answers_that_wait_for_one_before_are_counted_and_few(bench: Bench, desk: Desk) -> None:
    server = await bench.serve(desk.handle, write_buffer_bytes=65_536)
    peer = await bench.connect()
    await peer.send(frame(HOLD, 0), *(frame(BIG, number, b"500000") for number in range(1, 200)))
    await eventually(lambda: len(desk.seen) > 1)
    healthy = await bench.connect()
    await healthy.send(frame(ECHO, 1000))
    assert (await healthy.receive())[0] == 1000
    assert desk.seen == [0, 1, 1000]
    assert 500_000 <= server.memory.used <= 500_100 + 100
    desk.complete()
    for number in range(200):
        assert (await peer.receive())[0] == number
    await eventually(lambda: server.memory.used == 0)


async def test_answers_that_wait_are_given_back_with_their_connection(bench: Bench, desk: Desk) -> None:
    server = await bench.serve(desk.handle)
    peer = await bench.connect()
    await peer.send(frame(HOLD, 0), frame(BIG, 1, b"500000"))
    await eventually(lambda: server.memory.used > 500_000)
    peer.reset()
    await eventually(lambda: server.connections == 0)
    desk.complete()
    assert server.memory.used == 0


def test_a_view_holds_what_it_is_a_view_of_once() -> None:
    buffer = bytearray(1000)
    assert pinned_bytes([b"12", memoryview(buffer)[:3], memoryview(buffer)[900:], bytearray(5)]) == 1007
