"""A store for code that waits, such as Spark's workers: one call, one answer, and reading ahead.

On a directory, ranges are read by the calling thread, straight from the page cache or the disk. For other
stores a loop runs on a thread of its own, and a few ranges are under way while the caller works on one.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from penstock.storage import open_store
from penstock.storage.directory import DirectoryStore
from penstock.storage.files import store_error
from penstock.storage.objects import ObjectMissingError, ObjectStore, StoreError
from penstock.wire.buffers import Buffer

T = TypeVar("T")

_RANGES_AHEAD = 3
"""With windows of a few megabytes this hides a store's latency, and bounds the memory of a task."""


class RangeRead(NamedTuple):
    """`length` bytes from `start` of `key`; `about` is the caller's."""

    key: str
    start: int
    length: int
    about: Any = None


def _fresh(size: int) -> memoryview:
    return memoryview(bytearray(size))


class BlockingStore:
    def __init__(self, location: str) -> None:
        """`location`: as in `open_store`. Raises StoreError if it names no store."""
        self.location = location
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-io", daemon=True)
        self._thread.start()
        self.store: ObjectStore = self.run(_opened(location))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine that uses the store."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def read(
        self, wanted: Iterable[RangeRead], room: Callable[[int], memoryview] = _fresh
    ) -> Iterator[tuple[RangeRead, Buffer]]:
        """Each range with its bytes, in order. ObjectMissingError if an object is gone or shorter.

        `room(size)` gives memory to read into, where that saves a copy."""
        if isinstance(self.store, DirectoryStore):
            return _read_files(self.store.root, wanted, room)
        return self._read_ahead(wanted)

    def _read_ahead(self, wanted: Iterable[RangeRead]) -> Iterator[tuple[RangeRead, Buffer]]:
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
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _read_files(
    root: str, wanted: Iterable[RangeRead], room: Callable[[int], memoryview]
) -> Iterator[tuple[RangeRead, Buffer]]:
    # Not kept open beyond this: an idle worker would keep the space of deleted files taken.
    key, fd = "", -1
    try:
        for one in wanted:
            try:
                if one.key != key:
                    if fd >= 0:
                        os.close(fd)
                        key, fd = "", -1
                    fd = os.open(f"{root}/{one.key}", os.O_RDONLY | os.O_CLOEXEC)
                    key = one.key
                data = room(one.length)
                _read_file(fd, one, data)
            except OSError as error:
                raise store_error(error, f"could not read {root}/{one.key}") from error
            yield one, data
    finally:
        if fd >= 0:
            os.close(fd)


def _read_file(fd: int, wanted: RangeRead, data: memoryview) -> None:
    done = 0
    while done < wanted.length:
        count = os.preadv(fd, [data[done:]], wanted.start + done)
        if not count:
            raise ObjectMissingError(f"{wanted.key} ends before byte {wanted.start + wanted.length}")
        done += count


async def _opened(location: str) -> ObjectStore:
    """On the loop: an SDK may bind itself to the one that runs."""
    return open_store(location)
