"""Buffers for large reads, used again.

The C library returns a large buffer to the system when it is freed, and each read would have all of its pages
zeroed and mapped anew: that costs more than to copy the bytes from the page cache. So a few buffers are kept.
One is free when nothing refers to it but the place where it is kept: a view of a part of it, wherever an
answer holds one, is a reference.
"""

from sys import getrefcount

SMALL_BYTES = 64 * 1024
"""Smaller buffers come from memory that the C library keeps."""
KEPT_BYTES_MAX = 24 * 1024 * 1024
_STEP_BYTES = 64 * 1024
_UNUSED_SHARE = 4
"""A read leaves at most one part in so many of a kept buffer unused: it counts as held in full."""
_REFERENCES_IF_FREE = 3
"""The list, the loop over it, and the argument of getrefcount."""


class ReadBuffers:
    """Not for several threads."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: list[bytearray] = []
        self.kept_bytes = 0

    def take(self, length: int) -> bytearray | memoryview:
        """`length` bytes to read into. What is in them is undefined."""
        if length < SMALL_BYTES:
            return bytearray(length)
        for buffer in self._kept:
            size = len(buffer)
            if (
                length <= size <= length + length // _UNUSED_SHARE
                and getrefcount(buffer) == _REFERENCES_IF_FREE
            ):
                return memoryview(buffer)[:length]
        return memoryview(self._make(-(-length // _STEP_BYTES) * _STEP_BYTES))[:length]

    def _make(self, size: int) -> bytearray:
        buffer = bytearray(size)
        self._kept.append(buffer)
        self.kept_bytes += size
        while self.kept_bytes > self._bytes_max:
            self.kept_bytes -= len(self._kept.pop(0))
        return buffer
