"""All partitions that one broker incarnation leads: append, read, recover, settle.

The ledger is the only one that turns a durable write into an `Appended`, and the only one that knows where
records lie. It follows the cluster image: `follow(old, new)` is called with every new image, from the loop.
Partitions that begin empty are open at once; others once they are recovered, and until then `partition`
answers None.

Everything runs on one event loop. Only the store and the write-ahead log use threads.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from penstock.clock import Clock
from penstock.log.policy import DEFAULT_POLICY, LogPolicy
from penstock.metadata.commands import AdvanceLogStart, AnyCommand, LogStart
from penstock.metadata.image import ClusterImage, PartitionInfo, TopicInfo, WalRef
from penstock.metadata.refusal import Refusal
from penstock.storage.answers import Appended, EpochEnd, OffsetOutOfRangeError, Slice, TimestampOffset
from penstock.storage.flusher import Flusher
from penstock.storage.ledger_settings import LedgerSettings
from penstock.storage.objects import ObjectStore, StoreError
from penstock.storage.partition import Partition
from penstock.storage.reading import Reader
from penstock.storage.recovery import DamagedError, Opening, Recovery
from penstock.storage.tail_cache import TailCache
from penstock.storage.times import TimeSearch
from penstock.storage.wal import Fenced, WalStore, WalWriter
from penstock.wire.errors import ErrorCode

__all__ = ("Appended", "Ledger", "OffsetOutOfRangeError", "Partition", "Slice", "TimestampOffset")

logger = logging.getLogger(__name__)

Propose = Callable[
    [Callable[[ClusterImage], Sequence[AnyCommand] | Refusal]], Awaitable[ClusterImage | Refusal]
]
PolicyOf = Callable[[ClusterImage, str], LogPolicy]
PartitionKey = tuple[bytes, int]


class FencedError(Exception):
    """This incarnation's log was sealed: another one took over."""


