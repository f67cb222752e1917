"""Which broker processes of this machine are running, as the operating system knows it.

A store on a directory is shared by processes of one machine. Each incarnation holds a lock on a file of its
own, `presence/<broker>-<epoch>`; the system lets go of the lock when the process ends, however it ends, and
at no other time. So whoever can have the lock knows that the incarnation is over, long before its heartbeats
are missed. A process that is stopped or hangs still holds its lock: for those there is the session time-out.

The file gets its name when the lock is held, so that nobody finds it without. Everything here is only for
speed: what cannot be told, for whatever reason, is told as "not gone".
"""

import contextlib
import errno
import fcntl
import logging
import os

from penstock.storage.stores.files import Files

logger = logging.getLogger(__name__)

DIRECTORY = "presence"


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
        unnamed = f"{path}.{self._token}"
        try:
            self._files.make_directories(self._root, sync=False)
            fd = self._files.open(unnamed, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            logger.warning("others will notice the end of this broker by its silence only error=%s", error)
            return
        try:
            self._files.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._is_held(unnamed):
                raise OSError(errno.ENOLCK, "the file system does not keep locks")
            self._files.rename(unnamed, path)
        except OSError as error:
            logger.warning("others will notice the end of this broker by its silence only error=%s", error)
            self._files.close(fd)
            with contextlib.suppress(OSError):
                self._files.unlink(unnamed)
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
            return not self._is_held(self._path(broker, epoch))
        except OSError:
            return False

    def _is_held(self, path: str) -> bool:
        fd = self._files.open(path, os.O_RDONLY)
        try:
            # Shared: several who look at once do not take each other for the holder.
            self._files.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            self._files.close(fd)
        return False

    def any_held(self) -> bool:
        """Whether any incarnation runs."""
        with contextlib.suppress(FileNotFoundError):
            for name in self._files.listdir(self._root):
                with contextlib.suppress(FileNotFoundError):
                    if self._is_held(f"{self._root}/{name}"):
                        return True
        return False

    def forget(self, broker: int, epoch: int) -> None:
        """Remove what an incarnation that is over left behind."""
        with contextlib.suppress(OSError):
            self._files.unlink(self._path(broker, epoch))

    def _path(self, broker: int, epoch: int) -> str:
        return f"{self._root}/{broker}-{epoch}"
