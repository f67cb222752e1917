"""The state that a partition keeps of each producer, so that a retried batch is stored once.

The rules are Kafka's (ProducerStateManager, ProducerAppendInfo):

- A batch that repeats one of the producer's last five, by epoch and sequence range, is a duplicate. The
  answer has the offset of the first.
- A lower epoch than the last one seen is INVALID_PRODUCER_EPOCH.
- A new epoch starts at sequence 0. Within an epoch the next sequence follows the last, 0 after 2^31 - 1. Any
  other sequence is OUT_OF_ORDER_SEQUENCE_NUMBER.
- A producer that the partition does not know (expired, or its records are gone) may start at any sequence. So
  may a producer in a transaction if the partition knows no batch of it, because the store lost some.

Entries are immutable. Staging an append replaces the producer's entry; undoing it puts the old one back.
"""

from typing import NamedTuple

from penstock.wire.errors import ErrorCode

BATCHES_KEPT = 5  # A Kafka client has at most five requests in flight, so no older batch is retried.
SEQUENCE_MAX = 2**31 - 1
NO_PRODUCER = -1
NO_SEQUENCE = -1
NO_TRANSACTION = -1
NO_COORDINATOR = -1


class SequencedBatch(NamedTuple):
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class ProducerEntry(NamedTuple):
    epoch: int
    batches: tuple[SequencedBatch, ...]
    """The last batches of this epoch, oldest first, at most BATCHES_KEPT."""
    last_timestamp: int
    """The greatest record time of the last batch: what DescribeProducers reports."""
    seen_ms: int
    """When the broker wrote the last batch. Expiry goes by this and not by record times, which a
    producer that loads old data sets far in the past."""
    coordinator_epoch: int = NO_COORDINATOR
    txn_first_offset: int = NO_TRANSACTION

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


def last_sequence_of(base_sequence: int, last_offset_delta: int) -> int:
    """The sequence of a batch's last record, counting on from 0 after 2^31 - 1."""
    return (base_sequence + last_offset_delta) & SEQUENCE_MAX


def find_duplicate(
    entry: ProducerEntry, epoch: int, base_sequence: int, last_sequence: int
) -> SequencedBatch | None:
    if epoch != entry.epoch:
        return None
    for batch in entry.batches:
        if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
            return batch
    return None


def check_sequence(entry: ProducerEntry | None, epoch: int, base_sequence: int) -> ErrorCode | None:
    """Whether the producer's next batch may begin like this. Look for a duplicate first."""
    if entry is None:
        return None
    if epoch < entry.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if epoch > entry.epoch:
        return None if base_sequence == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    if not entry.batches and entry.txn_first_offset != NO_TRANSACTION:
        return None
    expected = (entry.last_sequence + 1) & SEQUENCE_MAX
    return None if base_sequence == expected else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def with_batch(
    entry: ProducerEntry | None, epoch: int, batch: SequencedBatch, now_ms: int, *, transactional: bool
) -> ProducerEntry:
    """The entry after an accepted data batch."""
    if entry is None:
        first = batch.base_offset if transactional else NO_TRANSACTION
        return ProducerEntry(epoch, (batch,), batch.timestamp, now_ms, NO_COORDINATOR, first)
    kept = (*entry.batches[1 - BATCHES_KEPT :], batch) if epoch == entry.epoch else (batch,)
    first = entry.txn_first_offset
    if transactional and first == NO_TRANSACTION:
        first = batch.base_offset
    return ProducerEntry(epoch, kept, batch.timestamp, now_ms, entry.coordinator_epoch, first)


def with_marker(
    entry: ProducerEntry | None, epoch: int, coordinator_epoch: int, timestamp: int, now_ms: int
) -> ProducerEntry:
    """The entry after the marker that ended the producer's transaction."""
    batches = entry.batches if entry is not None and entry.epoch == epoch else ()
    return ProducerEntry(epoch, batches, timestamp, now_ms, coordinator_epoch, NO_TRANSACTION)


def is_expired(entry: ProducerEntry, now_ms: int, expiration_ms: int) -> bool:
    """A producer with an open transaction is kept however long it is silent."""
    return entry.txn_first_offset == NO_TRANSACTION and now_ms - entry.seen_ms >= expiration_ms
