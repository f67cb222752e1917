"""The checks of batches of producers: those of Kafka's ProduceRequest, UnifiedLog and LogValidator.

There are two steps, as in Kafka, because the checks between them (acks, leadership) have their own codes:

1. `first_batch(records, version)`: is there exactly one batch of the right form for this version?
2. `check(found, demands, now_ms)`: size, checksum, counts, kinds, times and keys.

Both return a `Refused`, or the input of the next step. The records are taken out of their codec once,
whatever follows. They are read one by one if the topic asks for it (compaction needs keys, a bound on past
times needs each time), or if the header shows that a time is out of bounds and the answer must say which.
Else they are skimmed (`wire.skim` says what that finds, and what not), and read if anything looks unusual.

Deliberate differences from Kafka: a codec that does not exist is UNSUPPORTED_COMPRESSION_TYPE; null records,
and a block that its codec cannot expand, are INVALID_RECORD; Kafka calls all three unexpected server errors.
Offsets that are not 0, 1, 2, ... are an INVALID_RECORD too, as are a record's length and bytes after the end
of compressed data where Kafka does not look at them. A message says what is wrong with the records.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from penstock.wire.batch import (
    CODEC_MASK,
    CONTROL,
    CRC_FROM,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    NO_PRODUCER_ID,
    BatchHeader,
    open_block,
    read_header,
    recompress,
    set_max_timestamp,
)
from penstock.wire.buffers import Buffer
from penstock.wire.checksum import crc32c
from penstock.wire.compression import ZSTD, decompress, too_large
from penstock.wire.errors import BatchError, ErrorCode, WireError
from penstock.wire.skim import in_order
from penstock.wire.validation import UNLIMITED, TimestampLimits, validate_records

LOG_OVERHEAD = 12
"""Base offset and length, which the length does not count."""
_UP_TO_MAGIC = 17
_SIZE_MIN = 14
"""No message of any format is shorter: Kafka's LegacyRecord.RECORD_OVERHEAD_V0."""
_MAGIC_AT = 16

_RECORD_ERRORS_MAX = 1000
"""How many records an answer names at most. Kafka names all; a client shows the first few."""

_WRONG_TIME = "One or more records have been rejected due to invalid timestamp"

INLINE_BYTES = 16 * 1024
"""What is read record by record, or compressed, on the event loop: a millisecond or two."""
SKIM_FACTOR = 8
"""To expand a block and skim it takes about an eighth of that time."""
_COMPRESSED_BY = 2
"""What a block expands to is not known before. One that is larger than this part of what may be done at once
is not tried."""

_SIZE = Struct(">i")


class Demands(NamedTuple):
    """The demands of a topic's settings on a batch."""

    max_message_bytes: int
    codec: int | None
    """The codec that batches are stored in (0: none); None: as the producer sent them."""
    codec_level: int | None
    compacted: bool
    log_append_time: bool
    before_max_ms: int
    after_max_ms: int

    @property
    def skims(self) -> bool:
        """Are batches stored as they come, their records no more than skimmed?"""
        return self.codec is None and not self.compacted and self.before_max_ms == UNLIMITED


class Refused(NamedTuple):
    """Why a partition's records are not appended, as the answer says it."""

    code: ErrorCode
    shows_log_start: bool = False
    """Kafka tells the log start offset with some refusals and not with others."""
    message: str | None = None
    record_errors: tuple[tuple[int, str], ...] = ()

    @classmethod
    def by_log(cls, code: ErrorCode, *, leads_surely: bool) -> Refused:
        """What the log itself refused, or failed to write.

        It refuses by what it knows of producers. If another broker may lead, that one may know more, and a
        producer that is told of a gap in its numbers gives up.
        """
        if code not in _SAID_WITHOUT_LOG_START and not leads_surely:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return cls(code, shows_log_start=code not in _SAID_WITHOUT_LOG_START)


_SAID_WITHOUT_LOG_START = frozenset(
    (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT)
)

NO_BATCH = Refused(ErrorCode.INVALID_RECORD)
CORRUPT = Refused(ErrorCode.CORRUPT_MESSAGE)
INVALID = Refused(ErrorCode.INVALID_RECORD, shows_log_start=True)
TOO_LARGE = Refused(ErrorCode.MESSAGE_TOO_LARGE)
UNSUPPORTED_CODEC = Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


def batch_size(data: memoryview) -> int | Refused | None:
    """The size of the batch or message that `data` starts with; None if it is not whole."""
    if len(data) < LOG_OVERHEAD:
        return None
    size: int = _SIZE.unpack_from(data, 8)[0]
    if size < _SIZE_MIN:
        message = f"Record size {size} is less than the minimum record overhead ({_SIZE_MIN})"
        return Refused(ErrorCode.CORRUPT_MESSAGE, message=message)
    if len(data) < _UP_TO_MAGIC:
        return None
    magic = int.from_bytes(data[_MAGIC_AT : _MAGIC_AT + 1], "big", signed=True)
    if not 0 <= magic <= 2:
        return Refused(ErrorCode.CORRUPT_MESSAGE, message=f"Invalid magic found in record: {magic}")
    return size + LOG_OVERHEAD if size + LOG_OVERHEAD <= len(data) else None


