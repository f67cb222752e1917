"""The newest batches of all partitions, in memory. Most fetches are answered from it.

It is one queue over all partitions, oldest out first, bounded in bytes. It keeps batches as they came to the
ledger, without a copy: in a buffer of their own, or as a view of the receive buffer. Such a view keeps the
whole receive buffer alive. So the cache counts that buffer's size once, however many batches lie in it. It
copies only small views, so that a few bytes do not hold a large buffer.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable

from penstock.log.partition import Placed
from penstock.wire.buffers import Buffer

COPIED_BYTES_MAX = 4096
JOINED_BYTES_MAX = 4096
"""Batches smaller than this on average are joined for a reader: sending each by itself costs more."""
_ENTRY_BYTES = 200  # Roughly what the bookkeeping of one batch takes.
_COMPACT_AT = 256


class Tail:
    """The cached batches of one partition: always a run that ends at the high watermark."""

    __slots__ = ("buffers", "ends", "head", "last_offsets", "start")

    def __init__(self) -> None:
        self.last_offsets: list[int] = []
        self.buffers: list[Buffer] = []
        self.ends: list[int] = []
        """The sum of all sizes up to and with each batch, counted from any number."""
        self.head = 0
        """Entries before this one are gone."""
        self.start = -1
        """The first cached offset, or -1 when nothing is cached."""

    def read(self, offset: int, max_bytes: int, limit_offset: int) -> tuple[list[Buffer], int, int]:
        """Batches from the one that contains `offset`, which must be cached; their bytes; the offset
        after them. At least one batch, if there is one below `limit_offset`."""
        lasts, ends = self.last_offsets, self.ends
        first = bisect_left(lasts, offset, self.head)
        limit = bisect_left(lasts, limit_offset, first)
        if first == limit:
            return [], 0, offset
        before = ends[first] - len(self.buffers[first])
        stop = max(bisect_right(ends, before + max_bytes, first, limit), first + 1)
        found = self.buffers[first:stop]
        size = ends[stop - 1] - before
        if len(found) > 1 and size < len(found) * JOINED_BYTES_MAX:
            found = [b"".join(found)]
        return found, size, lasts[stop - 1] + 1

    def hide_below(self, offset: int) -> None:
        """Batches below `offset`, where one begins, are not read from here any more: storage holds them as
        compaction left them."""
        if self.start >= 0:
            self.start = max(self.start, offset)

    def _drop_first(self) -> Buffer:
        head = self.head
        buffer = self.buffers[head]
        self.start = max(self.start, self.last_offsets[head] + 1)
        self.buffers[head] = b""
        self.head = head = head + 1
        if head == len(self.buffers):
            self.last_offsets.clear()
            self.buffers.clear()
            self.ends.clear()
            self.head = 0
            self.start = -1
        elif head >= _COMPACT_AT and head * 2 >= len(self.buffers):
            del self.last_offsets[:head]
            del self.buffers[:head]
            del self.ends[:head]
            self.head = 0
        return buffer


class TailCache:
    __slots__ = ("_order", "_pinned", "bytes_max", "bytes_used")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self._order: deque[Tail] = deque()
        self._pinned: dict[int, list[int]] = {}
        """By the identity of a receive buffer: how many cached batches lie in it, and its size."""

    def append_batches(
        self, tail: Tail, batches: Iterable[tuple[bytearray | memoryview, Placed, object]]
    ) -> None:
        """Cache batches that now end the partition. One that is larger than the bound is cached alone."""
        lasts, buffers, ends, order = tail.last_offsets, tail.buffers, tail.ends, self._order
        end = ends[-1] if ends else 0
        for batch, (base_offset, last_offset, _time, _append_time), _done in batches:
            size = len(batch)
            kept: Buffer = batch
            if type(batch) is memoryview and size > COPIED_BYTES_MAX:
                self._pin(batch)
            else:
                if type(batch) is memoryview:
                    kept = bytes(batch)
                self.bytes_used += size + _ENTRY_BYTES
            if tail.start < 0:
                tail.start = base_offset
            lasts.append(last_offset)
            buffers.append(kept)
            end += size
            ends.append(end)
            order.append(tail)
        while self.bytes_used > self.bytes_max and len(order) > 1:
            self._evict()

    def _evict(self) -> None:
        batch = self._order.popleft()._drop_first()
        if type(batch) is memoryview:
            self._unpin(batch)
        else:
            self.bytes_used -= len(batch) + _ENTRY_BYTES

    def _pin(self, batch: memoryview) -> None:
        owner = batch.obj
        pinned = self._pinned.get(id(owner))
        if pinned is None:
            size = memoryview(owner).nbytes + _ENTRY_BYTES
            self._pinned[id(owner)] = [1, size]
            self.bytes_used += size
        else:
            pinned[0] += 1

    def _unpin(self, batch: memoryview) -> None:
        key = id(batch.obj)
        pinned = self._pinned[key]
        pinned[0] -= 1
        if not pinned[0]:
            del self._pinned[key]
            self.bytes_used -= pinned[1]
