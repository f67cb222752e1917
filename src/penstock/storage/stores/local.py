"""A directory on this machine: names, files that are not finished yet, threads, and which processes share it.

A store on a directory is one (`DirectoryStore`), and its port says so (`ObjectStore.local`). Some things rest
on it because only files can do them: logs that are appended to, copies that the kernel makes, second names,
processes that can be seen to run.

- A new file is written under a temporary name and linked to its own. Linking fails if the name exists, so
  exactly one of many wins, and a name that exists has its whole contents.
- A process that writes unfinished files holds a lock (`tmp/<token>.lock`) as long as it lives. The next sweep
  deletes the unfinished files of a killed process.
- Small files can be created on a full disk as well: that frees space (`reserve`).
- A directory whose disk went away (unmounted, pulled out) looks empty. So once a cluster was seen in it, and
  its mark is gone, nothing is said to be missing and nothing is written: the store is unavailable.
"""

import asyncio
import contextlib
import errno
import itertools
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from penstock.entropy import SYSTEM, Entropy
from penstock.storage.stores.descriptors import Descriptors
from penstock.storage.stores.files import FileInfo, Files, is_full, store_error
from penstock.storage.stores.lanes import Lane, lane_of_delete, lane_of_write
from penstock.storage.stores.mounts import filesystem_of, is_network, resting_place
from penstock.storage.stores.objects import ObjectMissingError, StoreError, StoreUnavailableError
from penstock.storage.stores.presence import Presence, hold, is_held
from penstock.storage.stores.reserve import Reserve
from penstock.wire.buffers import Buffer

T = TypeVar("T")

TEMPORARY = "tmp"
TORN = "torn"
"""Where torn objects are kept, for people to look at."""
_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_MARK = "meta/cluster"
"""In every store that a cluster lives in, also where its metadata log lives elsewhere."""
_SWEPT = ("segments", "manifests")
"""Where incarnations that are over leave empty directories."""
_LOCK_SUFFIX = ".lock"
_RESERVED_BYTES_MAX = 64 * 1024  # Entries of the metadata log and manifests, not records.


def is_key(name: str) -> bool:
    """Whether a file of this name can be an object."""
    return _KEY.fullmatch(name) is not None


