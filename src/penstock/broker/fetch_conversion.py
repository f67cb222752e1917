"""What older readers cannot read is converted for them, or refused, as Kafka does it.

Versions 0 and 1 read message sets of magic 0, versions 2 and 3 of magic 1 (KIP-896 ended them in Kafka;
older clients still ask). zstd is for version 10 and later (KIP-110): a topic whose own compression.type is
zstd is refused to older readers with UNSUPPORTED_COMPRESSION_TYPE. Batches that producers compressed with
it are given to versions 4 to 9 as they are; versions 0 to 3, for which they would have to be converted, get
what comes before such a batch, and the error once they stand at one.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING

from penstock.broker.fetch_results import Result
from penstock.wire.batch import CODEC_MASK, LENGTH_FROM
from penstock.wire.compression import ZSTD
from penstock.wire.errors import ErrorCode, WireError

if TYPE_CHECKING:
    from penstock.wire.buffers import Buffer

BATCHES_FROM = 4
MAGIC_1_FROM = 2
ZSTD_FROM = 10
STORAGE_ERROR_FROM = 6

_unpack_batch = Struct(">8xi9xh").unpack_from
"""Length and attributes of a batch. The ledger gives whole batches, so each of them has a header."""

_UNSUPPORTED = Result(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, aborted=())
_UNCONVERTIBLE = Result(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, aborted=(), size=-1)
_CORRUPT = Result(ErrorCode.CORRUPT_MESSAGE)


def converted(result: Result, version: int, offset: int, *, zstd_topic: bool) -> Result:
    """The result as a reader of `version`, who asked from `offset`, can take it."""
    if version >= ZSTD_FROM:
        return result
    if result.error is ErrorCode.KAFKA_STORAGE_ERROR and version < STORAGE_ERROR_FROM:
        # Clients of that time do not know the code; this one makes them ask again.
        return result._replace(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if result.error is not ErrorCode.NONE:
        return result
    if zstd_topic:
        return _UNSUPPORTED
    if version >= BATCHES_FROM or not result.size:
        return result
    buffers = _before_zstd(result.buffers)
    if not buffers:
        return _UNCONVERTIBLE
    from penstock.wire.legacy import downconvert

    magic = 1 if version >= MAGIC_1_FROM else 0
    try:
        buffers = [downconvert(buffer, magic, offset) for buffer in buffers]
    except WireError:
        return _CORRUPT
    return result._replace(buffers=buffers, size=sum(map(len, buffers)))


def _before_zstd(buffers: Sequence[Buffer]) -> Sequence[Buffer]:
    """The batches up to the first that is compressed with zstd."""
    for number, buffer in enumerate(buffers):
        at = 0
        while at < len(buffer):
            length, attributes = _unpack_batch(buffer, at)
            if attributes & CODEC_MASK == ZSTD:
                before = [memoryview(buffer)[:at]] if at else []
                return [*buffers[:number], *before]
            at += length + LENGTH_FROM
    return buffers
