"""The files of one log on a directory, read in order: for sealers, recovery and followers of a log."""

import os
from typing import NamedTuple

from penstock.log.flush import FILE_HEADER_SIZE, FileHeader
from penstock.metadata.image import WalRef
from penstock.storage.stores.files import store_error
from penstock.storage.stores.lanes import Lane
from penstock.storage.stores.local import LocalDirectory
from penstock.storage.stores.objects import ObjectMissingError
from penstock.storage.wal.log_file import LogFile, log_header
from penstock.storage.wal.port import NAME_DIGITS, WAL_PREFIX, ScannedFlush

OPEN = "open"
"""The file that is there while the incarnation may write."""
MISSED = "missed"
"""The file that is there if a loss of power does not explain that flushes are missing, or look torn: they
were known to be durable. If it names a boot, they were there when the log was sealed, and the machine does
not lose its power while that boot lasts."""


def log_directory(wal: WalRef) -> str:
    return f"{WAL_PREFIX}{wal.broker}/{wal.epoch}"


def file_key(wal: WalRef, first_flush: int) -> str:
    return f"{log_directory(wal)}/{first_flush:0{NAME_DIGITS}d}"


class LogFiles:
    """The files of one log. All calls may read the disk, and raise OSError."""

    def __init__(self, store: LocalDirectory, wal: WalRef, boot: bytes) -> None:
        """`boot`: the present one."""
        self._store = store
        self._wal = wal
        self._boot = boot
        self._header: FileHeader | None = None

    def first_flushes(self) -> list[int]:
        """The first flush of each file, which names it, in order. None if the log was not begun."""
        try:
            names = self._store.files.listdir(self._store.path(log_directory(self._wal)))
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isdecimal() and len(name) == NAME_DIGITS)

    def open(self, first_flush: int, firsts: list[int]) -> LogFile:
        """One of the files `firsts`. MisplacedFileError."""
        files = self._store.files
        if self._header is None:
            paths = (self._store.path(file_key(self._wal, first)) for first in firsts)
            self._header = log_header(files, paths, self._wal)
        key = file_key(self._wal, first_flush)
        path, syncs = self._store.path(key), self.was_durable()
        return LogFile(files, path, key, first_flush, self._boot, self._header, wal=self._wal, syncs=syncs)

    def was_durable(self) -> bool:
        """Whether a loss of power took nothing of the sealed log."""
        store = self._store
        if store.sync:
            return True
        try:
            fd = store.files.open(store.path(f"{log_directory(self._wal)}/{MISSED}"), os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            boot = store.files.pread(fd, len(self._boot) or 1, 0)
        finally:
            store.files.close(fd)
        return not boot or (any(boot) and boot == self._boot)

    def is_open(self) -> bool:
        """Whether the log is not sealed."""
        return self._store.files.exists(self._store.path(f"{log_directory(self._wal)}/{OPEN}"))


class TailRead(NamedTuple):
    flushes: list[ScannedFlush]
    certain: bool
    """Whether they count for ever. If not, only as many as the image says do."""


class FileTail:
    """A log from flush `start` on, read as it grows."""

    def __init__(self, store: LocalDirectory, wal: WalRef, start: int, boot: bytes | None = None) -> None:
        self.next_flush = start
        self._store = store
        self._directory = log_directory(wal)
        self._files = LogFiles(store, wal, store.files.boot_id() if boot is None else boot)
        self._first_flush = -1  # Names the file that reading goes on in; -1: not known yet.
        self._number = 0
        self._position = 0
        self._at_hole = False

    async def read_on(self, end: int | None = None) -> TailRead:
        """The flushes from `next_flush` on, below `end`. Without `end`, up to the last whole one."""
        try:
            return await self._store.run(self._read_on, end, lane=Lane.READ)
        except OSError as error:
            raise store_error(error, f"could not read {self._store.root}/{self._directory}") from error

    def _read_on(self, end: int | None) -> TailRead:
        firsts = self._files.first_flushes()
        if self._first_flush not in firsts:
            before = [first for first in firsts if first <= self.next_flush]
            if not before:
                return TailRead([], True)
            self._go_to(before[-1])
        found: list[ScannedFlush] = []
        while True:
            following = next((first for first in firsts if first > self._first_flush), None)
            found += self._read_file(firsts, following, end)
            if following is None or self._at_hole or (end is not None and self._number >= end):
                break
            if following != self._number:
                raise ObjectMissingError(f"flush {self._number} of {self._directory} is not there")
            self._go_to(following)
        return TailRead(found, self._files.is_open())

    def _go_to(self, first_flush: int) -> None:
        self._first_flush = self._number = first_flush
        self._position = FILE_HEADER_SIZE

    def _read_file(self, firsts: list[int], following: int | None, end: int | None) -> list[ScannedFlush]:
        """What is new in the present file, up to where the next one begins, and `end`."""
        try:
            file = self._files.open(self._first_flush, firsts)
        except FileNotFoundError:
            return []  # Deleted since the directory was listed.
        try:
            if end is not None and file.is_empty and self._files.was_durable():
                return []  # Flushes are gone, and may come back.
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
