"""The types that count as bytes here: a memoryview slice and a socket write take them without a copy."""

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
