"""What Kafka checks of each record when a client produces, and when Penstock does.

Apache Kafka reads every record of every produced batch. Penstock's hot path checks the batch as a whole
(`batch.check_produced`): length, CRC, number of records, offsets of the header, sequence, no control records.
Records are looked at only where an answer depends on them:

- the topic is compacted: each record must have a key;
- `message.timestamp.before.max.ms` is set: any record may be too old, and the header does not tell;
- the newest timestamp, which the header has, is beyond `message.timestamp.after.max.ms`: the answer names the
  records that are;
- the records come in a format that is converted (`legacy`), which reads them anyway.

Recompression moves the records block whole and needs no look inside; LogAppendTime overrides all timestamps,
so their limits do not apply. What the hot path cannot see is a record that does not parse inside a batch with
a right CRC: it is stored as the producer made it, and reading it fails in the consumer. Nor is the header's
maximum timestamp compared with the records. Offsets that are not 0, 1, 2, ... are refused where records are
looked at; Kafka renumbers them.
"""

import msgspec

from penstock.wire.batch import (
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    BatchHeader,
    iter_raw,
    records_block,
    set_max_timestamp,
)
from penstock.wire.buffers import Buffer
from penstock.wire.errors import BatchError, ErrorCode, WireError

UNLIMITED = 0x7FFFFFFFFFFFFFFF


class RecordError(msgspec.Struct, frozen=True):
    """Why one record was refused, and with it its batch."""

    index: int
    code: ErrorCode
    message: str


class TimestampLimits(msgspec.Struct, frozen=True):
    """How far from now the timestamps of a topic with CreateTime may be."""

    now_ms: int
    before_max_ms: int = UNLIMITED
    after_max_ms: int = UNLIMITED

    def allow(self, timestamp_ms: int) -> bool:
        if timestamp_ms == NO_TIMESTAMP:
            return True
        age = self.now_ms - timestamp_ms
        return age <= self.before_max_ms and -age <= self.after_max_ms


def must_look_inside(header: BatchHeader, limits: TimestampLimits | None, *, keys_required: bool) -> bool:
    """Whether the header leaves open what `validate_records` would say. A topic with LogAppendTime has no
    limits."""
    if keys_required:
        return True
    if limits is None:
        return False
    return limits.before_max_ms != UNLIMITED or not limits.allow(header.max_timestamp)


def set_timestamp_type(
    buf: bytearray | memoryview, pos: int, header: BatchHeader, append_time_ms: int | None
) -> None:
    """Give a produced batch the timestamp type of its topic: LogAppendTime if a time is given.

    As in Kafka, a producer that claims LogAppendTime is refused where the topic has it (BatchError), and
    corrected where it has CreateTime.
    """
    claimed = header.attributes & LOG_APPEND_TIME
    if append_time_ms is not None:
        if claimed:
            raise BatchError(ErrorCode.INVALID_TIMESTAMP, "a producer must not set the type LogAppendTime")
        set_max_timestamp(buf, pos, append_time_ms, log_append_time=True)
    elif claimed:
        set_max_timestamp(buf, pos, header.max_timestamp, log_append_time=False)


def validate_records(
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    limits: TimestampLimits | None,
    *,
    keys_required: bool,
    limit: int | None = None,
) -> list[RecordError]:
    """What is wrong with single records of the batch at `pos`; nothing, mostly.

    Raises BatchError: INVALID_RECORD if the records do not parse, MESSAGE_TOO_LARGE if they expand too far.
    """
    errors: list[RecordError] = []
    base = header.base_timestamp
    oldest, newest = -UNLIMITED, UNLIMITED
    if limits is not None:
        oldest, newest = limits.now_ms - limits.before_max_ms, limits.now_ms + limits.after_max_ms
    expected = 0
    try:
        data = records_block(buf, pos, header, limit)
        for when, offset, key_at, key_end, _, _, _ in iter_raw(data, header.record_count):
            if offset != expected:
                raise WireError(f"record {expected} has the offset delta {offset}")
            if keys_required and key_end < key_at:
                errors.append(_keyless(expected))
            elif not oldest <= base + when <= newest and base + when != NO_TIMESTAMP:
                errors.append(_out_of_range(expected, base + when, oldest, newest))
            expected += 1
    except BatchError:
        raise
    except WireError as error:
        raise BatchError(ErrorCode.INVALID_RECORD, str(error)) from None
    return errors


def _keyless(index: int) -> RecordError:
    return RecordError(index, ErrorCode.INVALID_RECORD, "Compacted topic cannot accept message without key")


def _out_of_range(index: int, timestamp: int, oldest: int, newest: int) -> RecordError:
    return RecordError(
        index,
        ErrorCode.INVALID_TIMESTAMP,
        f"Timestamp {timestamp} of message with offset {index} is out of range. "
        f"The timestamp should be within [{oldest}, {newest}]",
    )
