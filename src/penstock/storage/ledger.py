"""All partitions that one broker incarnation leads: append, read, recover, settle.

SIGNATURES FIRST; the bodies are landing now.
"""

from collections.abc import Awaitable, Callable, Sequence

from penstock.metadata.image import ClusterImage
from penstock.storage.answers import AbortedTransaction, Appended, EpochEnd, ProducerView, Slice, TimestampOffset
from penstock.wire.buffers import Buffer
from penstock.wire.errors import ErrorCode


class Partition:
    """One partition led here. Handlers read these attributes and never write them."""

    topic_id: bytes
    topic: str
    index: int
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    """The durable end: the offset after the last record that survives this process."""
    last_stable_offset: int
    size_bytes: int
    closed: bool
    """True once this broker no longer leads it; waiting fetches are woken and answer NOT_LEADER."""

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` each time the high watermark (or the last stable offset) advances, or the
        partition closes. Returns the function that stops it. Cheap: a long poll watches each partition
        that it names."""

    def producers(self) -> list[ProducerView]:
        """For DescribeProducers."""

    def aborted_transactions(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        """Aborted ranges that touch offsets in [start, end), for read_committed fetches."""


class Ledger:
    async def open(self, image: ClusterImage) -> None:
        """Recover every partition that `image` says this incarnation leads, and start to accept."""

    async def update(self, image: ClusterImage) -> None:
        """Follow the cluster: open what is newly led here, close what is not, apply configs and log starts."""

    async def close(self) -> None:
        """Stop accepting, finish what was begun, settle if quick, release files."""

    def partition(self, topic_id: bytes, index: int) -> Partition | None:
        """The partition if it is led here and open, else None."""

    def append(
        self,
        partition: Partition,
        batch: bytearray | memoryview,
        done: Callable[[Appended | ErrorCode], None],
    ) -> None:
        """Queue one checked v2 batch (writable: base offset and leader epoch are stamped in place, and the
        caller must not write to it again) for the next flush. `done` is called from the loop, once, never
        before this call returns: an `Appended` after the durable write, else an ErrorCode
        (OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, KAFKA_STORAGE_ERROR,
        NOT_LEADER_OR_FOLLOWER, ...). It must not raise."""

    def read(
        self, partition: Partition, offset: int, max_bytes: int, *, limit_offset: int
    ) -> Slice | Awaitable[Slice]:
        """Whole batches from the one that contains `offset` up to, not including, `limit_offset` (the high
        watermark or the last stable offset), at most `max_bytes` but at least one batch if there is one.

        The answer is immediate when the tail cache or the page cache has it, else awaitable. Raises (or the
        awaitable raises) OffsetOutOfRangeError below the log start or beyond the high watermark, StoreError
        when the store fails. offset == limit_offset gives an empty slice. The first batch may begin
        below `offset`."""

    async def offset_for_timestamp(self, partition: Partition, timestamp: int, *, limit_offset: int) -> TimestampOffset | None:
        """The first record with a timestamp >= `timestamp` below `limit_offset`, exact, or None."""

    async def max_timestamp(self, partition: Partition) -> TimestampOffset | None:
        """The record with the greatest timestamp, the first of equals, or None in an empty partition."""

    def end_offset_for_epoch(self, partition: Partition, leader_epoch: int) -> EpochEnd:
        """As Kafka's OffsetForLeaderEpoch: the largest epoch <= the one asked for, and where it ended."""

    async def delete_records(self, partition: Partition, offset: int) -> int | ErrorCode:
        """Advance the log start to `offset` (-1: the high watermark) through the metadata log; the low
        watermark afterwards, or OFFSET_OUT_OF_RANGE."""
