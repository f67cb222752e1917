"""The write-ahead files (or objects) that unsettled records lie in, by a small number.

Extents name their file by this number, so that an extent is six machine integers.
"""

from penstock.metadata.image import WalRef
from penstock.storage.stores.objects import ObjectMissingError


class WalFile:
    __slots__ = ("bytes", "key", "last_flush", "may_be_adopted", "number", "wal")

    def __init__(self, wal: WalRef, key: str, number: int) -> None:
        self.wal = wal
        self.key = key
        self.number = number
        self.last_flush = -1
        """The last flush in it that is known to be durable, and where that ends."""
        self.bytes = 0
        self.may_be_adopted = True
        """Whether a sync of it is to be believed. The system says once that the disk does not take something,
        to whoever asks first; later syncs succeed."""


class WalFiles:
    def __init__(self) -> None:
        self._files: dict[int, WalFile] = {}
        self._by_key: dict[str, WalFile] = {}
        self._next = 0

    def file(self, wal: WalRef, key: str) -> WalFile:
        found = self._by_key.get(key)
        if found is None:
            found = self._files[self._next] = self._by_key[key] = WalFile(wal, key, self._next)
            self._next += 1
        return found

    def key(self, number: int) -> str:
        found = self._files.get(number)
        if found is None:
            raise ObjectMissingError("the write-ahead file was settled and deleted meanwhile")
        return found.key

    def size(self, number: int) -> int:
        return self._files[number].bytes

    def may_be_adopted(self, number: int) -> bool:
        return self._files[number].may_be_adopted

    def is_not_on_disk(self, number: int) -> None:
        """A sync of this file failed."""
        self._files[number].may_be_adopted = False

    def logs(self) -> tuple[WalRef, ...]:
        """The logs that these files belong to."""
        return tuple(dict.fromkeys(file.wal for file in self._files.values()))

    def forget(self, wal: WalRef, below: int | None = None) -> None:
        """The files of a log are deleted: all, or those whose flushes are all numbered below `below`."""
        gone = [
            file
            for file in self._files.values()
            if file.wal == wal and (below is None or file.last_flush < below)
        ]
        for file in gone:
            del self._files[file.number]
            del self._by_key[file.key]
