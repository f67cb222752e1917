"""The store on a local directory: one broker, or several broker processes on one machine, share it.

- `create` writes a temporary file and links it to its name. Linking fails if the name exists, so exactly
  one of many callers wins, and a name that exists has its whole contents.
- `put` never needs new space once a key was written: it overwrites a spare file of the same size and
  renames it into place, keeping the replaced file as the next spare. A lease is renewed on a full disk.
- Small objects can be created on a full disk as well: that frees space (`reserve`).
- With `sync`, contents are synced before they get their name, and the directory afterwards. The metadata log
  is written so in any mode: a cluster whose newest entry a power cut emptied could not start. So is what
  `create_durable` writes: objects that others are deleted for.
- Reading first asks the page cache without waiting (RWF_NOWAIT), from the loop; what is not there is
  read by a thread. Each lane has threads of its own (`lanes`).
- A directory whose disk went away (unmounted, pulled out) looks empty. So once a cluster was seen in it, and
  its mark is gone, nothing is said to be missing and nothing is written: the store is unavailable.

Network file systems that cache names on the client do not give the guarantee that `create` and sealing
rest on; several brokers on one directory means several processes on one machine (`mounts`).
"""

import asyncio
import contextlib
import errno
import itertools
import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from penstock.entropy import SYSTEM, Entropy
from penstock.storage.stores.descriptors import Descriptors, OpenFile
from penstock.storage.stores.files import Entry, Files, is_full, store_error
from penstock.storage.stores.lanes import Lane, lane_of_delete, lane_of_list, lane_of_read, lane_of_write
from penstock.storage.stores.mounts import filesystem_of, is_network, resting_place
from penstock.storage.stores.objects import (
    DatedObject,
    ObjectInfo,
    ObjectMissingError,
    ObjectShortError,
    StoreError,
    StoreUnavailableError,
)
from penstock.storage.stores.presence import DIRECTORY as PRESENCE
from penstock.storage.stores.presence import Presence
from penstock.storage.stores.reserve import NAME as RESERVE
from penstock.storage.stores.reserve import Reserve
from penstock.wire.buffers import Buffer

T = TypeVar("T")

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_TEMPORARY = "tmp"
_MARK = "meta/cluster"
"""In every store that a cluster lives in, also where its metadata log lives elsewhere."""
TORN = "torn"
"""Where torn objects are kept, for people to look at."""
_NOT_OBJECTS = (_TEMPORARY, TORN, PRESENCE, RESERVE)
_SWEPT = ("segments", "manifests")
"""Where incarnations that are over leave empty directories."""
_DURABLE = "meta/"
_ONLY_A_HINT = "meta/hint"
_INLINE_BYTES = 64 * 1024  # Written from the loop: a thread costs more than that much page cache.
_SPARE_BYTES_MAX = 4096
_RESERVED_BYTES_MAX = 64 * 1024  # Entries of the metadata log and manifests, not records.
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