class LocalDirectory:
    def __init__(
        self,
        root: str,
        *,
        sync: bool = False,
        files: Files | None = None,
        threads: int = 4,
        entropy: Entropy = SYSTEM,
    ) -> None:
        """`threads`: for each lane, at most."""
        self.root = os.path.abspath(root)
        self.files = files or Files()
        self.sync = sync
        self._token = entropy.token(6).hex()
        self._writing = threading.Lock()
        self._written = False
        self._lock = -1
        self._names = itertools.count()
        self._executors = {
            lane: ThreadPoolExecutor(threads, thread_name_prefix=f"penstock-{lane.value}") for lane in Lane
        }
        self._founded = False
        self.descriptors = Descriptors(self.files, self.root)
        self._reserve = Reserve(self.root, self.files)
        self._parents: set[str] = set()
        self._synced_parents: set[str] = set()

    def presence(self) -> Presence:
        """Which of the processes that share this directory are running."""
        return Presence(self.root, self.files, self._token)

    def network_filesystem(self) -> str:
        """What kind of network file system this lies on; "" on a local one."""
        kind = filesystem_of(resting_place(self.root), self.files.mounts())
        return kind if is_network(kind) else ""

    def path(self, key: str) -> str:
        if not is_key(key):
            raise StoreError(f"{key!r} is not a key")
        return f"{self.root}/{key}"

    async def run(self, work: Callable[..., T], *args: object, lane: Lane = Lane.WRITE) -> T:
        """Run blocking work in this store's threads."""
        return await asyncio.get_running_loop().run_in_executor(self._executors[lane], work, *args)

    def require_disk(self) -> None:
        """Raises StoreUnavailableError if a cluster was here and is not any more."""
        if self.files.exists(f"{self.root}/{_MARK}"):
            self._founded = True
        elif self._founded:
            raise StoreUnavailableError(f"{self.root} does not hold the cluster any more: is its disk there?")

    def error(self, error: OSError, what: str) -> StoreError:
        """The port's error: nothing is missing where everything is."""
        told = store_error(error, what)
        if isinstance(told, ObjectMissingError):
            try:
                self.require_disk()
            except StoreUnavailableError as gone:
                return gone
        return told

    # Writing.

    async def create_durable(self, key: str, *parts: Buffer) -> bool:
        """`create`, and what is there afterwards survives a loss of power, in any mode."""
        return await self.run(self.create_file, self.path(key), parts, True, lane=lane_of_write(key))

    def create_file(self, path: str, parts: Sequence[Buffer], sync: bool) -> bool:
        """`create`, of a file by its path. `sync`: it survives a loss of power. Blocks."""
        if self.files.exists(path):
            return False  # Known without writing: also on a full disk.
        self.require_disk()
        while True:
            try:
                created = self._write_and_link(path, parts, sync)
                break
            except OSError as error:
                small = sum(map(len, parts)) <= _RESERVED_BYTES_MAX
                if not (small and is_full(error) and self._reserve.release()):
                    raise self.error(error, f"could not create {path}") from error
        self._reserve.refill()
        return created

    def _write_and_link(self, path: str, parts: Sequence[Buffer], sync: bool) -> bool:
        temporary = self.write_temporary(parts, sync)
        try:
            return self.link(temporary, path, sync=sync)
        finally:
            # The name was given or not, whatever becomes of the other one. It is swept.
            with contextlib.suppress(OSError):
                self.files.unlink(temporary)

    def link(self, source: str, path: str, *, sync: bool = False) -> bool:
        """Give a whole file the name `path`, unless that exists. Raises OSError."""
        sync = sync or self.sync
        self.make_parent(path, sync)
        try:
            self.files.link(source, path)
        except FileExistsError:
            return False
        except FileNotFoundError:
            # Another process may have swept the empty directory meanwhile.
            self._forget_parent(os.path.dirname(path))
            self.make_parent(path, sync)
            self.files.link(source, path)
        if sync:
            try:
                self.files.sync_directory(os.path.dirname(path))
            except OSError as error:
                # The name is there, and may be gone after a loss of power: in doubt, whatever the reason.
                raise OSError(errno.EIO, f"its directory was not synced: {error.strerror}") from error
        return True

    def temporary_name(self) -> str:
        """A name for a file that is not finished yet, in a directory that exists."""
        name = f"{self.root}/{TEMPORARY}/{self._token}-{next(self._names)}"
        self.make_parent(name, False)
        with self._writing:
            if not self._written:
                self._written = True
                # Without a lock, what a killed process leaves is told by its age.
                with contextlib.suppress(OSError):
                    self._lock = hold(self.files, self._lock_path(), "new")
        return name

    def _lock_path(self) -> str:
        return f"{self.root}/{TEMPORARY}/{self._token}{_LOCK_SUFFIX}"

    def write_temporary(self, parts: Sequence[Buffer], sync: bool) -> str:
        """The path of a new file with these contents that has no name of its own yet. Raises OSError."""
        name = self.temporary_name()
        fd = self.files.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            self.files.write_all(fd, parts, 0)
            if sync:
                self.files.fdatasync(fd)
        except BaseException:
            with contextlib.suppress(OSError):
                self.files.unlink(name)
            raise
        finally:
            self.files.close(fd)
        return name

    def make_parent(self, path: str, sync: bool) -> None:
        """The directory that `path` lies in is there afterwards. Raises OSError."""
        parent = os.path.dirname(path)
        if parent not in self._parents:
            is_new = not self.files.exists(self.root)
            self.files.make_directories(parent, sync=sync)
            if is_new:
                # Records and derived keys of passwords are the owner's alone. Who wants it otherwise makes
                # the directory beforehand, or changes its mode: an existing one keeps it.
                self.files.restrict(self.root)
            self._parents.add(parent)
        if sync and parent not in self._synced_parents:
            # They may have been made without a sync, by this process or another one.
            above = parent
            while above != self.root:
                above = os.path.dirname(above)
                self.files.sync_directory(above)
            self._synced_parents.add(parent)

    def _forget_parent(self, parent: str) -> None:
        self._parents.discard(parent)
        self._synced_parents.discard(parent)

    def put_durable(self, path: str, contents: bytes) -> None:
        """Replace a file, in any mode so that it survives a loss of power. It keeps no spare. Blocks."""
        self.require_disk()
        self.make_parent(path, True)
        name = self.write_temporary((contents,), True)
        try:
            self.files.rename(name, path)
        except OSError:
            with contextlib.suppress(OSError):
                self.files.unlink(name)
            raise
        self.files.sync_directory(os.path.dirname(path))

    # Keeping in order.

    async def delete(self, key: str) -> None:
        """Remove a file; removing what is not there is fine."""
        path = self.path(key)
        self.descriptors.drop(key)
        try:
            await self.run(self.files.unlink, path, lane=lane_of_delete(key))
        except FileNotFoundError:
            self.require_disk()
        except OSError as error:
            raise self.error(error, f"could not delete {path}") from error

    def let_go(self) -> None:
        """Close files that other processes deleted and that are open here."""
        self.descriptors.drop_deleted()

    async def sweep(self, before_ms: int) -> None:
        """Remove unfinished files that killed processes left, and empty directories. A process whose lock is
        not there may live: its files go if they were touched before that time and not since."""
        await self.run(self._sweep, before_ms / 1000, lane=Lane.SWEEP)

    def _sweep(self, before: float) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._sweep_unfinished(f"{self.root}/{TEMPORARY}", before)
        for entry in self.files.entries(self.root):
            if entry.name in _SWEPT:
                self._sweep_empty(f"{self.root}/{entry.name}", entry, before)

    def _sweep_unfinished(self, path: str, before: float) -> None:
        found = self.files.entries(path)
        living: set[str] = set()
        dead: set[str] = set()
        for entry in found:
            if entry.name.endswith(_LOCK_SUFFIX):
                with contextlib.suppress(OSError):
                    held = is_held(self.files, f"{path}/{entry.name}")
                    (living if held else dead).add(entry.name.removesuffix(_LOCK_SUFFIX))
        # The lock of the dead goes last: without it their files would have to grow old.
        for entry in sorted(found, key=lambda one: one.name.endswith(_LOCK_SUFFIX)):
            writer, is_lock = _writer_of(entry.name), entry.name.endswith(_LOCK_SUFFIX)
            if writer in dead or (entry.modified < before and not (is_lock and writer in living)):
                with contextlib.suppress(OSError):
                    self._remove(f"{path}/{entry.name}", entry)

    def _sweep_empty(self, path: str, entry: FileInfo, before: float) -> None:
        with contextlib.suppress(OSError):
            for below in self.files.entries(path):
                if below.is_directory:
                    self._sweep_empty(f"{path}/{below.name}", below, before)
            if entry.modified < before:
                self.files.rmdir(path)  # Fails if it is not empty.
                self._forget_parent(path)

    def _remove(self, path: str, entry: FileInfo) -> None:
        if not entry.is_directory:
            self.files.unlink(path)
            return
        for name in self.files.listdir(path):
            self.files.unlink(f"{path}/{name}")
        self.files.rmdir(path)

    def close_files(self) -> None:
        """Release descriptors and threads."""
        self.descriptors.close()
        for executor in self._executors.values():
            executor.shutdown(wait=True, cancel_futures=True)
        if self._lock >= 0:
            with contextlib.suppress(OSError):
                self.files.unlink(self._lock_path())
            self.files.close(self._lock)
            self._lock = -1


def _writer_of(name: str) -> str:
    """The token of whoever made an unfinished file, or holds a lock."""
    return name.removesuffix(_LOCK_SUFFIX).partition("-")[0]
