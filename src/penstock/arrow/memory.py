"""Memory for the bytes that a task reads and decodes, from Arrow's allocator.

Fresh memory from the operating system costs a page fault each four kilobytes, which is as much as decoding
into it. Arrow's allocator keeps pages that were given back and hands them out again. An array made here
refers to the buffer that it lies in, and so does every view of it and every Arrow array made of those. The
buffer goes back to the allocator when the last of them is gone, and never before.
"""

from typing import Any

import numpy as np
import pyarrow as pa


def room(size: int) -> memoryview:
    """`size` bytes with anything in them."""
    return memoryview(pa.allocate_buffer(size)).cast("B")


def array(count: int, kind: Any) -> Any:
    """An array of `count` numbers with anything in it."""
    return np.frombuffer(pa.allocate_buffer(count * np.dtype(kind).itemsize), kind)
