"""Counts of times and sizes that cost next to nothing: plain integers, read when somebody asks for them.

A hot path adds to a list by the number of bits of a value, which takes less than a search for its bucket. So
the bounds of the buckets are powers of two: of nanoseconds for times, of bytes for sizes.
"""

_BITS = 64


class Histogram:
    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (_BITS + 1)
        """By the number of bits: `counts[n]` values were at least 2**(n-1) and less than 2**n."""
        self.sum = 0

    def add(self, value: int, weight: int = 1) -> None:
        """`weight`: how many values this one stands for, where only some are measured."""
        self.counts[value.bit_length()] += weight
        self.sum += value * weight

    @property
    def count(self) -> int:
        return sum(self.counts)

    def below(self, bits: range) -> list[int]:
        """How many values were less than 2**n, for each n."""
        total = sum(self.counts[: bits.start])
        found = []
        for n in bits:
            total += self.counts[n]
            found.append(total)
        return found
