"""The part of each batch that compaction keeps.

The rules are Kafka's (Cleaner, CleanedTransactionMetadata, MemoryRecords.filterTo):

- A record stays if no later record of the log has its key. Records without a key go.
- A tombstone (a record without a value) stays for delete.retention.ms after it was first cleaned. Its batch
  notes the moment after which it may go, the delete horizon: attribute bit 6 says that the base timestamp is
  that moment. Timestamps of records are relative to it, so readers see the times that they always saw.
- Records of aborted transactions go. A transaction marker stays while a batch of its transaction is left, and
  then for delete.retention.ms more, by the same horizon.
- Base offset, last offset, sequence, epochs, codec and the type of timestamps of a batch stay, whatever
  becomes of its records.
- A batch without records goes, with two exceptions: the last one of each known producer, because it carries
  the sequence, and the last one of the cleaned part, because a reader must get to its end.

Some batches cannot be read: they are damaged, or were stored before the topic was compacted and the records
were looked at. Compaction leaves them as they are: it removes nothing that it does not understand.

The caller must show batches in the order of the log, from its start: whether a marker is still needed depends
on the batches before it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.log.compaction_keys import LatestOffsets, OffsetMarks, kept_records
from penstock.log.extents import EXTENT_BYTES, Extents
from penstock.log.markers import AbortedTransaction, MarkerKind, parse_marker
from penstock.log.producers import ProducerEntry
from penstock.wire import compression, varint
from penstock.wire.batch import (
    CODEC_MASK,
    CRC_FROM,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    assemble,
    records_block,
)
from penstock.wire.buffers import Buffer
from penstock.wire.checksum import crc32c
from penstock.wire.errors import WireError

_TIME_MAX = 2**62
"""A delete horizon beyond all time, for a retention without end. Times relative to it fit into 64 bits."""


class Outcome(NamedTuple):
    """The part of a batch that stays."""

    batch: Buffer | None
    """The batch as it is stored from now on; None: nothing is left."""
    changed: bool
    max_timestamp: int = NO_TIMESTAMP
    """The greatest time of its records; none if it has none."""


GONE = Outcome(None, True)


class LastOf(NamedTuple):
    """The newest batch of a producer: where it ends, or, if only a marker is known, its epoch."""

    last_offset: int
    epoch: int


def last_batches(producers: Mapping[int, ProducerEntry]) -> dict[int, LastOf]:
    return {
        producer_id: LastOf(entry.batches[-1].last_offset if entry.batches else -1, entry.epoch)
        for producer_id, entry in producers.items()
    }


class KeyScan:
    """The first pass: collects the newest offset of each key in the dirty part."""

    def __init__(self, latest: LatestOffsets, aborted: Iterable[AbortedTransaction]) -> None:
        self.latest = latest
        self.end_offset: int | None = None
        """Where the part that was seen ends."""
        self.unreadable: list[int] = []
        """Base offsets of batches that cannot be read."""
        self._aborted = AbortedRanges(aborted)
        self._transactions = False

    def see(self, batch: memoryview, header: BatchHeader) -> None:
        attributes = header.attributes
        self.end_offset = header.last_offset + 1
        if header.is_control:
            self._transactions = True
            return
        if attributes & TRANSACTIONAL:
            self._transactions = True
            if self._aborted.covers(header):
                return
        if not header.record_count:
            return
        try:
            records = _checked_block(batch, header)
            self.latest.add(records, header.record_count, header.base_offset, header.last_offset_delta)
        except WireError:
            self.unreadable.append(header.base_offset)

    def marks(
        self, start_offset: int, end_offset: int, producers: Mapping[int, LastOf]
    ) -> OffsetMarks | None:
        """Where the dirty part, from `start_offset` up to `end_offset`, holds anything that may stay. None if
        every batch must be looked at: which markers may go depends on all batches of transactions."""
        if self._transactions:
            return None
        marks = OffsetMarks(start_offset, end_offset)
        marks.add(self.latest.offsets.values())
        marks.add(last.last_offset for last in producers.values())
        marks.add(self.unreadable)
        marks.add((end_offset - 1,))
        return marks


class AbortedRanges:
    """Whether a batch belongs to an aborted transaction."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._by_producer: dict[int, list[AbortedTransaction]] = {}
        self._by_marker: dict[int, AbortedTransaction] = {}
        for one in aborted:
            self._by_producer.setdefault(one.producer_id, []).append(one)
            self._by_marker[one.last_offset] = one

    def covers(self, header: BatchHeader) -> bool:
        # A producer has one transaction at a time, so its ranges lie one after the other.
        ranges = self._by_producer.get(header.producer_id, ())
        at = bisect_left(ranges, header.base_offset, key=lambda one: one.last_offset)
        return at < len(ranges) and ranges[at].first_offset <= header.base_offset

    def ended_by(self, marker_offset: int) -> AbortedTransaction | None:
        return self._by_marker.get(marker_offset)


