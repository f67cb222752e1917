"""What counts as bytes here: anything that a memoryview slice or a socket write takes without a copy."""

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
