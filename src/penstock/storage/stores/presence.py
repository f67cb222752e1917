"""Which broker processes of this machine are running, as the operating system knows it.

A store on a directory is shared by processes of one machine. Each incarnation holds a lock on a file of its
own, `presence/<broker>-<epoch>`. The system releases the lock when the process ends, however it ends, and at
no other time. So a process that can take the lock knows that the incarnation is over, long before its
heartbeats are missed. A process that is stopped or hangs still holds its lock: it is found by the session
time-out.

The file gets its name when the lock is held, so nobody finds it without. Everything here is only for speed: a
process whose state is unknown, for whatever reason, counts as "not gone".
"""

import contextlib
import errno
import logging
import os

from penstock.storage.stores.files import LOCK_EXCLUSIVE, LOCK_NOW, LOCK_SHARED, Files

logger = logging.getLogger(__name__)

DIRECTORY = "presence"


def hold(files: Files, path: str, token: str) -> int:
    """Make the file `path`, locked as long as the descriptor that this returns is open. Raises OSError, also
    where the file system does not keep locks."""
    unnamed = f"{path}.{token}"
    fd = files.open(unnamed, os.O_RDWR | os.O_CREAT)
    try:
        files.flock(fd, LOCK_EXCLUSIVE | LOCK_NOW)
        if not is_held(files, unnamed):
            raise OSError(errno.ENOLCK, "the file system does not keep locks")
        files.rename(unnamed, path)
    except OSError:
        files.close(fd)
        with contextlib.suppress(OSError):
            files.unlink(unnamed)
        raise
    return fd


def is_held(files: Files, path: str) -> bool:
    """Whether whoever holds this file runs. Raises OSError if that cannot be told."""
    fd = files.open(path, os.O_RDONLY)
    try:
        # Shared: several who look at once do not take each other for the holder.
        files.flock(fd, LOCK_SHARED | LOCK_NOW)
    except BlockingIOError:
        return True
    finally:
        files.close(fd)
    return False


class Presence:
    """One incarnation's lock, and a look at those of others."""

    def __init__(self, root: str, files: Files, token: str) -> None:
        """`token`: what no other process has."""
        self._root = f"{root}/{DIRECTORY}"
        self._files = files
        self._token = token
        self._held: tuple[int, str] | None = None

    def announce(self, broker: int, epoch: int) -> None:
        """Hold the lock of this incarnation until `withdraw` or the end of the process."""
        self.withdraw()
        path = self._path(broker, epoch)
        try:
            self._files.make_directories(self._root, sync=False)
            fd = hold(self._files, path, self._token)
        except OSError as error:
            logger.warning("others will notice the end of this broker by its silence only error=%s", error)
            return
        self._held = (fd, path)
        self._clear(broker, path)

    def _clear(self, broker: int, path: str) -> None:
        """Remove what earlier incarnations of the broker left behind: they are over, or will find out."""
        with contextlib.suppress(OSError):
            for name in self._files.listdir(self._root):
                if name.startswith(f"{broker}-") and f"{self._root}/{name}" != path:
                    self._files.unlink(f"{self._root}/{name}")

    def withdraw(self) -> None:
        """Let go, and leave nothing behind."""
        if self._held is None:
            return
        (fd, path), self._held = self._held, None
        with contextlib.suppress(OSError):
            self._files.unlink(path)
        self._files.close(fd)

    def is_gone(self, broker: int, epoch: int) -> bool:
        """Whether the process of that incarnation has ended. False if it has not or that cannot be told."""
        try:
            return not is_held(self._files, self._path(broker, epoch))
        except OSError:
            return False

    def any_held(self) -> bool:
        """Whether any incarnation runs."""
        with contextlib.suppress(FileNotFoundError):
            for name in self._files.listdir(self._root):
                with contextlib.suppress(FileNotFoundError):
                    if is_held(self._files, f"{self._root}/{name}"):
                        return True
        return False

    def forget(self, broker: int, epoch: int) -> None:
        """Remove what an incarnation that is over left behind."""
        with contextlib.suppress(OSError):
            self._files.unlink(self._path(broker, epoch))

    def _path(self, broker: int, epoch: int) -> str:
        return f"{self._root}/{broker}-{epoch}"
