"""Write-ahead logs on a local directory: numbered files that are appended to.

    wal/<broker>/<epoch>/open            present while the incarnation may write
    wal/<broker>/<epoch>/sealed          what `open` is renamed to
    wal/<broker>/<epoch>/missed          what is not there, or not whole, was not taken by a loss of power: it
                                         was known to be durable; or, in the boot that the file names, it
                                         was there when the log was sealed
    wal/<broker>/<epoch>/<first flush>   the files

Sealing is renaming `open` to `sealed`. The writer appends (and syncs), then looks whether `open` is still
there, then acknowledges. The sealer renames, then reads the files to their end. If the writer still saw
`open`, its append came before the renaming, so the sealer sees it. If not, it acknowledges nothing. A rename
needs no space, so a log is sealed on a full disk too. And a look for a name that is there costs the writer
less than a look for one that is not. The directory appears with `open` (or, if the log is sealed before it
began, with `sealed`) in it, by renaming a whole directory, so there is no moment between. If both are gone,
as in a copy that was made while the log was sealed, nobody can acknowledge either, and the sealer makes
`sealed` anew.

A flush is one pwritev at a position that the writer remembers. The writer cuts a write off again that failed
half-way; if even that fails, the next write goes to a new file. No sealer counts an incomplete flush, so
cutting it off cannot contradict a sealer. A sealer may count a flush that was written whole but could not be
synced, or whose seal could not be looked up: the incarnation ends there.

A file may lose its name while it is written: somebody deletes it, restores an older copy of it, or puts a
copy of the whole store in its place. Nobody would ever read what goes into it from then on. So the writer
also looks whether the name still stands for the file that it has open. If not, it writes all of it anew under
that name, from what it has open, and acknowledges nothing before that is done. Without syncing, where the
look itself would be a good part of the cost of a flush, it looks each time whether the file has a name at
all, and ten times a second whether that is this one.
"""

import asyncio
import contextlib
import errno
import itertools
import logging
import os
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor

from penstock.entropy import SYSTEM, Entropy
from penstock.log.flush import FILE_HEADER_SIZE, FILE_SYNCED, FileHeader, encode_file_header
from penstock.metadata.image import WalRef
from penstock.storage.stores.files import Inode, store_error
from penstock.storage.stores.lanes import Lane
from penstock.storage.stores.local import LocalDirectory
from penstock.storage.stores.objects import ObjectMissingError, StoreError
from penstock.storage.wal.file_tail import MISSED, OPEN, FileTail, LogFiles, file_key, log_directory
from penstock.storage.wal.log_file import LogFile
from penstock.storage.wal.port import Durable, Failed, Fenced, Outcome, ScannedFlush
from penstock.wire.buffers import Buffer

_SEALED = "sealed"
_COPY_BYTES = 1 << 20
LOOK_SECONDS = 0.1
_NONE = 1 << 62

logger = logging.getLogger(__name__)


