"""A store for code that waits, such as Spark's workers: one call, one answer, and reading ahead.

On a directory, ranges are read by the calling thread, straight from the page cache or the disk. For other
stores a loop runs on a thread of its own, and a few ranges are under way while the caller works on one.
"""

import asyncio
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from penstock.storage import open_store
from penstock.storage.directory import DirectoryStore
from penstock.storage.files import store_error
from penstock.storage.objects import ObjectMissingError, ObjectStore, StoreError
from penstock.wire.buffers import Buffer

T = TypeVar("T")

_FILES_OPEN_MAX = 64
_RANGES_AHEAD = 3
"""With windows of a few megabytes this hides a store's latency, and bounds the memory of a task."""


class RangeRead(NamedTuple):
    """`length` bytes from `start` of `key`; `about` is the caller's."""

    key: str
    start: int
    length: int
    about: Any = None


class BlockingStore:
    def __init__(self, location: str) -> None:
        """`location`: as in `open_store`. Raises StoreError if it names no store."""
        self.location = location
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-io", daemon=True)
        self._thread.start()
        self.store: ObjectStore = self.run(_opened(location))
        self._files = _Files(self.store.root) if isinstance(self.store, DirectoryStore) else None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine that uses the store."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def read(self, wanted: Iterable[RangeRead]) -> Iterator[tuple[RangeRead, Buffer]]:
        """Each range with its bytes, in order. ObjectMissingError if an object is gone or shorter."""
        if self._files is not None:
            for one in wanted:
                yield one, self._files.read(one.key, one.start, one.length)
            return
        under_way: deque[tuple[RangeRead, Future[bytes | bytearray]]] = deque()
        ranges = iter(wanted)
        failure: StoreError | None = None
        more = True
        try:
            while more or under_way:
                if more:
                    try:
                        one = next(ranges)
                        work = self.store.get_range(one.key, one.start, one.length)
                        under_way.append((one, asyncio.run_coroutine_threadsafe(work, self._loop)))
                    except StopIteration:
                        more = False
                    except StoreError as error:
                        # Told in its turn, after the ranges that come before it.
                        more, failure = False, error
                if under_way and (not more or len(under_way) > _RANGES_AHEAD):
                    done, answer = under_way.popleft()
                    yield done, answer.result()
            if failure is not None:
                raise failure
        finally:
            for _one, answer in under_way:
                answer.cancel()

    def close(self) -> None:
        self.run(self.store.close())
        if self._files is not None:
            self._files.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Files:
    """Open files of a directory, a bounded number. One thread uses it."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._open: OrderedDict[str, int] = OrderedDict()

    def read(self, key: str, start: int, length: int) -> Buffer:
        try:
            fd = self._descriptor(key)
            data = os.pread(fd, length, start)
            while len(data) < length:
                more = os.pread(fd, length - len(data), start + len(data))
                if not more:
                    raise ObjectMissingError(f"{key} ends before byte {start + length}")
                data += more
        except OSError as error:
            raise store_error(error, f"could not read {self._root}/{key}") from error
        return data

    def _descriptor(self, key: str) -> int:
        fd = self._open.get(key)
        if fd is None:
            fd = self._open[key] = os.open(f"{self._root}/{key}", os.O_RDONLY | os.O_CLOEXEC)
            if len(self._open) > _FILES_OPEN_MAX:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(key)
        return fd

    def close(self) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()


async def _opened(location: str) -> ObjectStore:
    """On the loop: an SDK may bind itself to the one that runs."""
    return open_store(location)
