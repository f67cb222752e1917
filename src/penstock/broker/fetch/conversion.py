"""Converts records for older readers, or refuses them, as Kafka does it.

Versions 0 and 1 read message sets of magic 0, versions 2 and 3 of magic 1 (KIP-896 ended them in Kafka; older
clients still ask). zstd is for version 10 and later (KIP-110): a topic whose own compression.type is zstd is
refused to older readers with UNSUPPORTED_COMPRESSION_TYPE. Versions 4 to 9 get batches that producers
compressed with it as they are. For versions 0 to 3 such a batch would have to be converted: they get the
batches before it, and the error once they stand at it. Records that cannot be read, or that expand too far,
are treated in the same way: CORRUPT_MESSAGE.

`refused` needs no look at the records. `downconverted` takes time and runs in `storage.ledger.expanding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.fetch.results import Result
from penstock.wire.batch import iter_batches
from penstock.wire.errors import BatchError, ErrorCode, WireError

if TYPE_CHECKING:
    from penstock.wire.buffers import Buffer

BATCHES_FROM = 4
MAGIC_1_FROM = 2
ZSTD_FROM = 10
STORAGE_ERROR_FROM = 6

CONVERTED_BYTES = 1_048_576
"""A reader is given no more of a partition at once, whatever it asked for: converting takes time. It is what
old consumers ask for if they are not told otherwise."""

_UNSUPPORTED = Result(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, aborted=())
_UNCONVERTIBLE = Result(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, aborted=(), size=-1)


class Converted(NamedTuple):
    """Some of the batches that were read, as old readers know them."""

    buffers: Sequence[Buffer]
    size: int
    next_offset: int
    """Where those begin that were not looked at."""
    error: ErrorCode = ErrorCode.NONE


def refused(result: Result, version: int, *, zstd_topic: bool) -> Result:
    """The result as far as a reader of `version` is told something else than others because of an error."""
    if result.error is ErrorCode.KAFKA_STORAGE_ERROR and version < STORAGE_ERROR_FROM:
        # Clients of that time do not know the code; this one makes them ask again.
        return result._replace(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if zstd_topic and result.error is ErrorCode.NONE:
        return _UNSUPPORTED
    return result


def downconverted(buffers: Sequence[Buffer], version: int, offset: int, limit: int | None) -> Converted:
    """The first of these batches, as many as are converted soon, for who asked from `offset`.

    BatchError with MESSAGE_TOO_LARGE if the first one that has anything exceeds a `limit`.
    """
    from penstock.wire.legacy import downconvert_batch

    magic = 1 if version >= MAGIC_1_FROM else 0
    out: list[Buffer] = []
    size, next_offset = 0, offset
    for buffer in buffers:
        for pos, header in iter_batches(buffer):
            try:
                part = downconvert_batch(buffer, pos, header, magic, offset, limit)
            except WireError as error:
                if out:
                    return Converted(out, size, next_offset)
                code = error.code if isinstance(error, BatchError) else ErrorCode.CORRUPT_MESSAGE
                if code is ErrorCode.MESSAGE_TOO_LARGE:
                    if limit is not None:
                        raise
                    code = ErrorCode.CORRUPT_MESSAGE  # Readers know nothing of the other one.
                return Converted((), 0, next_offset, code)
            next_offset = header.last_offset + 1
            if part:
                out.append(part)
                size += len(part)
                if size >= CONVERTED_BYTES:
                    return Converted(out, size, next_offset)
    return Converted(out, size, next_offset)


def nothing_of(result: Result) -> Result:
    """The result without its records: they are left for the next fetch."""
    return result._replace(buffers=(), size=0)


def with_records(result: Result, found: Converted) -> Result:
    if found.error is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE:
        return _UNCONVERTIBLE
    if found.error is not ErrorCode.NONE:
        return Result(found.error)
    return result._replace(buffers=found.buffers, size=found.size)
