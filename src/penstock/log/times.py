"""Finds a record by its time, exact to the record: it looks into batches."""

from collections.abc import Iterator
from typing import NamedTuple

from penstock.wire.batch import BatchHeader, iter_batches, iter_raw, records_block
from penstock.wire.buffers import Buffer
from penstock.wire.errors import ErrorCode, WireError


class RecordTime(NamedTuple):
    offset: int
    timestamp: int
    leader_epoch: int


def first_at_or_after(
    stored: Buffer, timestamp: int, start_offset: int, limit_offset: int, expanded_limit: int | None = None
) -> RecordTime | None:
    """The first record at or after `timestamp` with an offset in [start_offset, limit_offset), in batches
    that lie one after the other. Batches whose header rules them out are not decoded. BatchError with
    MESSAGE_TOO_LARGE for one that exceeds an `expanded_limit`."""
    for position, header in iter_batches(stored):
        if header.base_offset >= limit_offset:
            return None
        if header.max_timestamp < timestamp or header.last_offset < start_offset:
            continue
        for offset, time in _times(stored, position, header, expanded_limit):
            if time >= timestamp and start_offset <= offset < limit_offset:
                return RecordTime(offset, time, header.leader_epoch)
    return None


def greatest(
    stored: Buffer, start_offset: int, limit_offset: int, expanded_limit: int | None = None
) -> int | None:
    """The greatest time of a record with an offset in [start_offset, limit_offset)."""
    found: int | None = None
    for position, header in iter_batches(stored):
        if header.base_offset >= limit_offset or header.last_offset < start_offset:
            continue
        if not header.record_count:
            continue  # What compaction left of a batch: its time is that of no record.
        if start_offset <= header.base_offset and header.last_offset < limit_offset:
            time: int | None = header.max_timestamp
        else:
            time = max(
                (
                    time
                    for offset, time in _times(stored, position, header, expanded_limit)
                    if start_offset <= offset < limit_offset
                ),
                default=None,
            )
        if time is not None and (found is None or time > found):
            found = time
    return found


def _times(
    stored: Buffer, position: int, header: BatchHeader, expanded_limit: int | None
) -> Iterator[tuple[int, int]]:
    """Offsets and times of a batch's records. A batch whose records cannot be read, which a client may
    have written, has another one at its base offset: a reader that seeks there misses nothing."""
    base_offset, base_time = header.base_offset, header.base_timestamp
    try:
        block = records_block(stored, position, header, expanded_limit)
        for when, delta, *_ in iter_raw(block, header.record_count):
            yield base_offset + delta, header.max_timestamp if header.is_log_append_time else base_time + when
    except WireError as error:
        if expanded_limit is not None and getattr(error, "code", None) is ErrorCode.MESSAGE_TOO_LARGE:
            raise
        yield base_offset, header.max_timestamp
