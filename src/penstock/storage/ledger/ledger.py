"""All partitions that one broker incarnation leads: append, read, recover, settle.

The ledger is the only one that turns a durable write into an `Appended`, and the only one that knows where
records lie. It follows the cluster image: `follow(old, new)` is called with every new image, from the loop.
Partitions that begin empty are open at once; others once they are recovered, and until then `partition`
answers None.

Everything runs on one event loop. Only the store and the write-ahead log use threads.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.clock import Clock
from penstock.log.manifest import Manifest
from penstock.log.policy import DEFAULT_POLICY, LogPolicy
from penstock.metadata.commands import AdvanceLogStart, AnyCommand, LogStart
from penstock.metadata.image import (
    BROKER_CONFIG,
    TOPIC_CONFIG,
    ClusterImage,
    ManifestRef,
    PartitionInfo,
    PartitionKey,
    TopicInfo,
    WalRef,
)
from penstock.metadata.proposing import Propose
from penstock.metadata.refusal import Refusal
from penstock.storage.ledger.answers import (
    Appended,
    EpochEnd,
    OffsetOutOfRangeError,
    Slice,
    Surrendered,
    TimestampOffset,
)
from penstock.storage.ledger.flusher import Flusher
from penstock.storage.ledger.opening import Openers
from penstock.storage.ledger.partition import Partition
from penstock.storage.ledger.reading import Reader
from penstock.storage.ledger.recovery import Recovery
from penstock.storage.ledger.repaired import Repaired
from penstock.storage.ledger.settings import DEFAULT_CLEANER_SETTINGS, CleanerSettings, LedgerSettings
from penstock.storage.ledger.tail_cache import TailCache
from penstock.storage.ledger.takeover import Takeover
from penstock.storage.ledger.times import TimeSearch
from penstock.storage.ledger.upkeep import Upkeep
from penstock.storage.settling.change import key_of
from penstock.storage.settling.committing import Committer
from penstock.storage.settling.garbage import Garbage
from penstock.storage.settling.moving import Mover
from penstock.storage.settling.rewriting import Rewriter
from penstock.storage.settling.segment_writer import SegmentWriter
from penstock.storage.settling.settler import Settler
from penstock.storage.stores.objects import DamagedObjectError, ObjectStore
from penstock.storage.wal.files import WalFiles
from penstock.storage.wal.port import Fenced, WalStore, WalWriter
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.storage.settling.cleaner import Cleaner

__all__ = (
    "Appended",
    "FencedError",
    "Ledger",
    "LedgerSettings",
    "OffsetOutOfRangeError",
    "Partition",
    "Slice",
    "TimestampOffset",
)

logger = logging.getLogger(__name__)

PolicyOf = Callable[[ClusterImage, str], LogPolicy]
CleanerSettingsOf = Callable[[ClusterImage], CleanerSettings]

_FIRST_CLEAN_SECONDS = 1.0  # Not while a broker starts.


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
        cleaner_settings_of: CleanerSettingsOf = lambda image: DEFAULT_CLEANER_SETTINGS,
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
        self._cleaner_settings_of = cleaner_settings_of
        self._on_end_callback = on_end
        self._partitions: dict[PartitionKey, Partition] = {}
        self._image = ClusterImage()
        self._files = WalFiles()
        self._cache = TailCache(settings.tail_cache_bytes)
        self._reader = Reader(store, self._files.key, settings.index_cache_bytes)
        self.openers = Openers()
        """For batches that must be opened and may cost much: the broker's handlers use them too."""
        self._times = TimeSearch(self._reader, self.openers)
        self._recovery = Recovery(store, wal_store, self.wal, self._files)
        self._takeover = Takeover(self._recovery, clock, lambda: self._image, self._on_open)
        self._segment_writer = SegmentWriter(store, self.wal, clock)
        self._garbage = Garbage(
            store,
            wal_store,
            self.wal,
            self._files,
            clock,
            writer=self._segment_writer,
            partitions=self._partitions,
            opening=self._takeover.waiting,
            held=self._reader.held.__contains__,
        )
        self._committer = Committer(
            own=self.wal,
            settings=settings,
            propose=propose,
            partitions=self._partitions,
            files=self._files,
            reader=self._reader,
            writer=self._segment_writer,
            garbage=self._garbage,
            image=lambda: self._image,
            on_image=lambda image: self.follow(self._image, image),
        )
        rewriter = Rewriter(self._committer, self._reader, self._segment_writer)
        self._settler = Settler(
            own=self.wal,
            settings=settings,
            clock=clock,
            partitions=self._partitions,
            files=self._files,
            writer=self._segment_writer,
            committer=self._committer,
            rewriter=rewriter,
        )
        self._mover = Mover(
            store,
            clock,
            settings,
            partitions=self._partitions,
            cleaning=self._settler.cleaning,
            garbage=self._garbage,
            image=lambda: self._image,
            committer=self._committer,
            rewriter=rewriter,
        )
        self._repaired = Repaired(
            self._partitions, lambda: self._image, self._recovery.manifest, self._committer.adopt_repaired
        )
        self._writer: WalWriter | None = None
        self._flusher: Flusher | None = None
        self._upkeep: Upkeep | None = None
        self._upkeep_task: asyncio.Task[None] | None = None
        self._cleaner: Cleaner | None = None
        self._cleaner_task: asyncio.Task[None] | None = None

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
            file=lambda key: self._files.file(self.wal, key),
            on_full=self._on_full,
            on_end=self._on_end,
        )
        self._upkeep = Upkeep(
            own=self.wal,
            settings=self._settings,
            clock=self._clock,
            settler=self._settler,
            mover=self._mover,
            garbage=self._garbage,
            flusher=self._flusher,
            writer=writer,
            partitions=self._partitions,
            image=lambda: self._image,
        )
        self.append = self._flusher.append  # type: ignore[method-assign]  # One call less per batch.
        await self.update(image)
        self._upkeep_task = asyncio.get_running_loop().create_task(self._upkeep.run(), name="upkeep")
        if self._cleaner_settings_of(image).enable:
            self._cleaner_task = asyncio.get_running_loop().create_task(self._run_cleaner(), name="cleaner")

    async def update(self, image: ClusterImage) -> None:
        """`follow`, and wait until everything that is newly led here is open, or was refused."""
        self.follow(self._image, image)
        await self._takeover.tried()

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        """Follow the cluster: open what is newly led here, close what is not any more, take over settings,
        log starts and manifests. Fit for MetadataLog.subscribe; an image older than the last one is
        passed over."""
        previous = self._image
        if new.version < previous.version:
            return
        self._image = new
        self._garbage.follow(previous, new, self._settings.delete_delay_ms)
        waiting: list[PartitionKey] = []
        defaults_same = all(
            new.configs.get((BROKER_CONFIG, name)) is previous.configs.get((BROKER_CONFIG, name))
            for name in ("", str(self.wal.broker))
        )
        for name, topic in new.topics.items():
            config = (TOPIC_CONFIG, name)
            config_same = defaults_same and new.configs.get(config) is previous.configs.get(config)
            if not config_same or previous.topics.get(name) is not topic:
                waiting += self._follow_topic(topic, previous)
        if new.topics is not previous.topics:
            for name, topic in previous.topics.items():
                now = new.topics.get(name)
                if now is None or now.id != topic.id:
                    for index in range(len(topic.partitions)):
                        self._close_partition((topic.id, index), deleted=True)
        if waiting:
            self._takeover.begin(waiting)

    def _follow_topic(self, topic: TopicInfo, previous: ClusterImage) -> list[PartitionKey]:
        """The partitions of it that must be recovered."""
        policy = self._policy_of(self._image, topic.name)
        waiting = []
        for index, info in enumerate(topic.partitions):
            key = (topic.id, index)
            if not self._leads(info):
                self._close_partition(key)
                continue
            partition = self._partitions.get(key) or self._takeover.waiting.get(key)
            if partition is not None and partition.leader_epoch != info.leader_epoch:
                before = previous.partition(*key)
                if before is not None and (before.manifest, before.wals) == (info.manifest, info.wals):
                    # Nobody else led it in between.
                    partition.leader_epoch = info.leader_epoch
                    partition.lead()
                else:
                    self._close_partition(key)
                    partition = None
            if partition is None:
                partition = self._begin_partition(topic, index, info)
                if key in self._takeover.waiting:
                    waiting.append(key)
            partition.wals = info.wals
            partition.policy = policy
            partition.log_append_time = policy.log_append_time
            if key in self._partitions:
                partition.advance_log_start(info.log_start)
                if not self._committer.adopt_committed(partition, info.manifest):
                    self._repaired.found(partition)
        return waiting

    def _begin_partition(self, topic: TopicInfo, index: int, info: PartitionInfo) -> Partition:
        """A partition that nothing was written to yet is open at once; another one must be recovered."""
        partition = Partition(topic.id, topic.name, index, info.leader_epoch)
        key = (topic.id, index)
        if info.manifest is None and info.wals == (self.wal,) and not info.log_start:
            partition.lead()
            self._partitions[key] = partition
        else:
            self._takeover.waiting[key] = partition
        return partition

    def _leads(self, info: PartitionInfo) -> bool:
        if self._flusher is not None and self._flusher.ended:
            # What it led is closed. Opened anew, a partition whose records are all in the log that ended
            # would be taken for one that nothing was written to.
            return False
        return info.leader == self.wal.broker and bool(info.wals) and info.wals[-1] == self.wal

    def _close_partition(self, key: PartitionKey, *, deleted: bool = False) -> None:
        self._takeover.drop(key)
        partition = self._partitions.pop(key, None)
        if partition is None:
            return
        self._settler.release(key)
        if deleted:
            delay_ms = partition.policy.file_delete_delay_ms
            self._garbage.release(partition.manifest, delay_ms)
            self._garbage.doom_manifest(partition.manifest_ref, delay_ms)
        else:
            self._garbage.forget(partition.manifest)
        self._stop(partition)

    def _stop(self, partition: Partition) -> None:
        """Accept nothing more, and let those who wait know."""
        partition.closed = True
        assert self._flusher is not None
        self._flusher.refuse(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partition.wake()

    def _on_open(self, key: PartitionKey, partition: Partition) -> None:
        """A partition is recovered."""
        self._partitions[key] = partition
        self._garbage.hold(partition.manifest)
        info = self._image.partition(*key)
        if info is not None:
            partition.advance_log_start(info.log_start)
            if info.manifest != partition.manifest_ref:
                self._repaired.found(partition)
        assert self._upkeep is not None
        self._upkeep.wake()

    # Appending.

    def partition(self, topic_id: bytes, index: int) -> Partition | None:
        """The partition if it is led here and open, else None."""
        return self._partitions.get((topic_id, index))

    def damaged(self, topic_id: bytes, index: int) -> str | None:
        """Why a partition led here cannot be opened: its manifest is provably not what was written. Clients
        get KAFKA_STORAGE_ERROR, until it is as it was again."""
        error = self._takeover.damage((topic_id, index))
        return str(error) if error is not None else None

    def append(
        self,
        partition: Partition,
        batch: bytearray | memoryview,
        done: Callable[[Appended | ErrorCode], None],
        seconds: float = float("inf"),
    ) -> None:
        """Queue one checked v2 batch for the next flush.

        The batch must be writable: its base offset, leader epoch and, where the topic says so, time are
        stamped in place; the caller does not write to it again. `done` is called once from the loop,
        never before this call returns, and must not raise: with an `Appended` after the durable write,
        else with an ErrorCode: OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE,
        TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR (retriable) or NOT_LEADER_OR_FOLLOWER.

        `seconds`: if it takes longer, `done` is called with REQUEST_TIMED_OUT. The batch is written then only
        if its flush was under way, and in that case `done` is called again with what became of it.
        """
        raise RuntimeError("the ledger is not open")

    def _on_full(self) -> None:
        assert self._upkeep is not None
        self._upkeep.wake()

    def _on_end(self, reason: str) -> None:
        logger.error("the incarnation ended broker=%d epoch=%d: %s", self.wal.broker, self.wal.epoch, reason)
        for key in [*self._partitions, *self._takeover.waiting]:
            self._close_partition(key)
        self._on_end_callback(reason)

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

    async def manifests(
        self, refs: Sequence[ManifestRef]
    ) -> Mapping[ManifestRef, Manifest | DamagedObjectError]:
        """Manifests of any partitions, as they are stored. Raises StoreError if they cannot be read."""
        return await self._recovery.manifests(refs)

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
            # Somebody else leads what a fenced incarnation led, or soon will.
            fenced = answer.code is ErrorCode.STALE_BROKER_EPOCH
            return ErrorCode.NOT_LEADER_OR_FOLLOWER if fenced else answer.code
        partition.advance_log_start(offset)
        return partition.log_start_offset

    # Settling.

    async def settle(self) -> bool:
        """Settle everything that is durable now, without waiting for the background to find it due."""
        assert self._upkeep is not None
        return await self._upkeep.settle()

    def led(self) -> Iterable[PartitionKey]:
        """The partitions that are open here."""
        return tuple(self._partitions)

    # Compaction.

    async def clean(self) -> int:
        """Compact every partition that is due now, without waiting for the background to come to it: how
        many were cleaned."""
        return await self._own_cleaner().clean()

    async def _run_cleaner(self) -> None:
        await asyncio.sleep(_FIRST_CLEAN_SECONDS)
        await self._own_cleaner().run()

    def _own_cleaner(self) -> "Cleaner":
        """Made when first needed: not while a broker starts."""
        if self._cleaner is None:
            from penstock.storage.settling.cleaner import Cleaner

            self._cleaner = Cleaner(
                partitions=self._partitions,
                cleaning=self._settler.cleaning,
                committer=self._committer,
                reader=self._reader,
                writer=self._segment_writer,
                clock=self._clock,
                ledger_settings=self._settings,
                settings=lambda: self._cleaner_settings_of(self._image),
                settle=self.settle,
            )
        return self._cleaner

    # Handing partitions over.

    async def surrender(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, Surrendered]:
        """Stop accepting for partitions that are about to be given to another leader, and settle all of
        them. The manifests that are returned belong into the command that gives the partitions away, if
        the image still names their bases. If that comes to nothing, call `resume`."""
        assert self._flusher is not None
        partitions = [self._partitions[key] for key in keys if key in self._partitions]
        for partition in partitions:
            self._stop(partition)
        surrendered: dict[PartitionKey, Surrendered] = {}
        try:
            for change in await self._settler.surrender(self._flusher, partitions):
                base = change.base.ref
                manifest = change.ref if change.ref is not None else base
                surrendered[key_of(change.partition)] = Surrendered(base, manifest)
        except BaseException:
            self.resume(map(key_of, partitions))
            raise
        return surrendered

    def resume(self, keys: Iterable[PartitionKey]) -> None:
        """Accept again for partitions that were not given away after all."""
        for key in keys:
            self._settler.release(key)
            partition = self._partitions.get(key)
            if partition is not None:
                partition.closed = False

    async def close(self, timeout_seconds: float = 5.0) -> None:
        """Stop accepting, finish what was begun (or give up after a while: nothing of it is then
        acknowledged), release files. The store stays open: its owner closes it."""
        await self._takeover.close()
        tasks = [task for task in (self._upkeep_task, self._cleaner_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._repaired.close()
        if self._flusher is not None:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._flusher.drain()
            except TimeoutError:
                logger.warning("flushes were given up that the store did not take in time")
        self.openers.close()
        if self._reader.blocks is not None:
            await self._reader.blocks.close()
        if self._writer is not None:
            await self._writer.close()

    # Figures.

    def counters(self) -> dict[str, int]:
        """What happened so far, for metrics."""
        flusher, settler, usage = self._flusher, self._settler, self._garbage.usage
        assert flusher is not None and self._upkeep is not None
        return {
            "flushes": flusher.flushes,
            "flush_batches": flusher.batches,
            "flush_bytes": flusher.bytes_written,
            "flush_failures": flusher.failures,
            "unsettled_bytes": self._upkeep.unsettled_bytes,
            "settles": settler.settles,
            "settled_bytes": self._committer.bytes_settled,
            "files_adopted": settler.files_adopted,
            "merges": settler.merges,
            "moved_bytes": self._mover.bytes_moved,
            "readable_bytes": usage.readable_bytes,
            "live_bytes": usage.live_bytes,
            "stored_bytes": usage.stored_bytes,
            "cleanings": self._cleaner.passes if self._cleaner is not None else 0,
            "cleaner_bytes_read": self._cleaner.bytes_read if self._cleaner is not None else 0,
            "cleaner_bytes_written": self._cleaner.bytes_written if self._cleaner is not None else 0,
            "store_reads": self._reader.requests,
            "block_requests": self._reader.blocks.requests if self._reader.blocks is not None else 0,
            "block_hits": self._reader.blocks.hits if self._reader.blocks is not None else 0,
            "objects_deleted": self._garbage.objects_deleted,
            "tail_cache_bytes": self._cache.bytes_used,
        }
