"""A store for code that waits, such as Spark's workers: one call, one answer, and reading ahead.

On a directory, ranges are read by the calling thread, straight from the page cache or the disk. For other
stores a loop runs on a thread of its own, and a few reads are under way while the caller works on one.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Generic, NamedTuple, Never, TypeVar

from penstock.storage.stores.local import LocalDirectory
from penstock.storage.stores.objects import ObjectMissingError, ObjectStore, Range, StoreError
from penstock.storage.stores.opening import open_store
from penstock.wire.buffers import Buffer

T = TypeVar("T")
About = TypeVar("About")

_READS_AHEAD = 3
"""With reads of a few megabytes this hides a store's latency, and bounds the memory of a task."""
_RANGES_AT_ONCE = 16
"""Requests to a store that are under way at a time."""


class Read(NamedTuple, Generic[About]):
    """Ranges whose bytes are wanted one after the other in one buffer; `about` is the caller's."""

    ranges: Sequence[Range]
    about: About

    @property
    def size(self) -> int:
        return sum(one.length for one in self.ranges)


def _fresh(size: int) -> memoryview:
    return memoryview(bytearray(size))


class BlockingStore:
    def __init__(self, location: str) -> None:
        """`location`: as in `open_store`. Raises StoreError if it names no store."""
        self.location = location
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-io", daemon=True)
        self._thread.start()
        self._free = asyncio.Semaphore(_RANGES_AT_ONCE)
        try:
            self.store: ObjectStore = self.run(_opened(location))
        except BaseException:
            self._end()
            raise

    def run(self, work: Coroutine[object, Never, T]) -> T:
        """Wait for a coroutine that uses the store."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def read_range(self, wanted: Range) -> Buffer:
        """The bytes of one range."""
        ((_read, data),) = self.read((Read((wanted,), None),))
        return data

    def read(
        self, wanted: Iterable[Read[About]], room: Callable[[int], memoryview] = _fresh
    ) -> Iterator[tuple[Read[About], Buffer]]:
        """Each read with its bytes, in order. ObjectMissingError if an object is gone or shorter.

        `room(size)` gives memory to read into, where that saves a copy."""
        if self.store.local is not None:
            return _read_files(self.store.local, wanted, room)
        return self._read_ahead(wanted)

    def _read_ahead(self, wanted: Iterable[Read[About]]) -> Iterator[tuple[Read[About], Buffer]]:
        under_way: deque[tuple[Read[About], Future[Buffer]]] = deque()
        reads = iter(wanted)
        failure: StoreError | None = None
        more = True
        try:
            while more or under_way:
                if more:
                    try:
                        one = next(reads)
                        work = asyncio.run_coroutine_threadsafe(self._gather(one.ranges), self._loop)
                        under_way.append((one, work))
                    except StopIteration:
                        more = False
                    except StoreError as error:
                        # Told in its turn, after the reads that come before it.
                        more, failure = False, error
                if under_way and (not more or len(under_way) > _READS_AHEAD):
                    done, answer = under_way.popleft()
                    yield done, answer.result()
            if failure is not None:
                raise failure
        finally:
            for _one, answer in under_way:
                answer.cancel()

    async def _gather(self, ranges: Sequence[Range]) -> Buffer:
        parts = await asyncio.gather(*map(self._get, ranges))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _get(self, wanted: Range) -> Buffer:
        async with self._free:
            return await self.store.get_range(*wanted)

    def close(self) -> None:
        try:
            self.run(self.store.close())
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _read_files(
    store: LocalDirectory, wanted: Iterable[Read[About]], room: Callable[[int], memoryview]
) -> Iterator[tuple[Read[About], Buffer]]:
    # Not kept open beyond this: an idle worker would keep the space of deleted files taken.
    key, fd = "", -1
    root = store.root
    try:
        for read in wanted:
            data = room(read.size)
            done = 0
            for one in read.ranges:
                try:
                    if one.key != key:
                        if fd >= 0:
                            os.close(fd)
                            key, fd = "", -1
                        fd = os.open(f"{root}/{one.key}", os.O_RDONLY | os.O_CLOEXEC)
                        key = one.key
                    _read_file(fd, one, data[done : done + one.length])
                except OSError as error:
                    raise store.error(error, f"could not read {root}/{one.key}") from error
                done += one.length
            yield read, data
    finally:
        if fd >= 0:
            os.close(fd)


def _read_file(fd: int, wanted: Range, data: memoryview) -> None:
    done = 0
    while done < wanted.length:
        count = os.preadv(fd, [data[done:]], wanted.start + done)
        if not count:
            raise ObjectMissingError(f"{wanted.key} ends before byte {wanted.start + wanted.length}")
        done += count


async def _opened(location: str) -> ObjectStore:
    """On the loop: an SDK may bind itself to the one that runs."""
    return open_store(location)
