"""Brokers with something wrong with them, on purpose. A simulator that finds nothing here finds nothing.

fencing      a writer does not notice that its log was sealed
ack-early    a flush counts as written a moment before it is
no-seal      a log that is taken over is read, but not sealed
sealed-end   whoever takes a log over reads on beyond its end
stale-image  a broker that does not know something says so without looking at the log
stale-reads  a broker that slept is as sure as ever that it leads
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from penstock.broker import partitions
from penstock.broker.context import Broker
from penstock.metadata.image import WalRef
from penstock.storage.wal import ScannedFlush
from penstock.storage.wal_objects import SEAL, ObjectWalStore
from penstock.wire.buffers import Buffer
from simulation.store import StoreView

EARLY_SECONDS = 0.3


@contextmanager
def fencing() -> Iterator[None]:
    real = StoreView.create

    async def create(self: StoreView, key: str, *parts: Buffer) -> bool:
        return await real(self, key, *parts) or _is_flush(key, parts)

    with mock.patch.object(StoreView, "create", create):
        yield


@contextmanager
def ack_early() -> Iterator[None]:
    real = StoreView.create

    async def create(self: StoreView, key: str, *parts: Buffer) -> bool:
        if not _is_flush(key, parts):
            return await real(self, key, *parts)
        contents = b"".join(parts)
        shared = self._shared
        shared.process.post_at(self._world.time() + EARLY_SECONDS, shared.create, key, contents)
        return True

    with mock.patch.object(StoreView, "create", create):
        yield


def _is_flush(key: str, parts: tuple[Buffer, ...]) -> bool:
    return key.startswith("wal/") and parts != (SEAL,)


@contextmanager
def no_seal() -> Iterator[None]:
    async def seal(self: ObjectWalStore, wal: WalRef, start: int = 0) -> int:
        return max(max(await self._sizes(wal), default=0), 0)

    with mock.patch.object(ObjectWalStore, "seal", seal):
        yield


@contextmanager
def sealed_end() -> Iterator[None]:
    real = ObjectWalStore.scan

    async def scan(self: ObjectWalStore, wal: WalRef, start: int, end: int) -> AsyncIterator[ScannedFlush]:
        async for flush in real(self, wal, start, end):
            yield flush
        for number, size in (await self._sizes(wal)).items():
            if number > end and size > len(SEAL):
                yield await self._scan_one(wal, number - 1, size)

    with mock.patch.object(ObjectWalStore, "scan", scan):
        yield


@contextmanager
def stale_image() -> Iterator[None]:
    async def caught_up(broker: Broker) -> bool:
        return True

    with mock.patch.object(partitions, "caught_up", caught_up):
        yield


@contextmanager
def stale_reads() -> Iterator[None]:
    with mock.patch.object(Broker, "leads_surely", True):
        yield


VARIANTS: dict[str, Any] = {
    "fencing": fencing,
    "ack-early": ack_early,
    "no-seal": no_seal,
    "sealed-end": sealed_end,
    "stale-image": stale_image,
    "stale-reads": stale_reads,
}
