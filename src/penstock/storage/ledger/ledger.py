"""All partitions that one broker incarnation leads: append, read, recover, settle.

Only the ledger turns a durable write into an `Appended`, and only the ledger knows where records lie. It
follows the cluster image: the loop calls `follow(old, new)` with every new image. Partitions that begin empty
are open at once. Others open when they are recovered; until then `partition` answers None.

Everything runs on one event loop. Only the store and the write-ahead log use threads.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.metadata.commands import AdvanceLogStart, AnyCommand, LogStart
from penstock.metadata.image import (
    ClusterImage,
    ManifestRef,
    PartitionKey,
)
from penstock.metadata.refusal import Refusal
from penstock.storage.ledger.expanding import Expanders
from penstock.storage.ledger.flush_times import FlushTimes
from penstock.storage.ledger.flusher import Flusher
from penstock.storage.ledger.leading import Leading
from penstock.storage.ledger.recovery import Recovery
from penstock.storage.ledger.repaired import Repaired
from penstock.storage.ledger.takeover import Takeover
from penstock.storage.ledger.upkeep import Upkeep
from penstock.storage.partitions.answers import (
    Appended,
    EpochEnd,
    OffsetOutOfRangeError,
    Slice,
    Surrendered,
    TimestampOffset,
)
from penstock.storage.partitions.holdings import DefaultPolicies, Holdings, LogPolicies
from penstock.storage.partitions.partition import Partition
from penstock.storage.partitions.reading import Reader
from penstock.storage.partitions.settings import LedgerSettings
from penstock.storage.partitions.tail_cache import TailCache
from penstock.storage.partitions.traffic import TopicTraffic
from penstock.storage.reader.manifests import Loaded, load_manifests
from penstock.storage.settling.change import key_of
from penstock.storage.settling.committing import Committer
from penstock.storage.settling.garbage import Garbage
from penstock.storage.settling.hurt_sources import HurtSources
from penstock.storage.settling.moving import Mover
from penstock.storage.settling.rewriting import Rewriter
from penstock.storage.settling.segment_writer import SegmentWriter
from penstock.storage.settling.settler import Settler
from penstock.storage.wal.port import Fenced, WalWriter
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.storage.ledger.times import TimeSearch
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

_FIRST_CLEAN_SECONDS = 1.0  # Not while a broker starts.


class FencedError(Exception):
    """This incarnation's log was sealed: another one took over."""


class Lags(NamedTuple):
    settle_seconds: float
    """Since when the oldest record waits that is not settled."""
    merge_seconds: float
    """Since when small segments wait to be merged."""
    unmerged_partitions: int
    opening_partitions: int
    """Given to this broker, and not recovered yet."""


