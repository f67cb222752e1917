"""The result of a fetch in one partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.wire.buffers import Buffer
from penstock.wire.errors import ErrorCode

UNKNOWN = -1


class Result(NamedTuple):
    """The fields of one partition in the answer. Kafka tells no offsets along with an error."""

    error: ErrorCode
    high_watermark: int = UNKNOWN
    last_stable_offset: int = UNKNOWN
    log_start: int = UNKNOWN
    aborted: Sequence[tuple[int, int]] | None = None
    """Producer id and first offset of aborted transactions; None: read_uncommitted."""
    buffers: Sequence[Buffer] = ()
    size: int = 0
    """Bytes of records; -1: null instead of none."""
    records: int = 0
    """How many offsets the reader gets on by it."""
    diverging: tuple[int, int] | None = None
    """Epoch and end offset where the log parted from what the reader fetched before."""