class Ledger:
    def __init__(
        self,
        store: ObjectStore,
        wal_store: WalStore,
        broker_id: int,
        broker_epoch: int,
        settings: LedgerSettings,
        clock: Clock,
        *,
        propose: Propose,
        policy_of: PolicyOf = lambda image, topic: DEFAULT_POLICY,
        on_end: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`propose` is the metadata log's. `on_end` is called, with the reason, when this incarnation can
        write no more (its log was sealed, or a sync failed) and the process should end or register
        anew."""
        self.wal = WalRef(broker_id, broker_epoch)
        self._store = store
        self._wal_store = wal_store
        self._settings = settings
        self._clock = clock
        self._propose = propose
        self._policy_of = policy_of
        self._on_end_callback = on_end
        self._files: list[str] = []
        self._file_ids: dict[str, int] = {}
        self._cache = TailCache(settings.tail_cache_bytes)
        self._reader = Reader(store, self._files.__getitem__, settings.index_cache_bytes)
        self._times = TimeSearch(self._reader)
        self._recovery = Recovery(store, wal_store, self.wal, self._file_id)
        self._partitions: dict[PartitionKey, Partition] = {}
        self._opening: dict[PartitionKey, Partition] = {}
        self._damaged: dict[PartitionKey, DamagedError] = {}
        self._image = ClusterImage()
        self._recovering: asyncio.Task[None] | None = None
        self._writer: WalWriter | None = None
        self._flusher: Flusher | None = None

    # Following the cluster.

    async def open(self, image: ClusterImage) -> None:
        """Begin this incarnation's write-ahead log, recover every partition that `image` says it leads,
        and start to accept."""
        writer = await self._wal_store.create(self.wal)
        if isinstance(writer, Fenced):
            raise FencedError(f"the log of broker {self.wal.broker}, epoch {self.wal.epoch} is sealed")
        self._writer = writer
        self._flusher = Flusher(
            writer,
            self._cache,
            self._clock,
            self._settings,
            file_id=self._file_id,
            on_durable=self._on_durable,
            on_end=self._on_end,
        )
        self.append = self._flusher.append  # type: ignore[method-assign]  # One call less per batch.
        await self.update(image)

    async def update(self, image: ClusterImage) -> None:
        """`follow`, and wait until everything that is newly led here is open."""
        self.follow(self._image, image)
        while self._recovering is not None:
            await asyncio.shield(self._recovering)

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        """Follow the cluster: open what is newly led here, close what is not any more, take over settings
        and log starts. Fit for MetadataLog.subscribe; images must come in order."""
        previous, self._image = self._image, new
        if new.version < previous.version:
            self._image = previous
            return
        waiting = False
        for name, topic in new.topics.items():
            known = previous.topics.get(name)
            config_same = new.configs.get((2, name)) is previous.configs.get((2, name))
            if known is topic and config_same:
                continue
            waiting |= self._follow_topic(topic, known if known and known.id == topic.id else None)
        for name, topic in previous.topics.items():
            now = new.topics.get(name)
            if now is None or now.id != topic.id:
                for index in range(len(topic.partitions)):
                    self._close_partition((topic.id, index))
        if waiting and self._recovering is None:
            self._recovering = asyncio.get_running_loop().create_task(self._recover())

    def _follow_topic(self, topic: TopicInfo, known: TopicInfo | None) -> bool:
        """True if a partition of it must be recovered."""
        policy = self._policy_of(self._image, topic.name)
        waiting = False
        for index, info in enumerate(topic.partitions):
            key = (topic.id, index)
            if not self._leads(info):
                self._close_partition(key)
                continue
            partition = self._partitions.get(key) or self._opening.get(key)
            if partition is not None and partition.leader_epoch != info.leader_epoch:
                self._close_partition(key)
                partition = None
            if partition is None:
                partition = Partition(topic.id, topic.name, index, info.leader_epoch)
                if info.manifest is None and all(wal == self.wal for wal in info.wals):
                    partition.advance_log_start(info.log_start)
                    partition.lead()
                    self._partitions[key] = partition
                else:
                    self._opening[key] = partition
                    waiting = True
            partition.policy = policy
            partition.log_append_time = policy.log_append_time
            if info.log_start > partition.log_start_offset and key in self._partitions:
                partition.advance_log_start(info.log_start)
        return waiting

    def _leads(self, info: PartitionInfo) -> bool:
        return info.leader == self.wal.broker and bool(info.wals) and info.wals[-1] == self.wal

    def _close_partition(self, key: PartitionKey) -> None:
        self._opening.pop(key, None)
        self._damaged.pop(key, None)
        partition = self._partitions.pop(key, None)
        if partition is None:
            return
        partition.closed = True
        assert self._flusher is not None
        self._flusher.refuse(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partition.wake()

    async def _recover(self) -> None:
        """Open what waits to be opened, again and again until the store gives it."""
        pause = 0.1
        try:
            while self._opening:
                image = self._image
                openings = []
                for (topic_id, index), partition in self._opening.items():
                    info = image.partition(topic_id, index)
                    assert info is not None, "what is not led any more was taken out"
                    openings.append(Opening(partition, info))
                try:
                    damaged = await self._recovery.open(openings, image)
                except StoreError as error:
                    logger.warning("partitions could not be opened yet count=%d: %s", len(openings), error)
                    for opening in openings:
                        self._begin_again(opening.partition)
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 5.0)
                    continue
                self._opened(openings, damaged)
        finally:
            self._recovering = None

    def _begin_again(self, partition: Partition) -> None:
        key = (partition.topic_id, partition.index)
        if self._opening.get(key) is partition:
            fresh = Partition(partition.topic_id, partition.topic, partition.index, partition.leader_epoch)
            fresh.policy = partition.policy
            fresh.log_append_time = partition.log_append_time
            self._opening[key] = fresh

    def _opened(self, openings: Sequence[Opening], damaged: dict[PartitionKey, DamagedError]) -> None:
        for opening in openings:
            partition = opening.partition
            key = (partition.topic_id, partition.index)
            if self._opening.get(key) is not partition:
                continue  # Led no more, or under another epoch.
            del self._opening[key]
            if key in damaged:
                self._damaged[key] = damaged[key]
                continue
            self._partitions[key] = partition
            info = self._image.partition(partition.topic_id, partition.index)
            if info is not None:
                partition.advance_log_start(info.log_start)

    def _file_id(self, key: str) -> int:
        number = self._file_ids.get(key)
        if number is None:
            number = self._file_ids[key] = len(self._files)
            self._files.append(key)
        return number

    # Appending.

    def partition(self, topic_id: bytes, index: int) -> Partition | None:
        """The partition if it is led here and open, else None."""
        return self._partitions.get((topic_id, index))

    def damaged(self, topic_id: bytes, index: int) -> str | None:
        """Why a partition led here cannot be opened: what the store holds of it does not fit together.
        Clients get KAFKA_STORAGE_ERROR."""
        error = self._damaged.get((topic_id, index))
        return str(error) if error is not None else None

    def append(
        self,
        partition: Partition,
        batch: bytearray | memoryview,
        done: Callable[[Appended | ErrorCode], None],
    ) -> None:
        """Queue one checked v2 batch for the next flush.

        The batch must be writable: its base offset, leader epoch and, where the topic says so, time are
        stamped in place; the caller does not write to it again. `done` is called once from the loop,
        never before this call returns, and must not raise: with an `Appended` after the durable write,
        else with an ErrorCode: OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE,
        TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR (retriable) or NOT_LEADER_OR_FOLLOWER.
        """
        raise RuntimeError("the ledger is not open")

    def _on_durable(self, size: int) -> None:
        pass

    def _on_end(self, reason: str) -> None:
        logger.error("the incarnation ended broker=%d epoch=%d: %s", *self._identity(), reason)
        for key in list(self._partitions):
            self._close_partition(key)
        self._on_end_callback(reason)

    def _identity(self) -> tuple[int, int]:
        return self.wal.broker, self.wal.epoch

    # Reading.

    def read(
        self, partition: Partition, offset: int, max_bytes: int, *, limit_offset: int
    ) -> Slice | Awaitable[Slice]:
        """Whole batches from the one that contains `offset` up to, not including, `limit_offset` (the high
        watermark or the last stable offset): at most `max_bytes`, but at least one batch if there is one.

        Immediate when the tail cache or the page cache has it, else awaitable. Raises (or the awaitable
        raises) OffsetOutOfRangeError below the log start or beyond the high watermark, and StoreError
        when the store fails. An offset at the limit gives an empty slice. The first batch may begin
        below `offset`, also below the log start.
        """
        return self._reader.read(partition, offset, max_bytes, limit_offset)

    async def offset_for_timestamp(
        self, partition: Partition, timestamp: int, *, limit_offset: int
    ) -> TimestampOffset | None:
        """The first record at or after `timestamp`, exact to the record, below `limit_offset`, or None."""
        return await self._times.first_at_or_after(partition, timestamp, limit_offset)

    async def max_timestamp(self, partition: Partition) -> TimestampOffset | None:
        """The record with the greatest timestamp, the first of equals; None in an empty partition."""
        return await self._times.greatest(partition)

    def end_offset_for_epoch(self, partition: Partition, leader_epoch: int) -> EpochEnd:
        """As Kafka's OffsetForLeaderEpoch: the largest epoch <= the one asked for, and where it ended;
        (-1, -1) if that is not known."""
        return EpochEnd(*partition.end_of_epoch(leader_epoch))

    # Deleting.

    async def delete_records(self, partition: Partition, offset: int) -> int | ErrorCode:
        """Advance the log start to `offset` (-1: to the high watermark) through the metadata log. Returns
        the low watermark afterwards, or OFFSET_OUT_OF_RANGE, NOT_LEADER_OR_FOLLOWER."""
        if offset == -1:
            offset = partition.high_watermark
        if not 0 <= offset <= partition.high_watermark:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if offset <= partition.log_start_offset:
            return partition.log_start_offset
        change = LogStart(partition.topic_id, partition.index, partition.leader_epoch, offset)

        def decide(image: ClusterImage) -> Sequence[AnyCommand]:
            info = image.partition(partition.topic_id, partition.index)
            if info is not None and info.log_start >= offset:
                return ()
            return (AdvanceLogStart(self.wal.broker, self.wal.epoch, (change,)),)

        answer = await self._propose(decide)
        if isinstance(answer, Refusal):
            return answer.code
        partition.advance_log_start(offset)
        return partition.log_start_offset

    async def close(self) -> None:
        """Stop accepting, finish what was begun, release files. The store stays open: its owner closes it."""
        if self._recovering is not None:
            self._recovering.cancel()
            await asyncio.gather(self._recovering, return_exceptions=True)
        if self._flusher is not None:
            await self._flusher.drain()
        if self._writer is not None:
            await self._writer.close()
