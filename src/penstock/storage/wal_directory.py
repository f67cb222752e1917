"""Write-ahead logs on a local directory: numbered files that are appended to.

    wal/<broker>/<epoch>/open            present while the incarnation may write
    wal/<broker>/<epoch>/sealed          what `open` is renamed to
    wal/<broker>/<epoch>/<first flush>   the files

Sealing is renaming `open` to `sealed`. The writer appends (and syncs), then looks whether `open` is still
there, then acknowledges; the sealer renames, then reads the files to their end. If the writer still saw
`open`, its append came before the renaming, so the sealer sees it. If not, it acknowledges nothing. A
rename needs no space, so a log is sealed on a full disk too, and looking for a name that is there costs
the writer less than looking for one that is not. The directory appears with `open` (or, if the log is
sealed before it began, with `sealed`) in it, by renaming a whole directory, so there is no moment between.

A flush is one pwritev at a position that the writer remembers. A write that fails half-way is cut off
again; where even that fails, the next write goes to the same position, and the nonce and number in each
flush header keep what lies beyond it from being taken for a flush. An incomplete flush is in nobody's
count, so cutting it off cannot contradict a sealer. A flush that was written whole but could not be
synced, or whose seal could not be looked up, may be in a sealer's count: the incarnation ends there.
"""

import asyncio
import contextlib
import itertools
import os
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from penstock.entropy import SYSTEM, Entropy
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
    encode_file_header,
    iter_blocks,
)
from penstock.metadata.image import WalRef
from penstock.storage.directory import DirectoryStore
from penstock.storage.files import store_error
from penstock.storage.lanes import Lane
from penstock.storage.objects import StoreError
from penstock.storage.wal import Durable, Failed, Fenced, Outcome, ScannedFlush
from penstock.wire.batch import HEADER, HEADER_SIZE, check_batch
from penstock.wire.buffers import Buffer
from penstock.wire.errors import BatchError

_OPEN = "open"
_SEALED = "sealed"
_WINDOW_BYTES = 256 * 1024


def _directory(wal: WalRef) -> str:
    return f"wal/{wal.broker}/{wal.epoch}"


def _file_key(wal: WalRef, first_flush: int) -> str:
    return f"{_directory(wal)}/{first_flush:020d}"


class DirectoryWalWriter:
    """Appends flushes. All calls come from the loop; with `sync`, the disk is waited for in a thread."""

    depth = 1
    batches_max = 1000
    """One buffer per batch, and Linux takes 1024 in one call."""
    flushes_max = 1 << 62
    """They lie one after the other in a file: their bytes count."""

    def __init__(
        self, store: DirectoryStore, wal: WalRef, nonce: bytes, file_bytes: int, boot: bytes
    ) -> None:
        self.nonce = nonce
        self._store = store
        self._files = store.files
        self._wal = wal
        self._file_bytes = file_bytes
        self._boot = boot
        self._sync = store.sync
        self._open_path = store.path(f"{_directory(wal)}/{_OPEN}")
        self._fd = -1
        self._key = ""
        self._first_flush = 0
        self._position = 0
        self._rotate_at = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-wal") if self._sync else None
        self._under_way: asyncio.Future[Outcome] | None = None

    def write(
        self, number: int, parts: list[Buffer], size: int, done: Callable[[Outcome], None]
    ) -> Outcome | None:
        if self._thread is None:
            return self._write(number, parts, size)
        future = asyncio.get_running_loop().run_in_executor(self._thread, self._write, number, parts, size)
        self._under_way = future
        future.add_done_callback(lambda finished: done(finished.result()))
        return None

    def rotate(self, number: int) -> None:
        self._rotate_at = number

    def _write(self, number: int, parts: list[Buffer], size: int) -> Outcome:
        files = self._files
        if (
            self._fd < 0
            or self._position >= self._file_bytes
            or self._first_flush < self._rotate_at <= number
        ):
            try:
                self._begin_file(number)
            except OSError as error:
                return Failed(store_error(error, "could not begin a write-ahead file"))
        position = self._position
        try:
            written = files.pwritev(self._fd, parts, position) if len(parts) <= 1024 else 0
            if written != size:
                files.write_all(self._fd, parts, position)
        except OSError as error:
            with contextlib.suppress(OSError):  # Else the next write goes over it, at the same position.
                files.ftruncate(self._fd, position)
            return Failed(store_error(error, "could not write to the write-ahead log"))
        try:
            if self._sync:
                files.fdatasync(self._fd)
        except OSError as error:
            return Failed(store_error(error, "could not sync the write-ahead log"), fatal=True)
        if not files.exists(self._open_path):
            return Fenced()
        self._position = position + size
        return Durable(self._key, position)

    def _begin_file(self, number: int) -> None:
        """Close the present file and begin the next. On failure the present one stays usable."""
        key = _file_key(self._wal, number)
        header = FileHeader(
            FILE_SYNCED if self._sync else 0,
            self._wal.broker,
            self._wal.epoch,
            number,
            number,
            self.nonce,
            self._boot,
        )
        # A begun file of this name can only be left by an attempt that failed before its first flush.
        path = self._store.path(key)
        fd = self._files.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            self._files.write_all(fd, (encode_file_header(header),), 0)
            if self._sync:
                self._files.fdatasync(fd)
                self._files.sync_directory(os.path.dirname(path))
        except OSError:
            self._files.close(fd)
            raise
        if self._fd >= 0:
            self._files.close(self._fd)
        self._fd = fd
        self._key = key
        self._first_flush = number
        self._position = FILE_HEADER_SIZE

    async def close(self) -> None:
        if self._under_way is not None:
            await asyncio.wait((self._under_way,))
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1


