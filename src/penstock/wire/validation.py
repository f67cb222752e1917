"""The checks of each record that a client produces: Kafka's checks, and when Penstock makes them.

Apache Kafka reads every record of every produced batch. `validate_records` does the same, in the cases in
which the answer depends on each record:

- The topic is compacted: each record must have a key.
- `message.timestamp.before.max.ms` is set: any record may be too old, and the header does not tell.
- The newest timestamp, which the header has, is beyond `message.timestamp.after.max.ms`: the answer names the
  records that are too new.

In all other cases the broker skims records (`skim.in_order`), and reads all only if something looks unusual.
In both cases it expands a compressed block whole, in bounded memory. Skimming does not find a record that
does not parse in the middle of a large batch with a right CRC. Such a record fails in the consumer.

Penstock does not compare the header's maximum timestamp with the records; Kafka corrects it. Offsets must
count from 0 without a gap. Kafka stores other offsets as they are if a batch is not compressed, and readers
then see offsets that the log has given to other records.
"""

import msgspec

from penstock.wire.batch import NO_TIMESTAMP, BatchHeader, iter_raw
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


def validate_records(
    data: Buffer, header: BatchHeader, limits: TimestampLimits | None, *, keys_required: bool
) -> list[RecordError]:
    """What is wrong with single records of a block that was taken out of its codec; nothing, mostly.

    Raises BatchError with INVALID_RECORD if the records do not parse.
    """
    errors: list[RecordError] = []
    base = header.base_timestamp
    oldest, newest = -UNLIMITED, UNLIMITED
    if limits is not None:
        oldest, newest = limits.now_ms - limits.before_max_ms, limits.now_ms + limits.after_max_ms
    expected = 0
    try:
        for when, offset, key_at, key_end, _, _, _ in iter_raw(data, header.record_count):
            if offset != expected:
                raise WireError(f"record {expected} has the offset delta {offset}")
            if keys_required and key_end < key_at:
                errors.append(_keyless(expected))
            elif not oldest <= base + when <= newest and base + when != NO_TIMESTAMP:
                errors.append(_out_of_range(expected, base + when, oldest, newest))
            expected += 1
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
