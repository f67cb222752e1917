"""The write-ahead files (or objects) that unsettled records lie in, by a small number.

Extents name their file by this number, so that an extent is six machine integers.
"""

from penstock.metadata.image import WalRef


class WalFile:
    __slots__ = ("bytes", "key", "last_flush", "wal")

    def __init__(self, wal: WalRef, key: str) -> None:
        self.wal = wal
        self.key = key
        self.last_flush = -1
        self.bytes = 0


class WalFiles:
    def __init__(self) -> None:
        self._files: dict[int, WalFile] = {}
        self._numbers: dict[str, int] = {}
        self._next = 0
        self._last_key = ""
        self._last_number = -1

    def note(self, wal: WalRef, key: str, flush: int, end_position: int) -> int:
        """The number of the file `key`, in which `flush` ends at `end_position`."""
        number = self._last_number if key == self._last_key else self._number(wal, key)
        file = self._files[number]
        file.last_flush = flush
        file.bytes = end_position
        return number

    def _number(self, wal: WalRef, key: str) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._next
            self._next += 1
            self._files[number] = WalFile(wal, key)
        self._last_key, self._last_number = key, number
        return number

    def key(self, number: int) -> str:
        return self._files[number].key

    def size(self, number: int) -> int:
        return self._files[number].bytes

    def logs(self) -> set[WalRef]:
        """The logs that these files belong to."""
        return {file.wal for file in self._files.values()}

    def forget(self, wal: WalRef, below: int | None = None) -> None:
        """The files of a log are deleted: all, or those whose flushes are all numbered below `below`."""
        gone = [
            number
            for number, file in self._files.items()
            if file.wal == wal and (below is None or file.last_flush < below)
        ]
        for number in gone:
            del self._numbers[self._files.pop(number).key]
        if self._last_number not in self._files:
            self._last_key, self._last_number = "", -1