class DirectoryWalStore:
    writes_come_late = False

    def __init__(
        self,
        store: DirectoryStore,
        *,
        file_bytes: int = 64 * 1024 * 1024,
        boot: bytes | None = None,
        entropy: Entropy = SYSTEM,
    ) -> None:
        self._store = store
        self._files = store.files
        self._file_bytes = file_bytes
        self._boot = store.files.boot_id() if boot is None else boot
        self._entropy = entropy

    async def create(self, wal: WalRef) -> DirectoryWalWriter | Fenced:
        created = await self._store.run(self._appear, wal, _OPEN, lane=Lane.LOG)
        if not created:
            return Fenced()
        return DirectoryWalWriter(self._store, wal, self._entropy.token(8), self._file_bytes, self._boot)

    def _appear(self, wal: WalRef, marker: str) -> bool:
        """Make the log's directory appear with `marker` in it; False if it is there already."""
        files = self._files
        path = self._store.path(_directory(wal))
        temporary = self._store.temporary_name()
        try:
            files.make_directories(os.path.dirname(path), sync=self._store.sync)
            files.mkdir(temporary)
            files.close(files.open(f"{temporary}/{marker}", os.O_WRONLY | os.O_CREAT))
            if self._store.sync:
                files.sync_directory(temporary)
            try:
                files.rename(temporary, path)
            except OSError:
                if not files.exists(path):
                    raise
                files.unlink(f"{temporary}/{marker}")
                files.rmdir(temporary)
                return False
            if self._store.sync:
                files.sync_directory(os.path.dirname(path))
            return True
        except OSError as error:
            raise store_error(error, f"could not begin the write-ahead log {path}") from error

    async def seal(self, wal: WalRef, start: int = 0) -> int:
        return await self._store.run(self._seal, wal, start, lane=Lane.LOG)

    def _seal(self, wal: WalRef, start: int) -> int:
        path = self._store.path(_directory(wal))
        try:
            if not self._files.exists(path):
                self._appear(wal, _SEALED)
            try:
                self._files.rename(f"{path}/{_OPEN}", f"{path}/{_SEALED}")
            except FileNotFoundError:
                if not self._files.exists(f"{path}/{_SEALED}"):
                    raise
            if self._store.sync:
                self._files.sync_directory(path)
            count = 0
            for flush in self._walk(wal, start, verify=True):
                count = flush.number + 1
            return count
        except OSError as error:
            raise store_error(error, f"could not seal {path}") from error

    async def read_ahead(self, wal: WalRef, start: int) -> None:
        """Files are read fast enough."""

    async def scan(self, wal: WalRef, start: int, end: int) -> AsyncIterator[ScannedFlush]:
        try:
            found = await self._store.run(self._collect, wal, start, end, lane=Lane.READ)
        except OSError as error:
            raise store_error(error, f"could not scan {_directory(wal)}") from error
        for flush in found:
            yield flush

    def _collect(self, wal: WalRef, start: int, end: int) -> list[ScannedFlush]:
        found = [flush for flush in self._walk(wal, start, verify=False, end=end) if flush.number >= start]
        if start < end and [flush.number for flush in found] != list(range(start, end)):
            raise StoreError(
                f"the write-ahead log {_directory(wal)} should hold flushes {start} to {end - 1},"
                f" but only {len(found)} of them are there"
            )
        return found

    def _first_flushes(self, wal: WalRef) -> list[int]:
        try:
            names = self._files.listdir(self._store.path(_directory(wal)))
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isdecimal())

    def _walk(
        self, wal: WalRef, start: int, *, verify: bool, end: int | None = None
    ) -> Iterator[ScannedFlush]:
        """The flushes of a log in order, until the first that is missing or not whole. Files with nothing
        but flushes below `start` are passed over."""
        expected: int | None = None
        firsts = self._first_flushes(wal)
        for first_flush in firsts[max(bisect_right(firsts, start) - 1, 0) :]:
            if end is not None and first_flush >= end:
                return
            if expected is not None and first_flush != expected:
                return
            expected = first_flush
            key = _file_key(wal, first_flush)
            fd = self._files.open(self._store.path(key), os.O_RDONLY)
            try:
                for flush in _FileScan(self, fd, key, first_flush).flushes(verify=verify):
                    if end is not None and flush.number >= end:
                        return
                    expected = flush.number + 1
                    yield flush
            finally:
                self._files.close(fd)

    async def delete_below(self, wal: WalRef, flush: int) -> None:
        firsts = await self._store.run(self._first_flushes, wal, lane=Lane.SWEEP)
        for first, following in itertools.pairwise(firsts):
            if following > flush:
                break
            await self._store.delete(_file_key(wal, first))

    async def delete(self, wal: WalRef) -> None:
        if self._files.exists(self._store.path(f"{_directory(wal)}/{_OPEN}")):
            raise StoreError(f"the write-ahead log {_directory(wal)} is not sealed")
        # The directory and `sealed` stay, for ever: an incarnation that slept since before it began its log
        # would begin it else, and acknowledge what it wrote there.
        for first in await self._store.run(self._first_flushes, wal, lane=Lane.SWEEP):
            await self._store.delete(_file_key(wal, first))

    async def close(self) -> None:
        """Nothing is held open here."""


