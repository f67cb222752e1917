"""A scrub finds nothing in a store that is whole, whatever the broker does to it meanwhile."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.metadata.commands import DeleteTopic

from .ward import COMPACTED, Ward

SHORT = {"retention.bytes": "2000", "segment.bytes": "1048576", "file.delete.delay.ms": "0"}


@pytest.fixture(params=["directory", "memory"])
async def ward(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ward]:
    made = Ward(
        request.param, tmp_path, "log.segment.delete.delay.ms=0", "log.retention.check.interval.ms=50"
    )
    yield made
    await made.kill()


async def test_writing_settling_compacting_and_deleting(ward: Ward) -> None:
    node = await ward.start()
    numbers = random.Random(5)
    await ward.create("plain", 3)
    await ward.create("compacted", 1, **COMPACTED)
    await ward.create("short", 1, **SHORT)
    over = asyncio.Event()

    async def write() -> None:
        count = 0
        while not over.is_set():
            for topic, index in (("plain", count % 3), ("compacted", 0), ("short", 0)):
                value = b"%d" % numbers.randrange(10**9) * numbers.randrange(1, 40)
                values = [value] * numbers.randrange(1, 5)
                await ward.write(topic, index, values)
            count += 1
            if count % 7 == 0:
                await ward.ledger.settle()
            if count % 20 == 0:
                await ward.ledger.clean()
            if count % 9 == 0:
                name = f"passing-{count}"
                await ward.create(name)
                await ward.write(name, 0, [b"x"] * 5)
                await ward.propose(DeleteTopic(node.broker.image.topics[name].id))
            await asyncio.sleep(0)

    writing = asyncio.create_task(write())
    happened = False
    scrubs = 0
    async with asyncio.timeout(60):
        while not happened or scrubs < 12:
            report = await ward.scrub()
            assert report.exit_code == 0, report
            counters = ward.ledger.counters()
            happened = all(counters[name] > 2 for name in ("settles", "cleanings", "objects_deleted"))
            scrubs += 1
            await asyncio.sleep(0.01)
    over.set()
    await writing
    assert (await ward.scrub()).exit_code == 0
    await ward.kill()
    assert (await ward.scrub()).exit_code == 0
    await ward.start()
    assert (await ward.scrub()).exit_code == 0
