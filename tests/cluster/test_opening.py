"""Partitions that cannot be opened, for a reason that is not the store's, are opened when it has passed."""

import logging
from collections.abc import AsyncIterator

import pytest

from penstock.metadata.image import WalRef
from penstock.storage.wal.directory import DirectoryWalStore
from penstock.storage.wal.objects import ObjectWalStore
from penstock.storage.wal.port import ScannedFlush
from penstock.testing.waiting import eventually

from .ward import Ward


async def test_a_machine_that_had_no_thread_for_a_moment(
    ward: Ward, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await ward.fill()
    records = await ward.read("orders")
    await ward.kill()
    kind = DirectoryWalStore if ward.on_directory else ObjectWalStore
    scan = kind.scan
    left = 2

    async def tired(
        self: DirectoryWalStore | ObjectWalStore, wal: WalRef, start: int, end: int
    ) -> AsyncIterator[ScannedFlush]:
        nonlocal left
        if left:
            left -= 1
            raise RuntimeError("can't start new thread")
        async for flush in scan(self, wal, start, end):  # type: ignore[arg-type]
            yield flush

    monkeypatch.setattr(kind, "scan", tired)
    with caplog.at_level(logging.ERROR):
        node = await ward.start()
        await eventually(lambda: len(tuple(node.broker.ledger.led())) >= 3)
    assert await ward.read("orders") == records and not left
    told = [one for one in caplog.records if one.getMessage() == "partitions were not opened"]
    assert len(told) == 2, "once for each try, not for each partition"
    caplog.clear()