class BatchSweep:
    """The second pass: decides on each batch from the log start up to `end_offset`."""

    def __init__(
        self,
        scan: KeyScan,
        marks: OffsetMarks | None,
        *,
        log_start: int,
        dirty_offset: int,
        end_offset: int,
        aborted: Sequence[AbortedTransaction],
        producers: Mapping[int, LastOf],
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._newest = scan.latest.offsets
        self._marks = marks
        self._unreadable = frozenset(scan.unreadable)
        self._log_start = log_start
        self._dirty_offset = dirty_offset
        self._end_offset = end_offset
        self._aborted = AbortedRanges(aborted)
        self._producers = producers
        self._now_ms = now_ms
        self._horizon_ms = min(now_ms + delete_retention_ms, _TIME_MAX)
        self._open: set[int] = set()
        """Producers of whose present transaction a batch was seen."""
        self.forgotten: list[AbortedTransaction] = []
        self.records_seen = 0
        self.records_kept = 0

    def may_keep(self, base_offset: int, last_offset: int) -> bool:
        """False if nothing in this stretch of the log stays, so that it need not even be read."""
        if last_offset < self._log_start:
            return False
        if base_offset < self._dirty_offset or self._marks is None:
            return True
        return self._marks.touch(base_offset, last_offset)

    def judge(self, batch: memoryview, header: BatchHeader) -> Outcome:
        last_offset = header.last_offset
        if last_offset < self._log_start:
            return GONE
        if header.is_control:
            return self._judge_marker(batch, header)
        self.records_seen += header.record_count
        if header.attributes & TRANSACTIONAL:
            self._open.add(header.producer_id)
            if self._aborted.covers(header):
                return self._without_records(batch, header)
        if not header.record_count:
            return self._without_records(batch, header)
        if not self.may_keep(header.base_offset, last_offset):
            return self._without_records(batch, header)
        if header.base_offset in self._unreadable:
            return self._whole(batch, header)
        try:
            return self._judge_records(batch, header, _checked_block(batch, header))
        except WireError:
            return self._whole(batch, header)

    def _judge_records(self, batch: memoryview, header: BatchHeader, data: bytes) -> Outcome:
        horizon_set = bool(header.attributes & DELETE_HORIZON)
        tombstones_stay = not horizon_set or header.base_timestamp > self._now_ms
        kept, tombstones = kept_records(
            data, header.record_count, header.base_offset, self._newest, tombstones_stay
        )
        if not kept:
            return self._without_records(batch, header)
        needs_horizon = tombstones and not horizon_set
        if len(kept) == header.record_count and not needs_horizon:
            return self._whole(batch, header)
        self.records_kept += len(kept)
        max_timestamp = header.max_timestamp
        if not header.attributes & LOG_APPEND_TIME:
            max_timestamp = header.base_timestamp + max(_time_of(data, start) for start, _end in kept)
        header = header._replace(record_count=len(kept), max_timestamp=max_timestamp)
        if needs_horizon:
            return self._with_horizon(header, data, kept)
        return _assembled(header, b"".join([data[start:end] for start, end in kept]))

    def _judge_marker(self, batch: memoryview, header: BatchHeader) -> Outcome:
        if not header.record_count:
            return self._without_records(batch, header)
        block = batch[HEADER_SIZE:]
        marker = parse_marker(block)
        if marker is None:
            return Outcome(batch, False, header.max_timestamp)
        needed = header.producer_id in self._open
        self._open.discard(header.producer_id)
        if needed:
            return Outcome(batch, False, header.max_timestamp)
        if marker.kind is MarkerKind.ABORT:
            aborted = self._aborted.ended_by(header.base_offset)
            if aborted is not None:
                self.forgotten.append(aborted)
        if header.attributes & DELETE_HORIZON:
            if header.base_timestamp <= self._now_ms:
                return self._without_records(batch, header)
            return Outcome(batch, False, header.max_timestamp)
        try:
            data = _checked_block(batch, header)
        except WireError:
            return Outcome(batch, False, header.max_timestamp)
        return self._with_horizon(header, data, [(0, len(data))])

    def _with_horizon(self, header: BatchHeader, data: bytes, kept: Sequence[tuple[int, int]]) -> Outcome:
        """The kept records with times relative to the delete horizon, which becomes the base timestamp."""
        shift = header.base_timestamp - self._horizon_ms
        read, zigzag = varint.read_zigzag, varint.zigzag
        parts: list[bytes] = []
        for start, end in kept:
            _size, at = read(data, start)
            when, at = read(data, at + 1)
            head = b"\0" + zigzag(when + shift)
            parts += (zigzag(len(head) + end - at), head, data[at:end])
        attributes = header.attributes | DELETE_HORIZON
        header = header._replace(attributes=attributes, base_timestamp=self._horizon_ms)
        return _assembled(header, b"".join(parts))

    def _whole(self, batch: memoryview, header: BatchHeader) -> Outcome:
        self.records_kept += header.record_count
        return Outcome(batch, False, header.max_timestamp)

    def _without_records(self, batch: memoryview, header: BatchHeader) -> Outcome:
        if not self._keeps_empty(header):
            return GONE
        if not header.record_count:
            return Outcome(batch, False)
        attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON)
        empty = header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0)
        return Outcome(assemble(empty, b""), True)

    def _keeps_empty(self, header: BatchHeader) -> bool:
        if header.last_offset + 1 == self._end_offset:
            return True
        if header.producer_id == NO_PRODUCER_ID:
            return False
        last = self._producers.get(header.producer_id)
        if last is None:
            return False
        if last.last_offset >= 0:
            return header.last_offset == last.last_offset
        return header.is_control and header.producer_epoch == last.epoch


