"""A little space that is kept for the moment at which a disk is full.

Freeing space takes space: DeleteRecords, retention and deleting a topic are entries in the metadata log and
change manifests. These are small. So a store on a directory holds a file that nobody reads. When a small
object finds no space, a piece of the file is given up and the object is written again. Producers never get
any of it. It is filled again once there is space.

All processes on the directory share it.
"""

import contextlib
import os
import threading

from penstock.storage.stores.files import Files

NAME = "reserve"
RESERVE_BYTES = 1024 * 1024
"""Hundreds of entries and manifests."""
_PIECE_BYTES = 128 * 1024
"""Given up at once: another writer may be quicker to take what is free, and then there is another piece."""


class Reserve:
    def __init__(self, root: str, files: Files) -> None:
        self._path = f"{root}/{NAME}"
        self._files = files
        self._lock = threading.Lock()
        self._full = False

    def refill(self) -> None:
        """Called when there was space a moment ago."""
        if self._full:
            return
        with self._lock, contextlib.suppress(OSError):
            fd = self._files.open(self._path, os.O_RDWR | os.O_CREAT)
            try:
                size = self._files.size(fd)
                try:
                    if size < RESERVE_BYTES:
                        self._files.allocate(fd, RESERVE_BYTES)
                    self._full = True
                except OSError:
                    self._files.ftruncate(fd, size)
            finally:
                self._files.close(fd)

    def release(self) -> bool:
        """Give a piece of it up. False if nothing is left."""
        with self._lock, contextlib.suppress(OSError):
            self._full = False
            fd = self._files.open(self._path, os.O_RDWR)
            try:
                size = self._files.size(fd)
                self._files.ftruncate(fd, max(0, size - _PIECE_BYTES))
                return size > 0
            finally:
                self._files.close(fd)
        return False
