"""What the ledger answers. Only the ledger makes an `Appended`, and only after the write was durable."""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.log.markers import AbortedTransaction
from penstock.log.producers import ProducerEntry
from penstock.metadata.image import ManifestRef
from penstock.wire.buffers import Buffer

__all__ = (
    "AbortedTransaction",
    "Appended",
    "EpochEnd",
    "OffsetOutOfRangeError",
    "ProducerView",
    "Slice",
    "Surrendered",
    "TimestampOffset",
    "producer_views",
)


class OffsetOutOfRangeError(Exception):
    """The offset lies below the log start or beyond the end that the reader may see."""


class Appended(NamedTuple):
    """A batch that is durable. `duplicate`: it was so before, and this is where it went then."""

    base_offset: int
    log_append_time_ms: int
    """The time the broker gave the batch, or -1 where the topic keeps the producer's times."""
    log_start_offset: int
    duplicate: bool = False


class Slice(NamedTuple):
    """Whole batches of one partition, in order, as buffers that nobody writes to any more."""

    buffers: list[Buffer]
    size: int
    """The bytes in `buffers`."""
    next_offset: int
    """The offset after the last record in the slice; the offset asked for if the slice is empty."""


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
    """Where a leader epoch ended: what OffsetForLeaderEpoch answers. (-1, -1) is not known."""

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