class DirectoryWalWriter:
    """Appends flushes. All calls come from the loop; with `sync`, the disk is waited for in a thread."""

    depth = 1
    batches_max = 1000
    """One buffer per batch, and Linux takes 1024 in one call."""
    flushes_max = 1 << 62
    """They lie one after the other in a file: their bytes count."""

    def __init__(
        self, store: LocalDirectory, wal: WalRef, nonce: bytes, file_bytes: int, boot: bytes
    ) -> None:
        self.nonce = nonce
        self._store = store
        self._files = store.files
        self._wal = wal
        self._file_bytes = file_bytes
        self._boot = boot
        self._sync = store.sync
        self._open_path = store.path(f"{log_directory(wal)}/{OPEN}")
        self._fd = -1
        self._key = ""
        self._path = ""
        self._inode: Inode = (0, 0)
        self._look_at = 0.0
        """When to look again, without syncing, what the name stands for."""
        self._first_flush = 0
        self._position = 0
        self._rotations: deque[int] = deque()
        """Flushes that are to begin a file. Several, if they are asked for while one waits for the disk."""
        self._spoilt = False
        self._time = asyncio.get_running_loop().time
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
        if not self._rotations or self._rotations[-1] != number:
            self._rotations.append(number)

    def _write(self, number: int, parts: list[Buffer], size: int) -> Outcome:
        files = self._files
        rotations = self._rotations
        while rotations and rotations[0] <= self._first_flush:
            rotations.popleft()
        if (
            self._fd < 0
            or self._spoilt
            or self._position >= self._file_bytes
            or (rotations and rotations[0] <= number)
        ):
            if not files.exists(self._open_path):
                return Fenced()
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
            self._cut_off(position)
            return Failed(store_error(error, "could not write to the write-ahead log"))
        try:
            if self._sync:
                files.fdatasync(self._fd)
        except OSError as error:
            return Failed(store_error(error, "could not sync the write-ahead log"), fatal=True)
        if not files.exists(self._open_path):
            return Fenced()
        if self._sync or not files.has_name(self._fd, self._path) or self._time() >= self._look_at:
            try:
                restored = self._keep_name(position + size)
            except OSError as error:
                self._cut_off(position)
                return Failed(store_error(error, "could not restore the write-ahead file"))
            if restored and not files.exists(self._open_path):
                return Fenced()
        self._position = position + size
        return Durable(self._key, position)

    def _cut_off(self, position: int) -> None:
        """Take back a flush that failed."""
        try:
            self._files.ftruncate(self._fd, position)
        except OSError:
            # What is left there may be longer than the next flush, and look like a damaged one after it.
            self._spoilt = True

    def _keep_name(self, end: int) -> bool:
        """Make sure that the present file, up to `end`, is what its name stands for; whether it was not."""
        files = self._files
        self._look_at = self._time() + LOOK_SECONDS
        with contextlib.suppress(FileNotFoundError):
            if files.inode(self._path) == self._inode:
                return False
        name = self._store.temporary_name()
        fd = files.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            for at in range(0, end, _COPY_BYTES):
                files.write_all(fd, (self._read(at, min(_COPY_BYTES, end - at)),), at)
            if self._sync:
                files.fdatasync(fd)
            inode = files.inode(fd)
            files.rename(name, self._path)
            if self._sync:
                files.sync_directory(os.path.dirname(self._path))
        except OSError:
            files.close(fd)
            with contextlib.suppress(OSError):
                files.unlink(name)
            raise
        files.close(self._fd)
        self._fd, self._inode = fd, inode
        logger.warning("a write-ahead file was deleted or replaced, and was written anew file=%s", self._key)
        return True

    def _read(self, start: int, length: int) -> bytes:
        parts = []
        while length:
            part = self._files.pread(self._fd, length, start)
            if not part:
                raise OSError(errno.EIO, "it was cut short")
            parts.append(part)
            start += len(part)
            length -= len(part)
        return b"".join(parts)

    def _begin_file(self, number: int) -> None:
        """Close the present file and begin the next. On failure the present one stays usable."""
        if self._fd >= 0:
            self._keep_name(self._position)
        key = file_key(self._wal, number)
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
            inode = self._files.inode(fd)
        except OSError:
            self._files.close(fd)
            self._forget_file(path)
            raise
        if self._fd >= 0:
            self._files.close(self._fd)
        self._fd = fd
        self._key = key
        self._path = path
        self._inode = inode
        self._first_flush = number
        self._position = FILE_HEADER_SIZE
        self._spoilt = False

    def _forget_file(self, path: str) -> None:
        """A file that was begun in vain says by its name that its flush is in it. If it cannot be deleted,
        the flush must go there."""
        try:
            self._files.unlink(path)
        except OSError:
            self._spoilt = True

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
        store: LocalDirectory,
        *,
        file_bytes: int = 64 * 1024 * 1024,
        boot: bytes | None = None,
        entropy: Entropy = SYSTEM,
    ) -> None:
        self._store = store
        self._files = store.files
        self._file_bytes = file_bytes
        self.boot = store.files.boot_id() if boot is None else boot
        self.survives_boot = store.sync
        self._entropy = entropy

    async def create(self, wal: WalRef) -> DirectoryWalWriter | Fenced:
        created = await self._store.run(self._appear, wal, OPEN, lane=Lane.LOG)
        if not created:
            return Fenced()
        return DirectoryWalWriter(self._store, wal, self._entropy.token(8), self._file_bytes, self.boot)

    def _appear(self, wal: WalRef, marker: str) -> bool:
        """Make the log's directory appear with `marker` in it; False if it is there already."""
        files = self._files
        path = self._store.path(log_directory(wal))
        try:
            temporary = self._store.temporary_name()
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

    async def seal(self, wal: WalRef, start: int = 0, said: int = 0) -> int:
        count, torn = await self._store.run(self._seal, wal, start, lane=Lane.LOG)
        if count < said or torn < said:
            await self._store.run(self._miss, wal, lane=Lane.LOG)
        elif torn == _NONE and start < count:
            # Where there is no room for the marker, only later damage is told less well.
            with contextlib.suppress(StoreError):
                await self._store.run(self._miss, wal, self.boot, lane=Lane.LOG)
        return max(count, said)

    def _miss(self, wal: WalRef, boot: bytes = b"") -> None:
        """Make the marker. With `boot`, it is for that boot alone, and does not replace one for all."""
        path = self._store.path(log_directory(wal))
        try:
            if boot and self._files.exists(f"{path}/{MISSED}"):
                return
            self._files.rename(self._store.write_temporary((boot,), bool(boot)), f"{path}/{MISSED}")
            self._files.sync_directory(path)
        except OSError as error:
            raise store_error(error, f"could not seal {path}") from error

    def _seal(self, wal: WalRef, start: int) -> tuple[int, int]:
        path = self._store.path(log_directory(wal))
        try:
            if not self._files.exists(path):
                self._appear(wal, _SEALED)
            try:
                self._files.rename(f"{path}/{OPEN}", f"{path}/{_SEALED}")
            except FileNotFoundError:
                if not self._files.exists(f"{path}/{_SEALED}"):
                    self._files.close(self._files.open(f"{path}/{_SEALED}", os.O_WRONLY | os.O_CREAT))
            # Without durability=fsync nobody did so yet, up to the store itself.
            of_broker = os.path.dirname(path)
            for directory in (path, of_broker, os.path.dirname(of_broker), self._store.root):
                self._files.sync_directory(directory)
            return self._count(wal, start)
        except OSError as error:
            raise store_error(error, f"could not seal {path}") from error

    def _count(self, wal: WalRef, start: int) -> tuple[int, int]:
        """Where a sealed log ends, and the first flush of it that looks torn, if one does."""
        count, torn = 0, _NONE
        files = LogFiles(self._store, wal, self.boot)
        firsts = files.first_flushes()
        for at in range(max(bisect_right(firsts, start) - 1, 0), len(firsts)):
            following = firsts[at + 1] if at + 1 < len(firsts) else None
            file = files.open(firsts[at], firsts)
            try:
                end, first_torn = self._end_in(file, following)
                count, torn = max(count, end), min(torn, first_torn)
            finally:
                file.close()
        return count, torn

    def _end_in(self, file: LogFile, following: int | None) -> tuple[int, int]:
        """The end of the log as far as one file tells, and its first torn flush; `log_file` says by which
        rules."""
        may_hole = file.synced or not file.same_boot
        # Whoever begins a file has written all before it; unless the disk was not told to keep that.
        count = file.first_flush if file.synced or file.same_boot else 0
        if following is None or not file.synced:
            # How many flushes count is written down for good, so they must outlive a loss of power too.
            file.sync()
        held: ScannedFlush | None = None
        torn = _NONE
        for flush in file.flushes(stop=following, sealed=True):
            if held is not None and (file.synced or self._counts(file, held, may_hole=may_hole)):
                count = held.number + 1
            if flush.damage is not None and flush.damage.torn:
                torn = min(torn, flush.number)
            held = flush
        if held is not None and self._counts(file, held, may_hole=may_hole):
            count = held.number + 1
        return count, torn

    def _counts(self, file: LogFile, flush: ScannedFlush, *, may_hole: bool) -> bool:
        """Whether a flush was written whole, for all that can be told from it alone. A process that is killed
        leaves no holes, so its batches need no look."""
        if not may_hole:
            return True
        return file.is_whole(flush) or not file.is_torn(flush)

    async def read_ahead(self, wal: WalRef, start: int) -> None:
        """Files are read fast enough."""

    async def scan(self, wal: WalRef, start: int, end: int) -> AsyncIterator[ScannedFlush]:
        found = (await FileTail(self._store, wal, start, self.boot).read_on(end)).flushes
        if len(found) < end - start:
            missing = start + len(found)
            raise ObjectMissingError(
                f"flush {missing} of the write-ahead log {log_directory(wal)} is missing"
            )
        for flush in found:
            yield flush

    def _first_flushes(self, wal: WalRef) -> list[int]:
        return LogFiles(self._store, wal, self.boot).first_flushes()

    async def delete_below(self, wal: WalRef, flush: int) -> None:
        firsts = await self._store.run(self._first_flushes, wal, lane=Lane.SWEEP)
        for first, following in itertools.pairwise(firsts):
            if following > flush:
                break
            await self._store.delete(file_key(wal, first))

    async def delete(self, wal: WalRef) -> None:
        if self._files.exists(self._store.path(f"{log_directory(wal)}/{OPEN}")):
            raise StoreError(f"the write-ahead log {log_directory(wal)} is not sealed")
        # The directory and `sealed` stay, for ever: an incarnation that slept since before it began its log
        # would begin it else, and acknowledge what it wrote there.
        for first in await self._store.run(self._first_flushes, wal, lane=Lane.SWEEP):
            await self._store.delete(file_key(wal, first))
        await self._store.delete(f"{log_directory(wal)}/{MISSED}")

    async def close(self) -> None:
        """Nothing is held open here."""