def place(extents: Extents, header: BatchHeader, outcome: Outcome, position: int) -> None:
    """Note where a batch of a cleaned segment lies. Unlike in a log that was not cleaned, batches share an
    extent also where offsets are missing between them."""
    assert outcome.batch is not None
    length = len(outcome.batch)
    if extents and extents.lengths[-1] + length <= EXTENT_BYTES:
        extents.lengths[-1] += length
        extents.last_offsets[-1] = header.last_offset
        extents.max_timestamps[-1] = max(extents.max_timestamps[-1], outcome.max_timestamp)
        return
    extents.append(header.base_offset, header.last_offset, outcome.max_timestamp, position, length)


def _assembled(header: BatchHeader, block: bytes) -> Outcome:
    codec = header.attributes & CODEC_MASK
    return Outcome(assemble(header, compression.compress(codec, block)), True, header.max_timestamp)


def _checked_block(batch: memoryview, header: BatchHeader) -> bytes:
    """The records block. Its checksum is verified first: a batch that is written anew gets a new one, which
    would vouch for whatever had become of it."""
    if crc32c(batch[CRC_FROM:]) != header.crc:
        raise WireError("a batch does not match its CRC")
    return records_block(batch, 0, header)


def _time_of(data: bytes, start: int) -> int:
    """The timestamp delta of the record that begins at `start`."""
    _size, at = varint.read_zigzag(data, start)
    return varint.read_zigzag(data, at + 1)[0]
