"""Open files for reading, by key: a bounded cache of descriptors.

A descriptor that a thread reads from is held; a held one is never closed, even when its file is deleted
or the cache overflows: it closes when the last holder lets go.

A file that was brought back from a backup mostly gets its name by renaming. Readers that went on with the
one that was open would see the hurt bytes for ever, so the name is looked up at each read. A name that is
gone does not count: whoever deletes a file lets its readers end.
"""

import contextlib
import os
from collections import OrderedDict

from penstock.storage.stores.files import Files, Inode


class OpenFile:
    __slots__ = ("dropped", "fd", "holders", "inode", "key")

    def __init__(self, key: str, fd: int, inode: Inode) -> None:
        self.key = key
        self.fd = fd
        self.inode = inode
        self.holders = 0
        self.dropped = False


class Descriptors:
    """Used from the loop only; threads use a descriptor that the loop holds for them."""

    def __init__(self, files: Files, root: str, limit: int = 256) -> None:
        self._files = files
        self._root = root
        self._limit = limit
        self._open: OrderedDict[str, OpenFile] = OrderedDict()

    def hold(self, key: str) -> OpenFile:
        """An open file that stays open until `release`. Raises OSError."""
        path = f"{self._root}/{key}"
        entry = self._open.get(key)
        if entry is not None and self._was_replaced(entry, path):
            self.drop(key)
            entry = None
        if entry is None:
            # The inode first: a file that is replaced in between is opened anew the next time.
            inode = self._files.inode(path)
            entry = OpenFile(key, self._files.open(path, os.O_RDONLY), inode)
            self._open[key] = entry
            if len(self._open) > self._limit:
                _, oldest = self._open.popitem(last=False)
                self._close(oldest)
        else:
            self._open.move_to_end(key)
        entry.holders += 1
        return entry

    def _was_replaced(self, entry: OpenFile, path: str) -> bool:
        with contextlib.suppress(OSError):
            return self._files.inode(path) != entry.inode
        return False

    def release(self, entry: OpenFile) -> None:
        entry.holders -= 1
        if entry.dropped and not entry.holders:
            self._files.close(entry.fd)

    def drop(self, key: str) -> None:
        """The file is gone, or replaced: forget it."""
        entry = self._open.pop(key, None)
        if entry is not None:
            self._close(entry)

    def drop_deleted(self) -> None:
        """Other processes delete files too. One that is open here keeps its space until it is closed."""
        for key in [key for key in self._open if not self._files.exists(f"{self._root}/{key}")]:
            self.drop(key)

    def close(self) -> None:
        for entry in self._open.values():
            self._close(entry)
        self._open.clear()

    def _close(self, entry: OpenFile) -> None:
        entry.dropped = True
        if not entry.holders:
            self._files.close(entry.fd)