class _Located(NamedTuple):
    header: FlushHeader
    position: int
    blocks: bytes


class _FileScan:
    """Walks one file by its flush headers and indexes, in reads of at least _WINDOW_BYTES.

    A process that was killed leaves whole flushes and at most one that was cut short: the index checksum
    finds it. A loss of power may leave holes anywhere in what was not synced, so files of another boot
    get their batches checked as well: the last flush of a synced file, all flushes of another.
    """

    def __init__(self, store: DirectoryWalStore, fd: int, key: str, first_flush: int) -> None:
        self._files = store._files
        self._fd = fd
        self._key = key
        self._first_flush = first_flush
        self._boot = store._boot
        self._size = self._files.size(fd)
        self._window = b""
        self._window_at = 0

    def flushes(self, *, verify: bool) -> Iterator[ScannedFlush]:
        try:
            file = decode_file_header(self._bytes(0, FILE_HEADER_SIZE))
        except FlushError:
            return
        if file.first_flush != self._first_flush:
            return
        suspect = verify and (file.boot != self._boot or not any(file.boot))
        held: _Located | None = None
        for located in self._located(file.nonce):
            if held is not None:
                if suspect and not file.flags & FILE_SYNCED and not self._batches_are_whole(held):
                    return
                yield self._scanned(held)
            held = located
        if held is not None and (not suspect or self._batches_are_whole(held)):
            yield self._scanned(held)

    def _located(self, nonce: bytes) -> Iterator[_Located]:
        position = FILE_HEADER_SIZE
        number = self._first_flush
        while True:
            try:
                header = decode_flush_header(self._bytes(position, FLUSH_HEADER_SIZE))
                if header.number != number or header.nonce != nonce:
                    return
                if position + header.size > self._size:
                    return
                index = self._bytes(position + FLUSH_HEADER_SIZE + header.data_size, header.index_size)
                check_index(header, index)
            except FlushError:
                return
            yield _Located(header, position, index)
            position += header.size
            number += 1

    def _scanned(self, located: _Located) -> ScannedFlush:
        header = located.header
        return ScannedFlush(
            header.number, self._key, located.position, header.time_ms, header.size, located.blocks
        )

    def _batches_are_whole(self, located: _Located) -> bool:
        for block in iter_blocks(located.blocks):
            for batch in block.batches():
                stored = self._files.pread(self._fd, batch.header.size, located.position + batch.position)
                try:
                    check_batch(stored)
                except BatchError:
                    return False
                if stored[:HEADER_SIZE] != HEADER.pack(*batch.header):
                    return False
        return True

    def _bytes(self, position: int, length: int) -> bytes:
        at = position - self._window_at
        if at < 0 or at + length > len(self._window):
            self._window = self._files.pread(self._fd, max(length, _WINDOW_BYTES), position)
            self._window_at = position
            at = 0
        return self._window[at : at + length]
