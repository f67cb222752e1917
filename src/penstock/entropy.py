"""The one place that asks the machine for random bytes. All else in a broker is handed an `Entropy`."""

import os
from typing import Protocol


class Entropy(Protocol):
    def token(self, size: int) -> bytes:
        """So many bytes that nobody else has: for names, ids and nonces."""

    def fraction(self) -> float:
        """A number in [0, 1): for pauses that shall differ between brokers."""


class SystemEntropy:
    def token(self, size: int) -> bytes:
        return os.urandom(size)

    def fraction(self) -> float:
        return int.from_bytes(os.urandom(4), "big") / 2**32


SYSTEM: Entropy = SystemEntropy()


def uuid4(entropy: Entropy) -> bytes:
    """A random UUID of version 4."""
    raw = bytearray(entropy.token(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return bytes(raw)
