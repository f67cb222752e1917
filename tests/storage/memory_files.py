"""A disk in memory: for tests that need thousands of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from penstock.storage.stores.files import FileInfo, Files, Inode
from penstock.wire.buffers import Buffer


class MemoryFiles(Files):
    """Paths are names, and every directory that is asked for exists. `copy` is cheap."""

    def __init__(self, boot: bytes) -> None:
        self.contents: dict[str, bytearray] = {}
        self._boot = boot
        self._directories: set[str] = set()
        self._open: dict[int, bytearray] = {}
        self._next = 1000

    def copy(self, boot: bytes, path: str, contents: bytes) -> MemoryFiles:
        """The same disk, but for the contents of one file, as another boot finds it."""
        other = MemoryFiles(boot)
        other.contents = {name: bytearray(one) for name, one in self.contents.items()}
        other._directories = set(self._directories)
        other.contents[path] = bytearray(contents)
        return other

    def boot_id(self) -> bytes:
        return self._boot

    def _find(self, path: str) -> bytearray:
        if path not in self.contents:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self.contents[path]

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        if flags & os.O_CREAT and path not in self.contents:
            self.contents[path] = bytearray()
        content = self._find(path)
        if flags & os.O_TRUNC:
            del content[:]
        self._next += 1
        self._open[self._next] = content
        return self._next

    def close(self, fd: int) -> None:
        del self._open[fd]

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        data = b"".join(buffers)
        self._open[fd][position : position + len(data)] = data
        return len(data)

    def preadv(self, fd: int, buffers: Sequence[bytearray | memoryview], position: int, flags: int) -> int:
        (buffer,) = buffers
        data = self._open[fd][position : position + len(buffer)]
        buffer[: len(data)] = data
        return len(data)

    def pread(self, fd: int, length: int, position: int) -> bytes:
        return bytes(self._open[fd][position : position + length])

    def size(self, fd: int) -> int:
        return len(self._open[fd])

    def inode(self, file: str | int) -> Inode:
        return 0, id(self._find(file) if isinstance(file, str) else self._open[file])

    def has_name(self, fd: int, path: str) -> bool:
        return self.contents.get(path) is self._open[fd]

    def ftruncate(self, fd: int, length: int) -> None:
        del self._open[fd][length:]

    def fdatasync(self, fd: int) -> None:
        pass

    def drop_cached(self, fd: int, position: int) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass

    def link(self, source: str, target: str) -> None:
        if target in self.contents:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        self.contents[target] = self._find(source)

    def rename(self, source: str, target: str) -> None:
        if source in self._directories:
            self._directories.remove(source)
            self._directories.add(target)
            for path in [path for path in self.contents if path.startswith(f"{source}/")]:
                self.contents[target + path[len(source) :]] = self.contents.pop(path)
            return
        self.contents[target] = self._find(source)
        del self.contents[source]

    def unlink(self, path: str) -> None:
        self._find(path)
        del self.contents[path]

    def restrict(self, path: str) -> None:
        """There is nobody else."""

    def mkdir(self, path: str) -> None:
        self._directories.add(path)

    def rmdir(self, path: str) -> None:
        self._directories.discard(path)

    def exists(self, path: str) -> bool:
        return path in self.contents or path in self._directories

    def listdir(self, path: str) -> list[str]:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return [name[len(path) + 1 :] for name in self.contents if name.rpartition("/")[0] == path]

    def entries(self, path: str) -> list[FileInfo]:
        return [
            FileInfo(name, False, len(self.contents[f"{path}/{name}"]), 0.0) for name in self.listdir(path)
        ]

    def flock(self, fd: int, operation: int) -> None:
        pass

    def make_directories(self, path: str, *, sync: bool) -> None:
        while path not in ("", "/"):
            self._directories.add(path)
            path = os.path.dirname(path)
