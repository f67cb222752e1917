"""Brokers with something wrong with them, on purpose. A simulator that finds nothing here finds nothing.

fencing      a writer does not notice that its log was sealed
ack-early    a flush counts as written a moment before it is
no-seal      a log that is taken over is read, but not sealed
sealed-end   whoever takes a log over reads on beyond its end
stale-image  a broker that does not know something says so without looking at the log
stale-reads  a broker that slept is as sure as ever that it leads
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from penstock.broker import partitions
from penstock.broker.context import Broker
from penstock.metadata.image import WalRef
from penstock.storage.wal import ScannedFlush
from penstock.storage.wal_directory import DirectoryWalStore
from penstock.storage.wal_objects import SEAL, ObjectWalStore
from penstock.wire.buffers import Buffer
from simulation.disk import SimulatedFiles
from simulation.store import StoreView

EARLY_SECONDS = 0.3

Changes = list[tuple[Any, str, Any]]
"""Where, what, and what it is instead."""


def fencing() -> Changes:
    real, really_exists = StoreView.create, SimulatedFiles.exists

    async def create(self: StoreView, key: str, *parts: Buffer) -> bool:
        return await real(self, key, *parts) or _is_flush(key, parts)

    def exists(self: SimulatedFiles, path: str) -> bool:
        return really_exists(self, path) or path.endswith("/open")

    return [(StoreView, "create", create), (SimulatedFiles, "exists", exists)]


def ack_early() -> Changes:
    real, really_write = StoreView.create, SimulatedFiles.pwritev

    async def create(self: StoreView, key: str, *parts: Buffer) -> bool:
        if not _is_flush(key, parts):
            return await real(self, key, *parts)
        contents = b"".join(parts)
        shared = self._shared
        self._owner.post_at(self._world.time() + EARLY_SECONDS, shared.create, key, contents)
        return True

    def pwritev(self: SimulatedFiles, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        opened = self._open[fd]
        if "/wal/" not in opened.path or not position:
            return really_write(self, fd, buffers, position)
        copied = b"".join(buffers)
        when = self._disk.world.time() + EARLY_SECONDS
        self._process.post_at(when, self.write_to, opened, copied, position)
        return len(copied)

    return [(StoreView, "create", create), (SimulatedFiles, "pwritev", pwritev)]


def _is_flush(key: str, parts: tuple[Buffer, ...]) -> bool:
    return key.startswith("wal/") and parts != (SEAL,)


def no_seal() -> Changes:
    async def seal(self: ObjectWalStore, wal: WalRef, start: int = 0) -> int:
        return max(await self._sizes(wal), default=0)

    def seal_directory(self: DirectoryWalStore, wal: WalRef, start: int) -> int:
        return self._count(wal, start)

    return [(ObjectWalStore, "seal", seal), (DirectoryWalStore, "_seal", seal_directory)]


def sealed_end() -> Changes:
    real = ObjectWalStore.scan

    async def scan(self: ObjectWalStore, wal: WalRef, start: int, end: int) -> AsyncIterator[ScannedFlush]:
        async for flush in real(self, wal, start, end):
            yield flush
        for number, size in (await self._sizes(wal)).items():
            if number > end and size > len(SEAL):
                yield await self._scan_one(wal, number - 1, size)

    real_collect = DirectoryWalStore._collect

    def collect(self: DirectoryWalStore, wal: WalRef, start: int, end: int) -> list[ScannedFlush]:
        return real_collect(self, wal, start, max(end, self._count(wal, start)))

    return [(ObjectWalStore, "scan", scan), (DirectoryWalStore, "_collect", collect)]


def stale_image() -> Changes:
    async def caught_up(broker: Broker) -> bool:
        return True

    return [(partitions, "caught_up", caught_up)]


def stale_reads() -> Changes:
    return [(Broker, "leads_surely", True)]


VARIANTS: dict[str, Callable[[], Changes]] = {
    "fencing": fencing,
    "ack-early": ack_early,
    "no-seal": no_seal,
    "sealed-end": sealed_end,
    "stale-image": stale_image,
    "stale-reads": stale_reads,
}


@contextmanager
def broken(variant: str | None) -> Iterator[None]:
    """Brokers are like that meanwhile; None: they are sound."""
    with ExitStack() as stack:
        for place, name, instead in VARIANTS[variant]() if variant is not None else ():
            stack.enter_context(mock.patch.object(place, name, instead))
        yield
