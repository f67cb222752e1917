"""Following a write-ahead log that somebody else is writing, without writing anything.

`read_on` gives the flushes that came since the last call, up to the last whole one. Whether those count is
a question, because the log may be sealed at any moment, and what a fenced writer appended after the seal was
never acknowledged:

    directory   The writer appends and then looks for `open`; the sealer renames it and then reads to the end.
                So does this reader: if `open` is still there after reading, every flush that was read lies
                before any seal and counts for ever. If it is not, the cluster image says where the log
                ends, or will say so shortly.
    objects     A seal is created at the first missing number. Every flush of an unbroken run lies before it.

Where the writer syncs, a flush can be seen before it would survive a loss of power. The reader syncs the file
itself, and reads the last flush from the disk: what it hands on is durable.

A flush that is hurt comes as damaged if the log goes on behind it; else it may be one that is being written.
What a loss of power took is for whoever seals the log to judge: until then reading stops before it.
"""

import asyncio
from typing import NamedTuple, Protocol

from penstock.log.flush import FILE_HEADER_SIZE, FileHeader
from penstock.metadata.image import WalRef
from penstock.storage.stores.files import store_error
from penstock.storage.stores.local import LocalDirectory
from penstock.storage.stores.objects import ObjectMissingError, ObjectStore
from penstock.storage.wal.log_file import LogFile, log_header
from penstock.storage.wal.objects import read_flush
from penstock.storage.wal.port import WAL_PREFIX, ScannedFlush

_OBJECTS_AT_ONCE = 16


class TailRead(NamedTuple):
    flushes: list[ScannedFlush]
    certain: bool
    """Whether they count for ever. If not, only as many as the image says do."""


class LogTail(Protocol):
    next_flush: int
    """The number of the flush that `read_on` looks for first."""

    async def read_on(self, end: int | None = None) -> TailRead:
        """The flushes from `next_flush` on, below `end`. Raises StoreError if they cannot be read.

        Nothing comes if those flushes were deleted since the caller learned of the log: its image is old."""


def follow_log(store: ObjectStore, wal: WalRef, start: int) -> LogTail:
    """The log of one incarnation, from flush `start` on."""
    if store.local is not None:
        return _FileTail(store.local, wal, start)
    return _ObjectTail(store, wal, start)


class _FileTail:
    def __init__(self, store: LocalDirectory, wal: WalRef, start: int) -> None:
        self.next_flush = start
        self._store = store
        self._files = store.files
        self._directory = f"{WAL_PREFIX}{wal.broker}/{wal.epoch}"
        self._first_flush = -1  # Names the file that reading goes on in; -1: not known yet.
        self._number = 0
        self._position = 0
        self._log: FileHeader | None = None
        self._boot = store.files.boot_id()
        self._at_hole = False

    async def read_on(self, end: int | None = None) -> TailRead:
        try:
            return await self._store.run(self._read_on, end)
        except OSError as error:
            raise store_error(error, f"could not read {self._store.root}/{self._directory}") from error

    def _read_on(self, end: int | None) -> TailRead:
        path = self._store.path(self._directory)
        try:
            names = self._files.listdir(path)
        except FileNotFoundError:
            return TailRead([], True)  # Not begun yet.
        firsts = sorted(int(name) for name in names if name.isdecimal())
        if self._first_flush not in firsts:
            before = [first for first in firsts if first <= self.next_flush]
            if not before:
                return TailRead([], True)
            self._go_to(before[-1])
        if self._log is None:
            self._log = log_header(self._files, (f"{path}/{first:020d}" for first in firsts))
        found: list[ScannedFlush] = []
        while True:
            following = next((first for first in firsts if first > self._first_flush), None)
            found += self._read_file(following, end)
            if following is None or self._at_hole or (end is not None and self._number >= end):
                break
            if following != self._number:
                raise ObjectMissingError(f"flush {self._number} of {self._directory} is not there")
            self._go_to(following)
        return TailRead(found, self._files.exists(f"{path}/open"))

    def _go_to(self, first_flush: int) -> None:
        self._first_flush = self._number = first_flush
        self._position = FILE_HEADER_SIZE

    def _read_file(self, following: int | None, end: int | None) -> list[ScannedFlush]:
        """What is new in the present file, up to where the next one begins, and `end`."""
        key = f"{self._directory}/{self._first_flush:020d}"
        try:
            file = LogFile(
                self._files, self._store.path(key), key, self._first_flush, self._boot, self._log,
                syncs=self._store.sync,
            )  # fmt: skip
        except FileNotFoundError:
            return []  # Deleted since the directory was listed.
        try:
            stop = min((one for one in (following, end) if one is not None), default=None)
            found = list(file.flushes(self._number, self._position, stop))
            if found and stop is None and file.synced:
                file.sync(found[-1].position)
                if not file.is_whole(found[-1]):
                    found.pop()
            torn = (at for at, one in enumerate(found) if one.damage is not None and one.damage.torn)
            hole = next(torn, None) if end is None else None
            self._at_hole = hole is not None
            found = found[:hole]
            file.tell(found)
        finally:
            file.close()
        if found:
            self._number = found[-1].number + 1
            self._position = found[-1].position + found[-1].size
        fresh = [flush for flush in found if flush.number >= self.next_flush]
        self.next_flush = max(self.next_flush, self._number)
        return fresh


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
