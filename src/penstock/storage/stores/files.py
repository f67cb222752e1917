"""The operating system's file calls, as an object: the seam at which tests make a disk fail.

`Files` is what production uses. A test passes one that runs out of space, turns read-only, or forgets at
"power loss" whatever was not synced.

Directories are stores on Linux and macOS. What macOS lacks has its nearest counterpart here. Elsewhere this
module can be imported, as readers of buckets need it, and nothing more.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from penstock.storage.stores.objects import (
    ObjectMissingError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreRefusedError,
    StoreUnavailableError,
)
from penstock.wire.buffers import Buffer

if sys.platform != "win32":
    import fcntl

    _FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    """On macOS fsync leaves data in the drive's own memory, and there is no fdatasync."""

LOCK_SHARED, LOCK_EXCLUSIVE, LOCK_NOW = 1, 2, 4
"""As everywhere: LOCK_SH, LOCK_EX and LOCK_NB."""

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_REFUSED = frozenset((errno.EACCES, errno.EPERM))
_MISUSED = frozenset((errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR))

_F_OK = os.F_OK
_MOUNTS_PATH = "/proc/self/mountinfo"
_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"
IOV_MAX = 1024  # Linux's limit on buffers in one vectored call.


Inode: TypeAlias = tuple[int, int]
"""A device, and a number on it. What has the same is the same file."""


class FileInfo(NamedTuple):
    """A name in a directory."""

    name: str
    is_directory: bool
    size: int
    modified: float
    """Seconds since the epoch."""


class Files:
    """One method per system call, with its errors."""

    def boot_id(self) -> bytes:
        """Sixteen bytes that name this boot of this machine; zeros where the system does not tell."""
        try:
            with open(_BOOT_ID_PATH) as file:
                return bytes.fromhex(file.read().strip().replace("-", ""))
        except (OSError, ValueError):
            return bytes(16)

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        return os.open(path, flags | os.O_CLOEXEC, mode)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        return os.pwritev(fd, buffers, position)

    def preadv(self, fd: int, buffers: Sequence[bytearray | memoryview], position: int, flags: int) -> int:
        return os.preadv(fd, buffers, position, flags)

    def pread(self, fd: int, length: int, position: int) -> bytes:
        return os.pread(fd, length, position)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def size_of(self, path: str) -> int:
        return os.stat(path).st_size

    def inode(self, file: str | int) -> Inode:
        """Of a path, or of an open file."""
        found = os.stat(file)
        return found.st_dev, found.st_ino

    def has_name(self, fd: int, path: str) -> bool:
        """Whether an open file was neither deleted nor replaced; `path`: its name. That the directory is
        another one by now is not noticed."""
        return os.fstat(fd).st_nlink > 0

    def allocate(self, fd: int, length: int) -> None:
        """Make sure that there is space for the first `length` bytes."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, length)
        elif os.fstat(fd).st_size < length:
            os.ftruncate(fd, length)  # Whether there is space is then seen at each write.

    def ftruncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def fdatasync(self, fd: int) -> None:
        if _FULL_SYNC is None:
            os.fdatasync(fd)
        else:
            fcntl.fcntl(fd, _FULL_SYNC)

    def drop_cached(self, fd: int, position: int) -> None:
        """Forget what is in memory of a file from `position` on, unless it is yet to be written."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, position, 0, os.POSIX_FADV_DONTNEED)

    def sync_directory(self, path: str) -> None:
        """Make the entries of a directory survive a loss of power."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        os.mkdir(path)

    def restrict(self, path: str) -> None:
        """Only its owner may look into a directory. A file system without modes leaves it as it is."""
        with contextlib.suppress(PermissionError):
            os.chmod(path, 0o700)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def exists(self, path: str) -> bool:
        return os.access(path, _F_OK)

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def entries(self, path: str) -> list[FileInfo]:
        """What is in a directory. A file that goes meanwhile may be left out."""
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    info = entry.stat(follow_symlinks=False)
                    is_directory = entry.is_dir(follow_symlinks=False)
                    found.append(FileInfo(entry.name, is_directory, info.st_size, info.st_mtime))
        return found

    def flock(self, fd: int, operation: int) -> None:
        fcntl.flock(fd, operation)

    def mounts(self) -> str:
        """What is mounted where, as Linux says it; "" elsewhere."""
        try:
            with open(_MOUNTS_PATH, encoding="utf-8", errors="surrogateescape") as file:
                return file.read()
        except OSError:
            return ""

    def make_directories(self, path: str, *, sync: bool) -> None:
        """Create `path` and its missing parents, each entry made durable if `sync`."""
        missing = []
        while path not in ("", "/") and not self.exists(path):
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            try:
                self.mkdir(directory)
            except FileExistsError:
                continue
            if sync:
                self.sync_directory(os.path.dirname(directory) or ".")

    def write_all(self, fd: int, parts: Sequence[Buffer], position: int) -> int:
        """Write all parts at `position`; how many bytes that were. Raises OSError when it cannot."""
        buffers: list[Buffer] = [part for part in parts if len(part)]
        start = position
        while buffers:
            written = self.pwritev(fd, buffers[:IOV_MAX], position)
            position += written
            buffers = _after(buffers, written)
        return position - start


def _after(buffers: list[Buffer], written: int) -> list[Buffer]:
    """What is left to write after `written` bytes."""
    for at, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[at + 1 :]]
        written -= len(buffer)
    return []


def is_full(error: OSError) -> bool:
    return error.errno in _FULL


def store_error(error: OSError, what: str) -> StoreError:
    """The port's error for an operating system's one. `what` begins the sentence.

    Only ENOENT says that something is not there. What cannot be read (EIO, ESTALE, a time-out, EACCES, and
    whatever else a disk comes up with) may be whole, and can perhaps be read later."""
    sentence = f"{what}: {error.strerror or error}"
    if error.errno in _FULL:
        return StoreFullError(sentence)
    if error.errno == errno.EROFS:
        return StoreReadOnlyError(sentence)
    if error.errno in _REFUSED:
        return StoreRefusedError(sentence)
    if error.errno == errno.ENOENT:
        return ObjectMissingError(sentence)
    if error.errno in _MISUSED:
        return StoreError(sentence)
    return StoreUnavailableError(sentence)
