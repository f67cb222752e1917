"""One partition's log as a state machine: which batches may be appended, and which offsets they get.

An append goes through two states, and only the second is visible to readers:

    stage     offsets, sequences, epochs and times are decided and stamped into the batch; `next_offset`
              and the producer's entry move on
    publish   the write was durable: `high_watermark` and `last_stable_offset` move on

A staged append whose write failed is undone: `undo` puts back the state that `stage` replaced, newest first.
Only this module changes this state; the ledger calls it in the order of its flushes.

`stage` runs once per batch on the hot path and is written plainly for it: one unpack, one pack, no per-record
work, no object for a batch without a producer id.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.log import epochs as epoch_table
from penstock.log.epochs import EpochStart
from penstock.log.guards import REMEMBERED_MAX, Guard, GuardedBatch, Guards
from penstock.log.markers import (
    AbortedTransaction,
    Beginnings,
    MarkerBatch,
    MarkerKind,
    parse_marker,
    touching,
)
from penstock.log.producers import (
    NO_PRODUCER,
    NO_SEQUENCE,
    NO_TRANSACTION,
    SEQUENCE_MAX,
    ProducerEntry,
    SequencedBatch,
    check_sequence,
    find_duplicate,
    is_expired,
    last_sequence_of,
    with_batch,
    with_marker,
)
from penstock.wire.batch import (
    CONTROL,
    HEADER,
    HEADER_SIZE,
    NO_TIMESTAMP,
    STAMP,
    TRANSACTIONAL,
    BatchHeader,
    set_log_append_time,
)
from penstock.wire.errors import ErrorCode

_unpack_header = HEADER.unpack_from
_stamp = STAMP.pack_into


Placed = tuple[int, int, int, int]
"""A batch that was given its place, not yet durable: base offset, last offset, greatest timestamp, and the
time that the broker gave it (-1: none). A plain tuple, because there is one per batch."""


class Duplicate(NamedTuple):
    """The log has this batch already, at these offsets. Kafka reports its greatest timestamp as the append
    time, whether the producer or the broker set it."""

    base_offset: int
    log_append_time_ms: int


class Undo(NamedTuple):
    """What one `stage` replaced of a producer. The rest follows from it and from the next offset."""

    producer_id: int
    entry: ProducerEntry | None


class Undone(NamedTuple):
    """A batch that was not written."""

    epoch: int
    sequence: int
    missed_ms: int = -1
    """When a batch behind it came first."""


ABANDONED_MS = 30_000
"""A producer sends again within seconds. If it goes on without the batch for so long, it has given it up."""


MANY_ABORTED = 1_000
"""Up to so many aborted transactions are looked at in less than 50 microseconds."""


class PartitionLog:
    __slots__ = (
        "_beginnings",
        "aborted",
        "epochs",
        "guards",
        "high_watermark",
        "last_stable_offset",
        "leader_epoch",
        "log_append_time",
        "log_start_offset",
        "next_offset",
        "ongoing",
        "producer_entries",
        "undone",
    )

    def __init__(self, leader_epoch: int, *, log_start_offset: int = 0, next_offset: int = 0) -> None:
        self.leader_epoch = leader_epoch
        self.log_append_time = False
        """Whether the broker's clock stamps batches (message.timestamp.type=LogAppendTime)."""
        self.log_start_offset = log_start_offset
        self.next_offset = next_offset
        """The offset that the next staged batch gets."""
        self.high_watermark = next_offset
        self.last_stable_offset = next_offset
        self.producer_entries: dict[int, ProducerEntry] = {}
        self.epochs: tuple[EpochStart, ...] = ()
        self.ongoing: dict[int, int] = {}
        """First offset of each open transaction by producer id, in the order they began."""
        self.aborted: list[AbortedTransaction] = []
        self._beginnings: Beginnings | None = None
        """For a reader that asks which of many were aborted."""
        self.undone: dict[int, Undone] = {}
        """By producer id, the first of its batches that were not written, and that it did not send again yet.
        Others behind it may be on their way. None of them may become the first of a producer that the
        partition does not know, which may start at any sequence."""
        self.guards = Guards()
        """What the coordinator was asked about transactions that have no record here yet."""

    def lead(self) -> None:
        """Begin this leader epoch at the present end."""
        self.epochs = epoch_table.with_epoch(self.epochs, self.leader_epoch, self.next_offset)

    @property
    def staged_stable_offset(self) -> int:
        """The last stable offset once all that is staged is durable. The first records of an open
        transaction may be deleted, and no reader is sent back to them."""
        for first_offset in self.ongoing.values():
            return max(first_offset, self.log_start_offset)
        return self.next_offset

    def stage(
        self, batch: bytearray | memoryview, now_ms: int, undo: list[Undo]
    ) -> Placed | Duplicate | ErrorCode:
        """Decide on one checked batch, and stamp it if it is accepted."""
        (
            _base, length, _epoch, _magic, _crc, attributes, last_delta, _first_time, max_timestamp,
            producer_id, producer_epoch, base_sequence, _count,
        ) = _unpack_header(batch)  # fmt: skip
        base = self.next_offset
        last = base + last_delta
        append_time = NO_TIMESTAMP
        if self.log_append_time:
            append_time = max_timestamp = now_ms
        if producer_id == NO_PRODUCER:
            pass
        elif attributes & CONTROL:
            refusal = self._stage_marker(batch, producer_id, producer_epoch, max_timestamp, now_ms, undo)
            if refusal is not None:
                return refusal
        else:
            entry = self.producer_entries.get(producer_id)
            last_sequence = NO_SEQUENCE
            if base_sequence >= 0:
                last_sequence = last_sequence_of(base_sequence, last_delta)
                if entry is not None:
                    earlier = find_duplicate(entry, producer_epoch, base_sequence, last_sequence)
                    if earlier is not None:
                        return Duplicate(earlier.base_offset, earlier.timestamp)
            transactional = attributes & TRANSACTIONAL != 0
            refusal = self._stage_data(
                entry,
                producer_id,
                producer_epoch,
                SequencedBatch(base_sequence, last_sequence, base, last, max_timestamp),
                transactional,
                batch.guard if transactional and isinstance(batch, GuardedBatch) else None,
                now_ms,
                undo,
            )
            if refusal is not None:
                return refusal
        if append_time >= 0:
            set_log_append_time(batch, 0, now_ms)
        _stamp(batch, 0, base, length, self.leader_epoch)
        self.next_offset = last + 1
        return base, last, max_timestamp, append_time

    def _stage_data(
        self,
        entry: ProducerEntry | None,
        producer_id: int,
        producer_epoch: int,
        batch: SequencedBatch,
        transactional: bool,
        guard: Guard | None,
        now_ms: int,
        undo: list[Undo],
    ) -> ErrorCode | None:
        open_transaction = entry is not None and entry.txn_first_offset != NO_TRANSACTION
        if transactional:
            if entry is not None and producer_epoch < entry.epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH
            if not self.in_transaction(producer_id, producer_epoch):
                refusal = self.guards.refusal(guard, producer_id, producer_epoch, batch.base_sequence, entry)
                if refusal is not None:
                    return refusal
        if batch.base_sequence >= 0:  # The group coordinator's commits of offsets carry none.
            refusal = check_sequence(entry, producer_epoch, batch.base_sequence)
            if self.undone and (refusal is None or refusal is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
                refusal = self._behind_undone(
                    entry, producer_id, producer_epoch, batch.base_sequence, now_ms, refusal
                )
            if refusal is not None:
                return refusal
        if open_transaction and not transactional:
            return ErrorCode.INVALID_TXN_STATE
        if transactional and not open_transaction:
            self.ongoing[producer_id] = batch.base_offset
        undo.append(Undo(producer_id, entry))
        self.producer_entries[producer_id] = with_batch(
            entry, producer_epoch, batch, now_ms, transactional=transactional
        )
        return None

    def in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Has the producer a transaction open here, in this epoch? Then its batches need no guard."""
        entry = self.producer_entries.get(producer_id)
        return (
            entry is not None and entry.txn_first_offset != NO_TRANSACTION and entry.epoch == producer_epoch
        )

    def _stage_marker(
        self,
        batch: bytearray | memoryview,
        producer_id: int,
        producer_epoch: int,
        timestamp: int,
        now_ms: int,
        undo: list[Undo],
    ) -> ErrorCode | None:
        marker = parse_marker(batch[HEADER_SIZE:])
        if marker is None:
            return None
        entry = self.producer_entries.get(producer_id)
        has_own_epoch = isinstance(batch, MarkerBatch) and batch.has_own_epoch
        if entry is not None:
            if producer_epoch < entry.epoch or (
                producer_epoch == entry.epoch and entry.txn_first_offset != NO_TRANSACTION and has_own_epoch
            ):
                return ErrorCode.INVALID_PRODUCER_EPOCH
            if marker.coordinator_epoch < entry.coordinator_epoch:
                return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        undo.append(Undo(producer_id, entry))
        self._end_transaction(producer_id, self.next_offset, marker.kind)
        self.guards.end(producer_id, producer_epoch - 1 if has_own_epoch else producer_epoch)
        self.producer_entries[producer_id] = with_marker(
            entry, producer_epoch, marker.coordinator_epoch, timestamp, now_ms
        )
        return None

    def _end_transaction(self, producer_id: int, marker_offset: int, kind: MarkerKind) -> None:
        first_offset = self.ongoing.pop(producer_id, NO_TRANSACTION)
        if first_offset == NO_TRANSACTION or kind is not MarkerKind.ABORT:
            return
        stable = next(iter(self.ongoing.values()), marker_offset + 1)
        self.aborted.append(AbortedTransaction(producer_id, first_offset, marker_offset, stable))

    def undo(self, next_offset: int, staged: Sequence[Undo]) -> None:
        """Take back what was staged last, in the order it was staged, from `next_offset` on."""
        self.next_offset = next_offset
        reopened = False
        for producer_id, entry in reversed(staged):
            taken = self.producer_entries.get(producer_id)
            # A marker leaves the batches as they were.
            if taken is not None and taken.batches and (entry is None or taken.batches != entry.batches):
                self._note_undone(producer_id, taken.epoch, taken.batches[-1].base_sequence)
            if entry is None:
                self.producer_entries.pop(producer_id, None)
            else:
                self.producer_entries[producer_id] = entry
            if entry is None or entry.txn_first_offset == NO_TRANSACTION:
                self.ongoing.pop(producer_id, None)
            elif producer_id not in self.ongoing:
                self.ongoing[producer_id] = entry.txn_first_offset
                reopened = True
        if reopened:
            self.ongoing = dict(sorted(self.ongoing.items(), key=lambda one: one[1]))
        while self.aborted and self.aborted[-1].last_offset >= next_offset:
            self.aborted.pop()

    def give_up(self, batch: bytearray | memoryview) -> None:
        """A checked batch is not written after all, and its producer is told so."""
        self._note_undone(*_unpack_header(batch)[9:12])

    def _note_undone(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        if producer_id == NO_PRODUCER or base_sequence < 0:
            return
        known = self.undone.pop(producer_id, None)
        if known is not None and (
            known.epoch > producer_epoch
            or (known.epoch == producer_epoch and _follows(base_sequence, known.sequence))
        ):
            self.undone[producer_id] = known
            return
        self.undone[producer_id] = Undone(producer_epoch, base_sequence)
        if len(self.undone) > REMEMBERED_MAX:
            del self.undone[next(iter(self.undone))]

    def _behind_undone(
        self,
        entry: ProducerEntry | None,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        now_ms: int,
        refusal: ErrorCode | None,
    ) -> ErrorCode | None:
        """The answer to a batch that may lie behind one that was not written; `refusal`: by its sequence
        alone.

        A batch on its way behind one that failed is told the same as that one: it was not written, and is to
        be sent again. Out of order would be wrong. It tells a producer that the log lost its records.
        librdkafka then begins a new epoch, and sends in it all that was not acknowledged. Nobody can find a
        duplicate then, and a batch of which the outcome was in doubt is stored twice."""
        undone = self.undone.get(producer_id)
        if undone is None:
            return refusal
        # A copy of a batch may have been given up that another copy of it had brought into the log.
        is_written = (
            entry is not None
            and entry.epoch == undone.epoch
            and entry.last_sequence != NO_SEQUENCE
            and not _follows(undone.sequence, entry.last_sequence)
        )
        is_abandoned = 0 <= undone.missed_ms <= now_ms - ABANDONED_MS
        if is_written or is_abandoned:
            del self.undone[producer_id]
        elif producer_epoch == undone.epoch and _follows(base_sequence, undone.sequence):
            if undone.missed_ms < 0:
                self.undone[producer_id] = undone._replace(missed_ms=now_ms)
            return ErrorCode.KAFKA_STORAGE_ERROR
        elif refusal is None and (producer_epoch, base_sequence) >= (undone.epoch, undone.sequence):
            del self.undone[producer_id]  # It is this one, or of a later epoch.
        return refusal

    def replay(self, header: BatchHeader, control: bytes, now_ms: int) -> None:
        """Take over a durable batch from a log: decided long ago, so nothing is checked."""
        self.next_offset = header.last_offset + 1
        self.epochs = epoch_table.with_epoch(self.epochs, header.leader_epoch, header.base_offset)
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER:
            return
        entry = self.producer_entries.get(producer_id)
        if header.attributes & CONTROL:
            marker = parse_marker(control)
            if marker is not None:
                self._end_transaction(producer_id, header.base_offset, marker.kind)
                self.producer_entries[producer_id] = with_marker(
                    entry, header.producer_epoch, marker.coordinator_epoch, header.max_timestamp, now_ms
                )
            return
        transactional = bool(header.attributes & TRANSACTIONAL)
        if transactional and (entry is None or entry.txn_first_offset == NO_TRANSACTION):
            self.ongoing[producer_id] = header.base_offset
        sequence = header.base_sequence
        batch = SequencedBatch(
            sequence, header.last_sequence, header.base_offset, header.last_offset, header.max_timestamp
        )
        self.producer_entries[producer_id] = with_batch(
            entry, header.producer_epoch, batch, now_ms, transactional=transactional
        )

    def pass_over(self, end_offset: int) -> None:
        """Records up to `end_offset` were acknowledged and are lost. Which sequences they had nobody knows,
        so every producer may go on with any. Whether they ended a transaction nobody knows either: it stays
        open, until its producer or an operator ends it."""
        self.next_offset = end_offset
        self.producer_entries = {
            producer_id: entry._replace(batches=())
            for producer_id, entry in self.producer_entries.items()
            if entry.txn_first_offset != NO_TRANSACTION
        }

    def publish(self, end_offset: int, stable_offset: int) -> None:
        """All below `end_offset` is durable."""
        assert end_offset >= self.high_watermark, "the high watermark never goes back"
        self.high_watermark = end_offset
        # It was computed when the flush was staged, and the log start may have passed it since.
        self.last_stable_offset = max(self.last_stable_offset, stable_offset)

    def advance_log_start(self, offset: int) -> None:
        """Records below `offset` are gone."""
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        # Records of an open transaction may be deleted, too: then it holds up readers from here on.
        self.last_stable_offset = max(self.last_stable_offset, offset)
        self.epochs = epoch_table.without_below(self.epochs, offset)
        self.aborted = [t for t in self.aborted if t.last_offset >= offset]

    def forget_aborted(self, forgotten: Iterable[AbortedTransaction]) -> None:
        """No record of these transactions is left."""
        gone = frozenset(forgotten)
        if gone:
            self.aborted = [t for t in self.aborted if t not in gone]

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        expired = [
            p for p, entry in self.producer_entries.items() if is_expired(entry, now_ms, expiration_ms)
        ]
        for producer_id in expired:
            del self.producer_entries[producer_id]
            self.undone.pop(producer_id, None)
        return len(expired)

    def end_of_epoch(self, epoch: int) -> EpochStart:
        return epoch_table.end_of_epoch(self.epochs, epoch, self.high_watermark)

    def aborted_transactions(
        self, start: int, end: int, among: Sequence[AbortedTransaction] | None = None
    ) -> list[AbortedTransaction]:
        """Aborted ranges that touch offsets in [start, end), for read_committed fetches. `among`: those that
        were known at another time, instead of those that are known now."""
        aborted = self.aborted if among is None else among
        if not aborted:
            return []
        if self._beginnings is None and len(aborted) >= MANY_ABORTED:
            self._beginnings = Beginnings()
        return touching(aborted, start, end, self._beginnings)


def _follows(sequence: int, first: int) -> bool:
    """Whether a sequence comes after another; 0 comes after the greatest."""
    return 0 < (sequence - first) & SEQUENCE_MAX < SEQUENCE_MAX // 2
