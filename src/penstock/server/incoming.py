"""A frame that arrives in parts, in a buffer of its own.

The buffer grows with the bytes that really came, never by the announced length alone unless the peer has kept
such a promise before. So a peer that announces much and sends little costs little.
"""

from penstock.server.sizes import GROWTH, GROWTH_FLOOR


class IncomingFrame:
    __slots__ = ("buffer", "filled", "seen", "size")

    def __init__(self, size: int, beginning: memoryview, trusted: int) -> None:
        """`trusted`: a buffer of this size is given at once."""
        received = len(beginning)
        self.size = size
        self.buffer = bytearray(min(size, max(GROWTH_FLOOR, GROWTH * received, trusted)))
        self.buffer[:received] = beginning
        self.filled = received
        """Bytes that came."""
        self.seen = received
        """How many had come when its progress was last looked at."""

    @property
    def is_full(self) -> bool:
        return self.filled == len(self.buffer)

    def grow(self) -> None:
        """Make room for more of the frame, as much as its progress deserves."""
        larger = bytearray(min(self.size, GROWTH * self.filled))
        larger[: self.filled] = self.buffer
        self.buffer = larger
