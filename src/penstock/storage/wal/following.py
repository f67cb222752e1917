"""Follows a write-ahead log that another process is writing, without writing anything.

`read_on` gives the flushes that came since the last call, up to the last whole one. Do these count? The log
may be sealed at any moment, and flushes that a fenced writer appended after the seal were never acknowledged:

    directory   The writer appends and then looks for `open`; the sealer renames it and then reads to the end.
                So does this reader: if `open` is still there after reading, every flush that was read lies
                before any seal and counts for ever. If it is not, the cluster image says where the log
                ends, or will say so shortly.
    objects     A seal is created at the first missing number. Every flush of an unbroken run lies before it.

If the writer syncs, a flush can be seen before it would survive a loss of power. The reader syncs the file
itself, and reads the last flush from the disk: the flushes that it hands on are durable.

A hurt flush comes as damaged if the log goes on behind it; else it may be one that is being written. The
sealer of the log judges what a loss of power took: until then reading stops before it.
"""

import asyncio
from typing import Protocol

from penstock.metadata.image import WalRef
from penstock.storage.stores.objects import ObjectMissingError, ObjectStore
from penstock.storage.wal.file_tail import FileTail, TailRead
from penstock.storage.wal.objects import read_flush
from penstock.storage.wal.port import ScannedFlush

_OBJECTS_AT_ONCE = 16


class LogTail(Protocol):
    next_flush: int
    """The number of the flush that `read_on` looks for first."""

    async def read_on(self, end: int | None = None) -> TailRead:
        """The flushes from `next_flush` on, below `end`. Raises StoreError if they cannot be read.

        Nothing comes if those flushes were deleted since the caller learned of the log: its image is old."""


def follow_log(store: ObjectStore, wal: WalRef, start: int) -> LogTail:
    """The log of one incarnation, from flush `start` on."""
    if store.local is not None:
        return FileTail(store.local, wal, start)
    return _ObjectTail(store, wal, start)


class _ObjectTail:
    def __init__(self, store: ObjectStore, wal: WalRef, start: int) -> None:
        self.next_flush = start
        self._store = store
        self._wal = wal

    async def read_on(self, end: int | None = None) -> TailRead:
        found: list[ScannedFlush] = []
        window = 1  # Mostly there is nothing new, so one is asked for first.
        while end is None or self.next_flush < end:
            stop = self.next_flush + window if end is None else min(end, self.next_flush + window)
            numbers = range(self.next_flush, stop)
            for flush in await asyncio.gather(*map(self._read_one, numbers)):
                if flush is None:
                    return TailRead(found, True)
                found.append(flush)
                self.next_flush += 1
            window = min(window * 2, _OBJECTS_AT_ONCE)
        return TailRead(found, True)

    async def _read_one(self, number: int) -> ScannedFlush | None:
        try:
            return await read_flush(self._store, self._wal, number)
        except ObjectMissingError:
            return None
