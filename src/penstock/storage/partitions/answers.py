"""The answers of the ledger. An `Appended` is made only from the proof that the batch is durable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Never, Self

from penstock.log.markers import AbortedTransaction
from penstock.log.partition import Placed
from penstock.log.producers import ProducerEntry
from penstock.metadata.image import ManifestRef
from penstock.storage.wal.port import Durable
from penstock.wire.buffers import Buffer
from penstock.wire.errors import ErrorCode

__all__ = (
    "AbortedTransaction",
    "Appended",
    "EpochEnd",
    "OffsetOutOfRangeError",
    "ProducerView",
    "Readable",
    "Slice",
    "Surrendered",
    "TimestampOffset",
    "producer_views",
)


class OffsetOutOfRangeError(Exception):
    """The offset lies below the log start or beyond the end that the reader may see."""


class Readable(NamedTuple):
    """Records of a partition below this offset are durable: readers may have seen them."""

    end_offset: int


class _Place(NamedTuple):
    base_offset: int
    log_append_time_ms: int
    """The time the broker gave the batch, or -1 where the topic keeps the producer's times."""
    log_start_offset: int
    duplicate: bool
    """It was durable before, and this is where it went then."""


class Appended(_Place):
    """A batch that is durable. `tell` is the only way to one."""

    __slots__ = ()

    def __new__(cls, *_: Never) -> Self:
        raise TypeError("a batch is durable when `Appended.tell` was given the proof")

    @classmethod
    def tell(
        cls, proof: Durable | Readable, staged: Sequence[Staged], log_start: int, *, duplicate: bool = False
    ) -> None:
        """Answer those who appended batches of one partition.

        `proof`: what the write-ahead log said of the flush that holds them, or of a later one. Where batches
        were sent again and nothing is to be written, it is that they can be read.
        """
        assert isinstance(proof, Durable) or all(place[0] < proof.end_offset for _, place, _ in staged)
        new = tuple.__new__  # Twice as fast as a call of a class, and there is one per batch.
        for _batch, (base_offset, _last, _time, log_append_time_ms), done in staged:
            done(new(cls, (base_offset, log_append_time_ms, log_start, duplicate)))


Done = Callable[[Appended | ErrorCode], None]
Staged = tuple[bytearray | memoryview, Placed, Done]
"""A batch, its place, and whom to tell."""


class Slice(NamedTuple):
    """Whole batches of one partition, in order, as buffers that nobody writes to any more."""

    buffers: list[Buffer]
    size: int
    """The bytes in `buffers`."""
    next_offset: int
    """The offset after the last record in the slice; the offset asked for if the slice is empty."""
    aborted: Sequence[AbortedTransaction] | None = None
    """The transactions that the partition knew to be aborted when it chose the place to read from. While the
    store is read, compaction may take their records away and forget them, but this slice has the records.
    None: those that it knows now."""


class TimestampOffset(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp: int
    leader_epoch: int


class Surrendered(NamedTuple):
    """A partition that accepts no more, so that it can be given to another leader."""

    base: ManifestRef | None
    """The manifest that `manifest` was computed from, and the only one that it may replace."""
    manifest: ManifestRef | None
    """Covers every record."""


class EpochEnd(NamedTuple):
    """Where a leader epoch ended, for OffsetForLeaderEpoch. (-1, -1) means unknown."""

    leader_epoch: int
    end_offset: int


class ProducerView(NamedTuple):
    """One producer's state in a partition: what DescribeProducers answers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


def producer_views(entries: Mapping[int, ProducerEntry]) -> list[ProducerView]:
    return [
        ProducerView(
            producer_id,
            entry.epoch,
            entry.last_sequence,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.txn_first_offset,
        )
        for producer_id, entry in entries.items()
    ]
