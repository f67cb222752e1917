"""Reads that the ledger cannot answer at once, for the fetches of one connection.

A fetch does not wait for its slowest read. It answers with the records at hand, and a read that is under way
goes on. The connection keeps it: the next fetch of the same partition and offset finds it, under way or
complete, however long it takes and even if a cache has dropped the bytes. So a cold partition is answered in
the end, by one read.

The bytes of such reads count as memory of the broker's peers from the moment they begin, with the copies that
are made on the way, until the answer with them is built. They are few: those of the partitions that the last
fetch asked for, within the limits of one answer. A read that no fetch asks for again is given up soon after
it is complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from penstock.log.slicing import cut
from penstock.metadata.image import PartitionKey
from penstock.storage.partitions.answers import Slice

if TYPE_CHECKING:
    from penstock.storage.ledger.ledger import Partition
    from penstock.wire.exchange import Account, Session

_STATE = "cold reads"
_COPIES = 2
"""While a read is under way its bytes may be in memory so many times: as they came, and joined."""
KEPT_SECONDS = 5.0
"""A complete read is kept for so long: consumers that are alive ask again within it."""


class ColdRead:
    """One read, under way until it has a `slice` or an `error`."""

    __slots__ = ("_charged", "_memory", "error", "expiry", "key", "limit_bytes", "offset", "slice")

    def __init__(self, key: PartitionKey, offset: int, limit_bytes: int, memory: Account | None) -> None:
        self.key = key
        self.offset = offset
        self.limit_bytes = limit_bytes
        self.slice: Slice | None = None
        self.error: Exception | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self._memory = memory
        self._charged = 0
        self._charge(_COPIES * limit_bytes)

    @property
    def done(self) -> bool:
        return self.slice is not None or self.error is not None

    def _charge(self, size: int) -> None:
        if self._memory is not None:
            self._memory.hold(size)
            self._memory.free(self._charged)
            self._charged = size

    async def run(self, reading: Awaitable[Slice]) -> None:
        try:
            self.slice = await reading
        except Exception as error:
            self.error = error
        finally:
            self._charge(self.slice.size if self.slice is not None else 0)

    def release(self) -> None:
        """Nobody needs it any more, or its answer is built and counts as one."""
        if self.expiry is not None:
            self.expiry.cancel()  # It would keep what was read in memory until its time.
        self._charge(0)

    def within(self, max_bytes: int, limit_offset: int) -> Slice:
        """What was read, within the limits of the fetch that asks now; at least one batch."""
        found = self.slice
        assert found is not None
        if found.size <= max_bytes and found.next_offset <= limit_offset:
            return found
        pieces = [memoryview(buffer) for buffer in found.buffers]
        return Slice(*cut(pieces, self.offset, max_bytes, limit_offset), found.aborted)


class ColdReads:
    """The cold reads of one connection."""

    def __init__(self, spawn: Callable[..., object], memory: Account | None) -> None:
        self._spawn = spawn
        self._memory = memory
        self._reads: dict[PartitionKey, ColdRead] = {}
        self._under_way: set[ColdRead] = set()
        """Those in `_reads`, and others that no fetch asks for any more."""
        self._watchers: dict[object, Callable[[], None]] = {}

    @property
    def under_way(self) -> bool:
        return bool(self._under_way)

    @property
    def under_way_bytes(self) -> int:
        return sum(read.limit_bytes for read in self._under_way)

    def find(self, partition: Partition, offset: int) -> ColdRead | None:
        read = self._reads.get((partition.topic_id, partition.index))
        return read if read is not None and read.offset == offset else None

    def begin(
        self, partition: Partition, offset: int, limit_bytes: int, reading: Awaitable[Slice]
    ) -> ColdRead:
        key = (partition.topic_id, partition.index)
        self._leave(key)
        read = self._reads[key] = ColdRead(key, offset, limit_bytes, self._memory)
        self._under_way.add(read)
        self._spawn(self._run(read, reading))
        return read

    async def _run(self, read: ColdRead, reading: Awaitable[Slice]) -> None:
        try:
            await read.run(reading)
        finally:
            self._under_way.discard(read)
            if self._reads.get(read.key) is read:
                read.expiry = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._expire, read)
            else:
                read.release()
            for wake in tuple(self._watchers.values()):
                wake()

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` whenever a read is complete, until the function that is returned is called."""
        key = object()
        self._watchers[key] = callback
        return lambda: self._watchers.pop(key, None) and None

    def keep(self, wanted: Iterable[ColdRead]) -> None:
        """Leave alone all reads but these."""
        kept = {read.key for read in wanted}
        for key in [key for key in self._reads if key not in kept]:
            self._leave(key)

    def take(self, taken: Iterable[ColdRead]) -> None:
        """An answer is built from these."""
        for read in taken:
            if self._reads.get(read.key) is read:
                self._leave(read.key)

    def _leave(self, key: PartitionKey) -> None:
        read = self._reads.pop(key, None)
        if read is not None and read not in self._under_way:
            read.release()

    def _expire(self, read: ColdRead) -> None:
        self.take((read,))


def cold_reads_of(session: Session) -> ColdReads | None:
    """The connection's, if it ever had any."""
    found: ColdReads | None = session.state.get(_STATE)
    return found


def make_cold_reads(session: Session, spawn: Callable[..., object]) -> ColdReads:
    found = cold_reads_of(session)
    if found is None:
        found = session.state[_STATE] = ColdReads(spawn, session.memory)
    return found
