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
itself: what it hands on is durable.
"""

import asyncio
import os
from typing import NamedTuple, Protocol

from penstock.log.flush import (
    FILE_HEADER_SIZE,
    FILE_SYNCED,
    FLUSH_HEADER_SIZE,
    FileHeader,
    FlushError,
    FlushHeader,
    check_index,
    decode_file_header,
    decode_flush_header,
)
from penstock.metadata.image import WalRef
from penstock.storage.directory import DirectoryStore
from penstock.storage.files import store_error
from penstock.storage.objects import ObjectMissingError, ObjectStore
from penstock.storage.wal import WAL_PREFIX, ScannedFlush

_WINDOW_BYTES = 256 * 1024
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
    if isinstance(store, DirectoryStore):
        return _FileTail(store, wal, start)
    return _ObjectTail(store, wal, start)


class _FileTail:
    def __init__(self, store: DirectoryStore, wal: WalRef, start: int) -> None:
        self.next_flush = start
        self._store = store
        self._files = store.files
        self._directory = f"{WAL_PREFIX}{wal.broker}/{wal.epoch}"
        self._first_flush = -1  # Names the file that reading goes on in; -1: not known yet.
        self._number = 0
        self._position = 0

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
        found: list[ScannedFlush] = []
        while True:
            found += self._read_file(end)
            following = [first for first in firsts if first > self._first_flush]
            if not following or following[0] != self._number or (end is not None and self._number >= end):
                break
            self._go_to(following[0])
        return TailRead(found, self._files.exists(f"{path}/open"))

    def _go_to(self, first_flush: int) -> None:
        self._first_flush = self._number = first_flush
        self._position = FILE_HEADER_SIZE

    def _read_file(self, end: int | None) -> list[ScannedFlush]:
        key = f"{self._directory}/{self._first_flush:020d}"
        try:
            fd = self._files.open(self._store.path(key), os.O_RDONLY)
        except FileNotFoundError:
            return []  # Deleted since the directory was listed.
        try:
            window = _Window(self._store, fd)
            try:
                file = decode_file_header(window.bytes(0, FILE_HEADER_SIZE))
            except FlushError:
                return []  # The file was begun a moment ago.
            found = self._flushes(window, file, key, end)
            if found and file.flags & FILE_SYNCED:
                self._files.fdatasync(fd)
            return found
        finally:
            self._files.close(fd)

    def _flushes(self, window: "_Window", file: FileHeader, key: str, end: int | None) -> list[ScannedFlush]:
        found: list[ScannedFlush] = []
        while end is None or self._number < end:
            try:
                header = decode_flush_header(window.bytes(self._position, FLUSH_HEADER_SIZE))
                if header.number != self._number or header.nonce != file.nonce:
                    break
                index_at = self._position + FLUSH_HEADER_SIZE + header.data_size
                index = window.bytes(index_at, header.index_size)
                check_index(header, index)
            except FlushError:
                break
            if self._number >= self.next_flush:
                found.append(_scanned(header, key, self._position, index))
                self.next_flush = self._number + 1
            self._number += 1
            self._position += header.size
        return found


class _Window:
    """Reads a file a good piece at a time."""

    def __init__(self, store: DirectoryStore, fd: int) -> None:
        self._files = store.files
        self._fd = fd
        self._held = b""
        self._held_at = 0

    def bytes(self, position: int, length: int) -> bytes:
        at = position - self._held_at
        if at < 0 or at + length > len(self._held):
            self._held = self._files.pread(self._fd, max(length, _WINDOW_BYTES), position)
            self._held_at, at = position, 0
        return self._held[at : at + length]


class _ObjectTail:
    def __init__(self, store: ObjectStore, wal: WalRef, start: int) -> None:
        self.next_flush = start
        self._store = store
        self._prefix = f"{WAL_PREFIX}{wal.broker}/{wal.epoch}/"

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
        # Object 0 begins the log, so flush n is object n + 1. A seal is shorter than a header.
        key = f"{self._prefix}{number + 1:020d}"
        try:
            header = decode_flush_header(await self._store.get_range(key, 0, FLUSH_HEADER_SIZE))
            index_at = FLUSH_HEADER_SIZE + header.data_size
            index = bytes(await self._store.get_range(key, index_at, header.index_size))
            check_index(header, index)
        except (ObjectMissingError, FlushError):
            return None
        return _scanned(header, key, 0, index) if header.number == number else None


def _scanned(header: FlushHeader, key: str, position: int, index: bytes) -> ScannedFlush:
    return ScannedFlush(header.number, key, position, header.time_ms, header.size, index)
