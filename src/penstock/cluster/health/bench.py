"""The workbench of a scrub: bounded reads, checks in threads, and the findings so far.

A fixed number of works are under way at a time, and each holds one stretch of an object in memory. So memory
is bounded by their number, whatever the size of the store. Checksums are computed in threads.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, TypeVar

from penstock.cluster.health.findings import Finding, Report, Unread
from penstock.storage.stores.objects import ObjectStore
from penstock.wire.buffers import Buffer

T = TypeVar("T")

STRETCH_BYTES: Final = 2 * 1024 * 1024
"""Read and checked in one go; a larger batch is a stretch of its own."""

Progress = Callable[[int, int], None]
"""Called with the bytes that were read, and those that are to be read as far as that is known."""


class Bench:
    def __init__(self, store: ObjectStore, jobs: int, progress: Progress | None = None) -> None:
        self.store = store
        self.report = Report()
        self.planned_bytes = 0
        self._jobs = jobs
        self._progress = progress
        self._keys: set[str] = set()

    async def at_once(self, works: Iterable[Callable[[], Awaitable[None]]]) -> None:
        """Do all, as many at a time as there are jobs."""
        waiting = iter(works)

        async def worker() -> None:
            for work in waiting:
                await work()

        workers = [asyncio.create_task(worker()) for _ in range(self._jobs)]
        try:
            await asyncio.gather(*workers)
        finally:
            for one in workers:
                one.cancel()

    async def read(self, key: str, start: int, length: int) -> Buffer:
        stored = await self.store.get_range(key, start, length)
        self.count(key, length)
        return stored

    def count(self, key: str, size: int) -> None:
        totals = self.report.totals
        if key not in self._keys:
            self._keys.add(key)
            totals.objects += 1
        totals.bytes += size
        if self._progress is not None:
            self._progress(totals.bytes, max(totals.bytes, self.planned_bytes))

    async def check(self, work: Callable[..., T], *args: object) -> T:
        """Run what takes the processor some time."""
        return await asyncio.get_running_loop().run_in_executor(None, partial(work, *args))

    def damaged(self, finding: Finding) -> None:
        self.report.damaged.append(finding)

    def unread(self, key: str, reason: object) -> None:
        self.report.unread.append(Unread(key, str(reason)))
