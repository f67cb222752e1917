"""What a crowd of peers held goes back to the system, also where memory was never short."""

from __future__ import annotations

import struct

import pytest

from penstock.server import server as server_module
from penstock.server.server import Server
from penstock.testing.waiting import eventually
from tests.server.conftest import Bench, Desk, Peer

_LIMIT_BYTES = 8_000_000
_HALF = struct.pack(">i", 500_000) + bytes(400_000)


async def _serve(bench: Bench, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> tuple[Server, list[int]]:
    """A server, and how much was in use each time that it gave memory back."""
    server = await bench.serve(desk.handle, memory_bytes_max=_LIMIT_BYTES)
    given_back: list[int] = []
    monkeypatch.setattr(server_module, "give_back_memory", lambda: given_back.append(server.memory.used))
    return server, given_back


async def _crowd(bench: Bench, desk: Desk, server: Server, count: int) -> list[Peer]:
    peers = []
    for _ in range(count):
        peers.append(await bench.connect())
        await peers[-1].send(_HALF)
    await eventually(lambda: server.memory.used >= count * 400_000)
    assert not server.memory.short
    return peers


async def test_a_crowd_within_the_limit_leaves_nothing_behind(
    bench: Bench, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, given_back = await _serve(bench, desk, monkeypatch)
    peers = await _crowd(bench, desk, server, 10)
    assert not given_back
    for peer in peers:
        await peer.close()
    await eventually(lambda: 0 in given_back)
    # It is watched again after that.
    given_back.clear()
    for peer in await _crowd(bench, desk, server, 10):
        await peer.close()
    await eventually(lambda: 0 in given_back)


async def test_those_who_stay_do_not_keep_what_others_held(
    bench: Bench, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, given_back = await _serve(bench, desk, monkeypatch)
    peers = await _crowd(bench, desk, server, 14)
    for peer in peers[5:]:
        await peer.close()
    await eventually(lambda: bool(given_back))
    assert given_back[0] > server.memory.crowd


async def test_a_few_large_requests_are_no_crowd(
    bench: Bench, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, given_back = await _serve(bench, desk, monkeypatch)
    for peer in await _crowd(bench, desk, server, 3):
        await peer.close()
    await eventually(lambda: server.memory.used == 0)
    assert not given_back and server.memory.peak < server.memory.crowd
