"""Whatever is asked in whatever pieces, and whenever it is ready: answers come in order, whole, and once."""

from __future__ import annotations

import asyncio
import random

import pytest

from penstock.testing.waiting import eventually
from tests.server.conftest import ECHO, HOLD, HOLD_ALONE, SILENT, Bench, Desk, frame

SIZES = (0, 1, 10, 500, 5_000, 31_000, 33_000, 70_000, 300_000)


@pytest.mark.parametrize("seed", range(12))
async def test_random_traffic(bench: Bench, desk: Desk, seed: int) -> None:
    seeded = random.Random(seed)
    server = await bench.serve(
        desk.handle,
        requests_in_flight_max=seeded.choice((1, 3, 100)),
        memory_bytes_max=seeded.choice((400_000, 100_000_000)),
        write_buffer_bytes=seeded.choice((1_000, 262_144)),
        backlog_bytes=seeded.choice((1_000, 65_536)),
    )
    await asyncio.gather(*(one_peer(bench, desk, random.Random(seed * 100 + number)) for number in range(3)))
    await eventually(lambda: server.memory.used == 0)
    assert not server.memory.line


async def one_peer(bench: Bench, desk: Desk, seeded: random.Random) -> None:
    peer = await bench.connect()
    requests = [
        (
            seeded.choice((ECHO, HOLD, HOLD, HOLD_ALONE, SILENT)),
            number,
            seeded.randbytes(seeded.choice(SIZES)),
        )
        for number in range(60)
    ]
    data = b"".join(frame(*request) for request in requests)

    async def write() -> None:
        at = 0
        while at < len(data):
            piece = seeded.choice((1, 7, 1_000, 50_000, 400_000))
            await peer.send(data[at : at + piece])
            at += piece
            if seeded.random() < 0.3:
                await asyncio.sleep(0)

    async def complete() -> None:
        while True:
            if desk.held:
                desk.complete(seeded.randrange(len(desk.held)))
            await asyncio.sleep(0)

    writing, completing = asyncio.ensure_future(write()), asyncio.ensure_future(complete())
    async with asyncio.timeout(60):
        for key, number, body in requests:
            if key != SILENT:
                assert await peer.receive() == (number, body)
        await writing
    completing.cancel()
