"""Buffers for large reads, used again.

The C library returns a large buffer to the system when it is freed. Then each read would have all of its
pages zeroed and mapped anew, which costs more than to copy the bytes from the page cache. So a few buffers
are kept. A reader gets a view of one. A buffer is free when no view of it is left, nor any view of a view,
wherever an answer holds one: only then does Python let the buffer change its size.
"""

SMALL_BYTES = 64 * 1024
"""Smaller buffers come from memory that the C library keeps."""
KEPT_BYTES_MAX = 24 * 1024 * 1024
_STEP_BYTES = 64 * 1024
_UNUSED_SHARE = 4
"""A read leaves at most one part in so many of a kept buffer unused: it counts as held in full."""


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
            if length <= len(buffer) <= length + length // _UNUSED_SHARE and _is_free(buffer):
                return memoryview(buffer)[:length]
        return memoryview(self._make(-(-length // _STEP_BYTES) * _STEP_BYTES))[:length]

    def _make(self, size: int) -> bytearray:
        buffer = bytearray(size + 1)
        buffer.pop()  # Room for a byte more, so that `_is_free` moves nothing.
        self._kept.append(buffer)
        self.kept_bytes += size
        while self.kept_bytes > self._bytes_max:
            self.kept_bytes -= len(self._kept.pop(0))
        return buffer


def _is_free(buffer: bytearray) -> bool:
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True
