"""Blocks of objects on a distant store, kept in memory for readers in small steps and for repeated reads.

A consumer that lags asks for a few hundred kilobytes at a time, and each of several groups asks for the same.
Without this cache, each of these is a request to the store. Objects are written once and their names never
used again, so a block is right for ever. Reads go by whole blocks, neighbours that are missing in one
request. A reader that wants a block that is already on its way waits for it. The least recently used ones go
first.

A read that is large beside the cache goes past it, and pushes nothing out.
"""

import asyncio
from collections import OrderedDict
from typing import Protocol, runtime_checkable

from penstock.storage.stores.objects import ObjectMissingError
from penstock.wire.buffers import Buffer

BLOCK_BYTES = 256 * 1024
"""What a small read costs at most; a large one costs as many requests as without blocks."""
_LARGE_SHARE = 4

BlockKey = tuple[str, int]


@runtime_checkable
class DistantStore(Protocol):
    """A store whose every read is a request over a network."""

    async def get_up_to(self, key: str, start: int, length: int) -> bytes:
        """As `get_range`, but an object that ends earlier gives what there is."""


class BlockCache:
    def __init__(self, store: DistantStore, bytes_max: int, block_bytes: int = BLOCK_BYTES) -> None:
        self._store = store
        self._bytes_max = bytes_max
        self._block_bytes = block_bytes
        self._blocks: OrderedDict[BlockKey, bytes] = OrderedDict()
        self._under_way: dict[BlockKey, asyncio.Future[bytes]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.bytes_used = 0
        self.requests = 0
        """To the store."""
        self.hits = 0
        """Reads that needed none."""

    def get_range_now(self, key: str, start: int, length: int) -> Buffer | None:
        """The range, if all of it is here."""
        blocks = []
        for number in self._numbers(start, length):
            block = self._blocks.get((key, number))
            if block is None:
                return None
            blocks.append(block)
        for number in self._numbers(start, length):
            self._blocks.move_to_end((key, number))
        self.hits += 1
        return self._cut(key, blocks, start, length)

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """As ObjectStore.get_range."""
        if length * _LARGE_SHARE > self._bytes_max:
            self.requests += 1
            found = await self._store.get_up_to(key, start, length)
            if len(found) != length:
                raise ObjectMissingError(f"{key} ends before byte {start + length}")
            return found
        numbers = self._numbers(start, length)
        waiting: dict[int, asyncio.Future[bytes]] = {}
        missing: list[int] = []
        blocks: dict[int, bytes] = {}
        for number in numbers:
            block = self._blocks.get((key, number))
            if block is not None:
                blocks[number] = block
            elif (key, number) in self._under_way:
                waiting[number] = self._under_way[key, number]
            else:
                missing.append(number)
        for run in _runs(missing):
            waiting.update(self._fetch(key, run))
        # One reader that goes away takes the block from nobody else.
        for number, future in waiting.items():
            blocks[number] = await asyncio.shield(future)
        return self._cut(key, [blocks[number] for number in numbers], start, length)

    def forget(self, key: str, start: int, length: int) -> None:
        """What is here of a range was not what it should be."""
        for number in self._numbers(start, length):
            self.bytes_used -= len(self._blocks.pop((key, number), b""))

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _numbers(self, start: int, length: int) -> range:
        return range(start // self._block_bytes, (start + max(length, 1) - 1) // self._block_bytes + 1)

    def _cut(self, key: str, blocks: list[bytes], start: int, length: int) -> Buffer:
        at = start % self._block_bytes
        if len(blocks) == 1:
            found: Buffer = memoryview(blocks[0])[at : at + length]
        else:
            joined = bytearray()
            for block in blocks:
                joined += block
            found = memoryview(joined)[at : at + length]
        if len(found) != length:
            # Perhaps it only came short: whoever asks again shall not be told what is kept here.
            self.forget(key, start, length)
            raise ObjectMissingError(f"{key} ends before byte {start + length}")
        return found

    def _fetch(self, key: str, run: range) -> dict[int, asyncio.Future[bytes]]:
        """Begin to read blocks that follow each other, in one request."""
        loop = asyncio.get_running_loop()
        futures: dict[int, asyncio.Future[bytes]] = {number: loop.create_future() for number in run}
        for number, future in futures.items():
            self._under_way[key, number] = future
        task = loop.create_task(self._read(key, run, futures), name="read blocks")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return futures

    async def _read(self, key: str, run: range, futures: dict[int, "asyncio.Future[bytes]"]) -> None:
        size = self._block_bytes
        try:
            self.requests += 1
            stored = await self._store.get_up_to(key, run.start * size, len(run) * size)
        except BaseException as error:
            for future in futures.values():
                if not future.done():
                    told = error if isinstance(error, Exception) else ObjectMissingError("the broker stops")
                    future.set_exception(told)
                    future.exception()  # Marked as seen: who asked for it may have gone.
            if not isinstance(error, Exception):
                raise
        else:
            for at, (number, future) in enumerate(futures.items()):
                block = stored[at * size : (at + 1) * size]
                self._keep((key, number), block)
                if not future.done():
                    future.set_result(block)
        finally:
            for number in run:
                self._under_way.pop((key, number), None)

    def _keep(self, name: BlockKey, block: bytes) -> None:
        self._blocks[name] = block
        self.bytes_used += len(block)
        while self.bytes_used > self._bytes_max and len(self._blocks) > 1:
            _, dropped = self._blocks.popitem(last=False)
            self.bytes_used -= len(dropped)


def _runs(numbers: list[int]) -> list[range]:
    """Numbers in order, as runs without gaps."""
    runs: list[range] = []
    for number in numbers:
        if runs and runs[-1].stop == number:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return runs
