"""Finding a record by its time, exact to the record: the one place in this room that looks into batches."""

from typing import NamedTuple

from penstock.wire.batch import BatchHeader, iter_batches, iter_records
from penstock.wire.buffers import Buffer
from penstock.wire.errors import WireError


class RecordTime(NamedTuple):
    offset: int
    timestamp: int
    leader_epoch: int


def first_at_or_after(
    stored: Buffer, timestamp: int, start_offset: int, limit_offset: int
) -> RecordTime | None:
    """The first record at or after `timestamp` with an offset in [start_offset, limit_offset), in batches
    that lie one after the other. Batches whose header rules them out are not decoded."""
    for position, header in iter_batches(stored):
        if header.base_offset >= limit_offset:
            return None
        if header.max_timestamp < timestamp or header.last_offset < start_offset:
            continue
        for offset, time in _times(stored, position, header):
            if time >= timestamp and start_offset <= offset < limit_offset:
                return RecordTime(offset, time, header.leader_epoch)
    return None


def greatest(stored: Buffer, start_offset: int, limit_offset: int) -> int | None:
    """The greatest time of a record with an offset in [start_offset, limit_offset)."""
    found: int | None = None
    for position, header in iter_batches(stored):
        if header.base_offset >= limit_offset or header.last_offset < start_offset:
            continue
        if not header.record_count:
            continue  # What compaction left of a batch: its time is that of no record.
        if start_offset <= header.base_offset and header.last_offset < limit_offset:
            times = [header.max_timestamp]
        else:
            times = [
                time
                for offset, time in _times(stored, position, header)
                if start_offset <= offset < limit_offset
            ]
        found = max((*times, found)) if found is not None else max(times, default=None)
    return found


def _times(stored: Buffer, position: int, header: BatchHeader) -> list[tuple[int, int]]:
    """Offsets and times of a batch's records. A batch whose records cannot be read, which a client may
    have written, counts as one record at its base offset: a reader that seeks there misses nothing."""
    try:
        return [(record.offset, record.timestamp) for record in iter_records(stored, position)]
    except WireError:
        return [(header.base_offset, header.max_timestamp)]