class Ledger:
    def __init__(
        self,
        holdings: Holdings,
        policies: LogPolicies | None = None,
        *,
        on_end: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`on_end` is called, with the reason, when this incarnation can write no more (its log was sealed,
        or a sync failed) and the process should end or register anew."""
        self.wal = holdings.own
        self._holdings = holdings
        self._policies = policies or DefaultPolicies()
        self._on_end_callback = on_end
        self._partitions = holdings.partitions
        store, clock = holdings.store, holdings.clock
        self._cache = TailCache(holdings.settings.tail_cache_bytes)
        self._reader = Reader(store, holdings.files.key, holdings.settings.index_cache_bytes)
        self.traffic = TopicTraffic()
        """Records and bytes by topic: of appends here, of reads where they are answered."""
        self.flush_times: FlushTimes | None = None
        """Where flushes are timed. May be set until `open`."""
        self.expanders = Expanders()
        """For batches that must be opened and may cost much: the broker's handlers use them too."""
        self._recovery = Recovery(store, holdings.wal_store, self.wal, holdings.files)
        self._takeover = Takeover(self._recovery, clock, lambda: holdings.image, self._on_open)
        self._segment_writer = SegmentWriter(store, self.wal, clock)
        self._garbage = Garbage(
            holdings,
            self._segment_writer,
            opening=self._takeover.waiting,
            held=self._reader.held.__contains__,
        )
        self._committer = Committer(
            holdings,
            self._reader,
            self._segment_writer,
            self._garbage,
            on_image=lambda image: self.follow(holdings.image, image),
        )
        hurt = HurtSources(clock)
        rewriter = Rewriter(self._committer, self._reader, self._segment_writer, hurt)
        self._settler = Settler(holdings, self._segment_writer, self._committer, rewriter)
        self._mover = Mover(holdings, self._garbage, self._committer, rewriter, self._settler.cleaning)
        self._repaired = Repaired(
            self._partitions, lambda: holdings.image, holdings.store, self._committer.take_repaired
        )
        self._leading = Leading(
            holdings,
            self._policies,
            self._takeover,
            self._committer,
            self._settler,
            self._garbage,
            self._repaired,
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
        holdings = self._holdings
        writer = await holdings.wal_store.create(self.wal)
        if isinstance(writer, Fenced):
            raise FencedError(f"the log of broker {self.wal.broker}, epoch {self.wal.epoch} is sealed")
        self._writer = writer
        self._flusher = Flusher(
            writer,
            self._cache,
            holdings.clock,
            holdings.settings,
            self.traffic,
            file=lambda key: holdings.files.file(self.wal, key),
            on_full=self._on_full,
            on_end=self._on_end,
        )
        if self.flush_times is not None:
            self._flusher.watch(self.flush_times)
        self._leading.flusher = self._flusher
        self._upkeep = Upkeep(holdings, self._settler, self._mover, self._garbage, self._flusher, writer)
        self.append = self._flusher.append  # type: ignore[method-assign]  # One call less per batch.
        await self.update(image)
        self._upkeep_task = asyncio.get_running_loop().create_task(self._upkeep.run(), name="upkeep")
        if self._policies.cleaner(image).enable:
            self._cleaner_task = asyncio.get_running_loop().create_task(self._run_cleaner(), name="cleaner")

    async def update(self, image: ClusterImage) -> None:
        """`follow`, and wait until everything that is newly led here is open, or was refused."""
        self.follow(self._holdings.image, image)
        await self._takeover.tried()

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        """Open what is newly led here, close what is not any more, take over settings, log starts and
        manifests. Fit for MetadataLog.subscribe; an image older than the last one is passed over."""
        self._leading.follow(new)

    def _on_open(self, key: PartitionKey, partition: Partition) -> None:
        """A partition is recovered."""
        self._leading.opened(key, partition)
        assert self._upkeep is not None
        self._upkeep.wake()

    # Appending.

    def partition(self, topic_id: bytes, index: int) -> Partition | None:
        """The partition if it is led here and open, else None."""
        return self._partitions.get((topic_id, index))

    def damaged(self, topic_id: bytes, index: int) -> str | None:
        """Why a partition led here cannot be opened: its manifest is provably not what was written."""
        error = self._takeover.damage((topic_id, index))
        return str(error) if error is not None else None

    def refused(self, topic_id: bytes, index: int) -> bool:
        """Whether a partition led here is not open because the store does not give what it needs. Clients get
        KAFKA_STORAGE_ERROR until it does, which they try again: another broker would not lead it better."""
        return self._takeover.refusal((topic_id, index)) is not None

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
        self._leading.close_all()
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
        return await self._times().first_at_or_after(partition, timestamp, limit_offset)

    async def max_timestamp(self, partition: Partition) -> TimestampOffset | None:
        """The record with the greatest timestamp, the first of equals; None in an empty partition."""
        return await self._times().greatest(partition)

    def _times(self) -> "TimeSearch":
        from penstock.storage.ledger.times import TimeSearch

        return TimeSearch(self._reader, self.expanders)

    async def manifests(self, refs: Sequence[ManifestRef]) -> Mapping[ManifestRef, Loaded]:
        """Manifests of any partitions, as they are stored. Raises StoreError if they cannot be read."""
        return await load_manifests(self._holdings.store, refs)

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

        answer = await self._holdings.propose(decide)
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
                self._holdings,
                self._committer,
                self._reader,
                self._segment_writer,
                cleaning=self._settler.cleaning,
                settings=lambda: self._policies.cleaner(self._holdings.image),
                settle=self.settle,
            )
        return self._cleaner

    @property
    def durable_flushes(self) -> int:
        """So many flushes of this incarnation's log are durable."""
        return 0 if self._flusher is None else self._flusher.durable_number

    # Handing partitions over.

    async def surrender(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, Surrendered]:
        """Stop accepting for partitions that are about to be given to another leader, and settle all of
        them. The manifests that are returned belong into the command that gives the partitions away, if
        the image still names their bases. If that comes to nothing, call `resume`."""
        assert self._flusher is not None
        partitions = [self._partitions[key] for key in keys if key in self._partitions]
        for partition in partitions:
            self._leading.stop(partition)
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
        self.expanders.close()
        if self._reader.blocks is not None:
            await self._reader.blocks.close()
        if self._writer is not None:
            await self._writer.close()

    # Figures.

    def lags(self) -> Lags:
        """How far background work is behind, now."""
        assert self._upkeep is not None
        return Lags(
            self._upkeep.settle_lag_seconds(),
            self._upkeep.merge_lag_seconds(),
            len(self._committer.unmerged),
            len(self._takeover.waiting),
        )

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
            "block_cache_bytes": self._reader.blocks.bytes_used if self._reader.blocks is not None else 0,
            "partitions": len(self._partitions),
        }