class DirectoryStore:
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
        self._names = itertools.count()
        self._executors = {
            lane: ThreadPoolExecutor(threads, thread_name_prefix=f"penstock-{lane.value}") for lane in Lane
        }
        self._founded = False
        self.descriptors = Descriptors(self.files, self.root)
        self._reserve = Reserve(self.root, self.files)
        self._parents: set[str] = set()
        self._synced_parents: set[str] = set()
        self._spares: dict[str, tuple[str, int]] = {}
        self._published: dict[str, int] = {}

    def presence(self) -> Presence:
        """Which of the processes that share this directory are running."""
        return Presence(self.root, self.files, self._token)

    def network_filesystem(self) -> str:
        """What kind of network file system this lies on; "" on a local one."""
        kind = filesystem_of(resting_place(self.root), self.files.mounts())
        return kind if is_network(kind) else ""

    def path(self, key: str) -> str:
        if not _KEY.fullmatch(key):
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

    async def create(self, key: str, *parts: Buffer) -> bool:
        sync = self._syncs(key)
        path = self.path(key)
        if sync or sum(map(len, parts)) > _INLINE_BYTES:
            return await self.run(self._create, path, parts, sync, lane=lane_of_write(key))
        return self._create(path, parts, sync)

    async def create_durable(self, key: str, *parts: Buffer) -> bool:
        """`create`, and what is there afterwards survives a loss of power, in any mode."""
        return await self.run(self._create, self.path(key), parts, True, lane=lane_of_write(key))

    def _syncs(self, key: str) -> bool:
        return self.sync or _is_durable(key)

    def _create(self, path: str, parts: Sequence[Buffer], sync: bool) -> bool:
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
        temporary = self._write_temporary(parts, sync)
        try:
            return self.link(temporary, path, sync=sync)
        finally:
            # The name was given or not, whatever becomes of the other one. It is swept.
            with contextlib.suppress(OSError):
                self.files.unlink(temporary)

    def link(self, source: str, path: str, *, sync: bool = False) -> bool:
        """Give a whole file the name `path`, unless that exists. Raises OSError."""
        sync = sync or self.sync
        self._make_parent(path, sync)
        try:
            self.files.link(source, path)
        except FileExistsError:
            return False
        except FileNotFoundError:
            # Another process may have swept the empty directory meanwhile.
            self._forget_parent(os.path.dirname(path))
            self._make_parent(path, sync)
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
        name = f"{self.root}/{_TEMPORARY}/{self._token}-{next(self._names)}"
        self._make_parent(name, False)
        return name

    def _write_temporary(self, parts: Sequence[Buffer], sync: bool) -> str:
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

    def _make_parent(self, path: str, sync: bool) -> None:
        parent = os.path.dirname(path)
        if parent not in self._parents:
            self.files.make_directories(parent, sync=sync)
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

    async def put(self, key: str, *parts: Buffer) -> None:
        path = self.path(key)
        contents = b"".join(parts)
        try:
            if _is_durable(key):
                await self.run(self.put_durable, path, contents, lane=lane_of_write(key))
            elif self.sync or len(contents) > _INLINE_BYTES:
                await self.run(self._put, key, path, contents, lane=lane_of_write(key))
            else:
                self._put(key, path, contents)
        except OSError as error:
            raise self.error(error, f"could not write {path}") from error
        self.descriptors.drop(key)

    def put_durable(self, path: str, contents: bytes) -> None:
        """Replace a file, in any mode so that it survives a loss of power. It keeps no spare. Blocks."""
        self.require_disk()
        self._make_parent(path, True)
        name = self._write_temporary((contents,), True)
        try:
            self.files.rename(name, path)
        except OSError:
            with contextlib.suppress(OSError):
                self.files.unlink(name)
            raise
        self.files.sync_directory(os.path.dirname(path))

    def _put(self, key: str, path: str, contents: bytes) -> None:
        self.require_disk()
        self._make_parent(path, self.sync)
        name = self._take_spare(key, contents) or self._write_temporary((contents,), self.sync)
        try:
            self._keep_replaced(key, path, contents)
            inode = self.files.inode(name)
            self.files.rename(name, path)
        except OSError:
            self._spares[key] = (name, len(contents))
            raise
        self._published[key] = inode
        if self.sync:
            self.files.sync_directory(os.path.dirname(path))
        if key not in self._spares and len(contents) <= _SPARE_BYTES_MAX:
            with contextlib.suppress(OSError):
                self._spares[key] = (self._write_temporary((contents,), self.sync), len(contents))

    def _take_spare(self, key: str, contents: bytes) -> str | None:
        """The spare file, holding the new contents; None if there is none of that size."""
        name, size = self._spares.pop(key, ("", -1))
        with contextlib.suppress(FileNotFoundError):  # Swept, after this process was stopped for long.
            if size == len(contents):
                self._overwrite(name, contents)
                return name
            if name:
                self.files.unlink(name)
        return None

    def _overwrite(self, name: str, contents: bytes) -> None:
        fd = self.files.open(name, os.O_WRONLY)
        try:
            self.files.write_all(fd, (contents,), 0)
            if self.sync:
                self.files.fdatasync(fd)
        finally:
            self.files.close(fd)

    def _keep_replaced(self, key: str, path: str, contents: bytes) -> None:
        """Keep the file about to be replaced as the spare for the next time, if it is our own work.

        Another process may have replaced it meanwhile; two processes must never share a spare.
        """
        if key not in self._published or len(contents) > _SPARE_BYTES_MAX:
            return
        name = self.temporary_name()
        with contextlib.suppress(OSError):
            self.files.link(path, name)
            if self.files.inode(name) == self._published[key]:
                self._spares[key] = (name, len(contents))
            else:
                self.files.unlink(name)

    async def get(self, key: str) -> bytes | None:
        path = self.path(key)
        try:
            fd = self.files.open(path, os.O_RDONLY)
        except FileNotFoundError:
            self.require_disk()
            return None
        except OSError as error:
            raise self.error(error, f"could not read {path}") from error
        try:
            size = self.files.size(fd)
            now = self._read_cached(fd, 0, size)
            if now is not None:
                return bytes(now)
            return await self.run(self._read, fd, 0, size, lane=lane_of_read(key))
        except OSError as error:
            raise self.error(error, f"could not read {path}") from error
        finally:
            self.files.close(fd)

    async def get_range(self, key: str, start: int, length: int) -> bytes | bytearray:
        entry = self._hold(key)
        try:
            now: bytes | bytearray | None = self._read_cached(entry.fd, start, length)
            if now is None:
                now = await self.run(self._read, entry.fd, start, length, lane=lane_of_read(key))
        except OSError as error:
            raise self.error(error, f"could not read {self.root}/{key}") from error
        finally:
            self.descriptors.release(entry)
        if len(now) != length:
            raise ObjectShortError(f"{key} ends before byte {start + length}")
        return now

    def get_range_now(self, key: str, start: int, length: int) -> bytearray | None:
        """`get_range` if the page cache has all of it, else None. Never waits for the disk."""
        entry = self._hold(key)
        try:
            return self._read_cached(entry.fd, start, length)
        except OSError as error:
            raise self.error(error, f"could not read {self.root}/{key}") from error
        finally:
            self.descriptors.release(entry)

    def _hold(self, key: str) -> OpenFile:
        try:
            return self.descriptors.hold(key)
        except OSError as error:
            raise self.error(error, f"could not open {self.root}/{key}") from error

    def _read_cached(self, fd: int, start: int, length: int) -> bytearray | None:
        if not _NOWAIT:
            return None
        buffer = bytearray(length)
        try:
            count = self.files.preadv(fd, (buffer,), start, _NOWAIT) if length else 0
        except OSError:
            # Not in the page cache (EAGAIN), or a file system that cannot tell (EOPNOTSUPP).
            return None
        return buffer if count == length else None

    def _read(self, fd: int, start: int, length: int) -> bytes:
        parts = []
        while length > 0:
            part = self.files.pread(fd, length, start)
            if not part:
                break
            parts.append(part)
            start += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def size(self, key: str) -> int | None:
        """How many bytes an object has; None if there is none."""
        try:
            return await self.run(self.files.size_of, self.path(key), lane=lane_of_read(key))
        except FileNotFoundError:
            self.require_disk()
            return None
        except OSError as error:
            raise self.error(error, f"could not look at {self.root}/{key}") from error

    async def delete(self, key: str) -> None:
        path = self.path(key)
        self.descriptors.drop(key)
        try:
            await self.run(self.files.unlink, path, lane=lane_of_delete(key))
        except FileNotFoundError:
            self.require_disk()
        except OSError as error:
            raise self.error(error, f"could not delete {path}") from error

    def _walk(self, prefix: str) -> tuple[DatedObject, ...]:
        found = []
        # Whole directories of the prefix narrow the walk; its last part is a prefix of names.
        pending = [prefix.rpartition("/")[0]]
        while pending:
            directory = pending.pop()
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                for entry in self.files.entries(f"{self.root}/{directory}"):
                    key = f"{directory}/{entry.name}" if directory else entry.name
                    if key in _NOT_OBJECTS:
                        continue
                    if entry.is_directory:
                        if key.startswith(prefix) or prefix.startswith(f"{key}/"):
                            pending.append(key)
                    elif key.startswith(prefix):
                        found.append(DatedObject(key, entry.size, int(entry.modified * 1000)))
        return tuple(sorted(found))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for found in self.list_dated(prefix):
            yield ObjectInfo(found.key, found.size)

    async def list_dated(self, prefix: str) -> AsyncIterator[DatedObject]:
        try:
            found = await self.run(self._walk, prefix, lane=lane_of_list(prefix))
        except OSError as error:
            raise self.error(error, f"could not list {self.root}/{prefix}") from error
        self.require_disk()
        for info in found:
            yield info

    async def sweep(self, before_ms: int) -> None:
        """Remove unfinished files that killed processes left before that time, and empty directories."""
        await self.run(self._sweep, before_ms / 1000, lane=Lane.SWEEP)

    def _sweep(self, before: float) -> None:
        with contextlib.suppress(FileNotFoundError):
            for entry in self.files.entries(f"{self.root}/{_TEMPORARY}"):
                with contextlib.suppress(OSError):
                    if entry.modified < before:
                        self._remove(f"{self.root}/{_TEMPORARY}/{entry.name}", entry)
        for entry in self.files.entries(self.root):
            if entry.name in _SWEPT:
                self._sweep_empty(f"{self.root}/{entry.name}", entry, before)

    def _sweep_empty(self, path: str, entry: Entry, before: float) -> None:
        with contextlib.suppress(OSError):
            for below in self.files.entries(path):
                if below.is_directory:
                    self._sweep_empty(f"{path}/{below.name}", below, before)
            if entry.modified < before:
                self.files.rmdir(path)  # Fails if it is not empty.
                self._forget_parent(path)

    def _remove(self, path: str, entry: Entry) -> None:
        if not entry.is_directory:
            self.files.unlink(path)
            return
        for name in self.files.listdir(path):
            self.files.unlink(f"{path}/{name}")
        self.files.rmdir(path)

    async def close(self) -> None:
        self.descriptors.close()
        for name, _size in self._spares.values():
            with contextlib.suppress(OSError):
                self.files.unlink(name)
        self._spares.clear()
        for executor in self._executors.values():
            executor.shutdown(wait=True, cancel_futures=True)


def _is_durable(key: str) -> bool:
    """Whether an object is synced in any mode."""
    return key.startswith(_DURABLE) and key != _ONLY_A_HINT