def first_batch(records: memoryview | None, version: int) -> memoryview | Refused:
    """The one batch of magic 2 that a request of version 3 or later must hold for a partition."""
    if records is None:
        return NO_BATCH
    size = batch_size(records)
    if size is None:
        return NO_BATCH
    if isinstance(size, Refused):
        return size
    if records[_MAGIC_AT] != 2:
        return NO_BATCH
    if version < 7 and size > CRC_FROM + 1 and records[CRC_FROM + 1] & CODEC_MASK == ZSTD:
        return UNSUPPORTED_CODEC
    if size == len(records):
        return records
    rest = batch_size(records[size:])
    if rest is None:
        return records[:size]  # the beginning of something: Kafka trims it too
    return CORRUPT if isinstance(rest, Refused) else NO_BATCH


def check(
    batch: memoryview, demands: Demands, now_ms: int, limit: int | None = None
) -> memoryview | bytearray | Refused:
    """The batch as it is to be appended, or why it is not. The batch is whole and of magic 2. BatchError with
    MESSAGE_TOO_LARGE if that would take longer than it takes to read a `limit` of bytes record by record."""
    size = len(batch)
    if size < HEADER_SIZE:
        return CORRUPT
    header = read_header(batch)
    attributes, count = header.attributes, header.record_count
    if header.base_offset != 0:
        return INVALID
    if size > demands.max_message_bytes:
        return TOO_LARGE
    expands_to = limit if limit is None or not demands.skims else limit * SKIM_FACTOR
    if expands_to is not None and header.codec and _COMPRESSED_BY * size > expands_to:
        raise too_large(expands_to)
    if crc32c(batch[CRC_FROM:]) != header.crc:
        return CORRUPT
    if attributes & CODEC_MASK > ZSTD:
        return UNSUPPORTED_CODEC
    if count <= 0 or header.last_offset_delta != count - 1:
        return INVALID
    if attributes & CONTROL or (header.producer_id != NO_PRODUCER_ID and header.base_sequence < 0):
        return INVALID
    limits = None
    if not demands.log_append_time:
        limits = TimestampLimits(now_ms, demands.before_max_ms, demands.after_max_ms)
    try:
        block = open_block(batch, 0, header, expands_to)
        refused = _check_records(header, block, demands, limits, limit)
    except WireError as error:
        if is_beyond(error, limit):
            raise
        return refused_expanding(error)
    if refused is not None:
        return refused
    if attributes & LOG_APPEND_TIME:
        if demands.log_append_time:
            return _claimed_append_time(count)
        batch = _with_create_time(batch, header.max_timestamp)
    if demands.codec is None or demands.codec == attributes & CODEC_MASK:
        return batch
    if limit is not None and len(block) > limit:
        raise too_large(limit)
    changed = recompress(read_header(batch), block, demands.codec, demands.codec_level)
    return TOO_LARGE if len(changed) > demands.max_message_bytes else changed


def skimmed(block: memoryview, codec: int, count: int) -> bool:
    """Are the records of a whole batch plainly in order? No also if that takes long to tell."""
    limit = INLINE_BYTES * SKIM_FACTOR
    if codec:
        if _COMPRESSED_BY * len(block) > limit:
            return False
        try:
            return in_order(decompress(codec, block, limit), count)
        except WireError:
            return False
    return in_order(block, count)


def _check_records(
    header: BatchHeader, block: Buffer, demands: Demands, limits: TimestampLimits | None, limit: int | None
) -> Refused | None:
    """Look at the records as far as the topic or the header demands it. WireError if they do not parse."""
    each_counts = demands.compacted or (
        limits is not None and (demands.before_max_ms != UNLIMITED or not limits.allow(header.max_timestamp))
    )
    if not each_counts and in_order(block, header.record_count):
        return None
    if limit is not None and len(block) > limit:
        raise too_large(limit)
    faults = validate_records(block, header, limits, keys_required=demands.compacted)
    if not faults:
        return None
    named = tuple((fault.index, fault.message) for fault in faults[:_RECORD_ERRORS_MAX])
    if any(fault.code is ErrorCode.INVALID_TIMESTAMP for fault in faults):
        return Refused(ErrorCode.INVALID_TIMESTAMP, True, _WRONG_TIME, named)
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{text}')" for index, text in named[:3])
    message = (
        f"One or more records have been rejected due to {len(faults)} record errors in total, and only "
        f"showing the first three errors at most: [{shown}]"
    )
    return Refused(ErrorCode.INVALID_RECORD, True, message, named)


def _claimed_append_time(count: int) -> Refused:
    text = "Invalid timestamp type in message. Producer should not set timestamp type to LogAppendTime."
    named = tuple((index, text) for index in range(min(count, _RECORD_ERRORS_MAX)))
    return Refused(ErrorCode.INVALID_TIMESTAMP, True, _WRONG_TIME, named)


def _with_create_time(batch: memoryview, max_timestamp: int) -> memoryview:
    """The batch without the producer's claim that a broker stamped it. Kafka corrects it likewise."""
    changed = bytearray(batch)
    set_max_timestamp(changed, 0, max_timestamp, log_append_time=False)
    return memoryview(changed)


def is_beyond(error: WireError, limit: int | None) -> bool:
    """Is this about a caller's limit only? Then it is raised again, where it was caught: raised by a function
    that it was passed to, it would refer to itself, and keep what was expanded until the next collection."""
    return limit is not None and isinstance(error, BatchError) and error.code is ErrorCode.MESSAGE_TOO_LARGE


def refused_expanding(error: WireError) -> Refused:
    """Why records that had to be expanded are not taken."""
    code = error.code if isinstance(error, BatchError) else ErrorCode.INVALID_RECORD
    if code is ErrorCode.MESSAGE_TOO_LARGE:
        return TOO_LARGE._replace(message=str(error))
    return Refused(code, shows_log_start=True, message=str(error))
