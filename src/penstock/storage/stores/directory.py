"""The store on a local directory: one broker, or several broker processes on one machine, share it.

- `create` gives a whole file its name, unless the name exists (`local`).
- `put` never needs new space once a key was written: it overwrites a spare file of the same size and renames
  it into place, keeping the replaced file as the next spare. A lease is renewed on a full disk.
- With `sync`, contents are synced before they get their name, and the directory afterwards. The metadata log
  is always written so: a cluster whose newest entry a power cut emptied could not start. `create_durable`
  does the same for objects that make others superfluous: those are deleted.
- A read first asks the page cache without waiting (RWF_NOWAIT), from the loop. A thread reads bytes that are
  not there. Each lane has threads of its own (`lanes`).

Files that other programs leave (`.DS_Store`, `.nfs...`, `...~`) have names that no key has: they are no
objects, and are not listed.

Network file systems that cache names on the client do not give the guarantee that `create` and sealing rest
on; several brokers on one directory means several processes on one machine (`mounts`).
"""

import contextlib
import os
from collections.abc import AsyncIterator
from typing import TypeVar

from penstock.entropy import SYSTEM, Entropy
from penstock.storage.stores.descriptors import OpenFile
from penstock.storage.stores.files import Files, Inode
from penstock.storage.stores.lanes import lane_of_list, lane_of_read, lane_of_write
from penstock.storage.stores.local import TEMPORARY, TORN, LocalDirectory, is_key
from penstock.storage.stores.objects import DatedObject, ObjectInfo, ObjectShortError
from penstock.storage.stores.presence import DIRECTORY as PRESENCE
from penstock.storage.stores.read_buffers import ReadBuffers
from penstock.storage.stores.reserve import NAME as RESERVE
from penstock.wire.buffers import Buffer

Filled = TypeVar("Filled", bound=bytearray | memoryview)

_NOT_OBJECTS = (TEMPORARY, TORN, PRESENCE, RESERVE)
_DURABLE = "meta/"
_ONLY_A_HINT = "meta/hint"
_INLINE_BYTES = 64 * 1024  # Written from the loop: a thread costs more than that much page cache.
_SPARE_BYTES_MAX = 4096
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


class DirectoryStore(LocalDirectory):
    def __init__(
        self,
        root: str,
        *,
        sync: bool = False,
        files: Files | None = None,
        threads: int = 4,
        entropy: Entropy = SYSTEM,
    ) -> None:
        super().__init__(root, sync=sync, files=files, threads=threads, entropy=entropy)
        self._buffers = ReadBuffers()
        self._spares: dict[str, tuple[str, int]] = {}
        self._published: dict[str, Inode] = {}

    @property
    def local(self) -> LocalDirectory:
        return self

    async def create(self, key: str, *parts: Buffer) -> bool:
        sync = self._syncs(key)
        path = self.path(key)
        if sync or sum(map(len, parts)) > _INLINE_BYTES:
            return await self.run(self.create_file, path, parts, sync, lane=lane_of_write(key))
        return self.create_file(path, parts, sync)

    def _syncs(self, key: str) -> bool:
        return self.sync or _is_durable(key)

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

    def _put(self, key: str, path: str, contents: bytes) -> None:
        self.require_disk()
        self.make_parent(path, self.sync)
        name = self._take_spare(key, contents) or self.write_temporary((contents,), self.sync)
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
                self._spares[key] = (self.write_temporary((contents,), self.sync), len(contents))

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
            now = self._read_cached(fd, 0, bytearray(size))
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
            now: bytes | bytearray | None = self._read_cached(entry.fd, start, bytearray(length))
            if now is None:
                now = await self.run(self._read, entry.fd, start, length, lane=lane_of_read(key))
        except OSError as error:
            raise self.error(error, f"could not read {self.root}/{key}") from error
        finally:
            self.descriptors.release(entry)
        if len(now) != length:
            raise ObjectShortError(f"{key} ends before byte {start + length}")
        return now

    def get_range_now(self, key: str, start: int, length: int) -> Buffer | None:
        """`get_range` if the page cache has all of it, else None. Never waits for the disk."""
        entry = self._hold(key)
        try:
            return self._read_cached(entry.fd, start, self._buffers.take(length))
        except OSError as error:
            raise self.error(error, f"could not read {self.root}/{key}") from error
        finally:
            self.descriptors.release(entry)

    def _hold(self, key: str) -> OpenFile:
        try:
            return self.descriptors.hold(key)
        except OSError as error:
            raise self.error(error, f"could not open {self.root}/{key}") from error

    def _read_cached(self, fd: int, start: int, buffer: Filled) -> Filled | None:
        """`buffer`, filled, if the page cache has as much from `start` on."""
        if not _NOWAIT:
            return None
        try:
            count = self.files.preadv(fd, (buffer,), start, _NOWAIT) if buffer else 0
        except OSError:
            # Not in the page cache (EAGAIN), or a file system that cannot tell (EOPNOTSUPP).
            return None
        return buffer if count == len(buffer) else None

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
                    elif key.startswith(prefix) and is_key(key):
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

    async def close(self) -> None:
        for name, _size in self._spares.values():
            with contextlib.suppress(OSError):
                self.files.unlink(name)
        self._spares.clear()
        self.close_files()


def _is_durable(key: str) -> bool:
    """Whether an object is synced in any mode."""
    return key.startswith(_DURABLE) and key != _ONLY_A_HINT
