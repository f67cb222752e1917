"""Opening partitions: the manifest, then what the write-ahead logs of earlier incarnations hold beyond it.

What it costs: one range read per object that manifests lie in, and one scan of each sealed log that some
partition still needs, whatever the number of partitions and the length of their history. Objects are read
side by side, and a partition is open as soon as those that it needs were read: one that is slow, or refused,
holds up nobody else.

What cannot be read is unknown, not damaged, and is asked for again: a partition is opened with all that its
leader left, or not yet. Damage is what is provably not as it was written. In a log it becomes a hurt range of
those partitions that lost records (`log.replaying`), and they open all the same. A manifest with a wrong
checksum leaves nothing to begin from: its partition stays closed, until somebody brings it back.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from penstock.log.flush import FlushBlock, iter_blocks
from penstock.log.manifest import Manifest, ManifestError, decode_manifest
from penstock.log.replaying import Damaged, Replay
from penstock.metadata.image import ClusterImage, ManifestRef, PartitionInfo, PartitionKey, WalRef
from penstock.storage.ledger.partition import Partition
from penstock.storage.stores.objects import DamagedObjectError, ObjectStore, StoreError
from penstock.storage.wal.files import WalFiles
from penstock.storage.wal.port import ScannedFlush, WalStore

logger = logging.getLogger(__name__)

T = TypeVar("T")
READS_AT_ONCE_MAX = 32


class Opening(NamedTuple):
    """A partition to open, and what the image says of it."""

    partition: Partition
    info: PartitionInfo


Load = asyncio.Task[dict[ManifestRef, "Manifest | DamagedObjectError"]]
OnOpened = Callable[[Opening, StoreError | None], None]
"""Called for each partition once it is open, or with the reason why it is not."""


class Found(NamedTuple):
    """A partition's block in a flush."""

    flush: int
    file: int
    flush_position: int
    time_ms: int
    proven: bool
    """False: salvaged, and whose it is may have been hurt."""
    block: FlushBlock


class LogContents:
    """What a log holds of the partitions that are wanted."""

    def __init__(self, wanted: set[PartitionKey]) -> None:
        self._wanted = wanted
        self._blocks: dict[PartitionKey, list[Found]] = {}
        self._damaged: list[Damaged] = []

    def add(self, flush: ScannedFlush, file: int) -> None:
        if flush.damage is not None:
            self._damaged.append(Damaged(flush.number, flush.damage))
        for block in iter_blocks(flush.blocks):
            key = (block.topic_id, block.partition)
            if key in self._wanted:
                proven = flush.damage is None or flush.damage.torn
                found = Found(flush.number, file, flush.position, flush.time_ms, proven, block)
                self._blocks.setdefault(key, []).append(found)

    def of(self, key: PartitionKey) -> Iterator[Found | Damaged]:
        """What concerns a partition, in order: its blocks, and damaged flushes that may have held one."""
        blocks = self._blocks.get(key, [])
        if not self._damaged:
            yield from blocks
            return
        damages = {one.flush: one for one in self._damaged}
        known = {found.flush for found in blocks}
        other = [one for one in self._damaged if one.flush not in known]
        both: list[Found | Damaged] = [*blocks, *other]
        for one in sorted(both, key=lambda one: one.flush):
            damaged = damages.get(one.flush)
            around = [damaged] if damaged is not None and damaged.damage.torn else []
            yield from (*around, one, *around)


class Recovery:
    def __init__(self, store: ObjectStore, wal_store: WalStore, own: WalRef, files: WalFiles) -> None:
        self._store = store
        self._wal_store = wal_store
        self._own = own
        self._files = files
        self._room = asyncio.Semaphore(READS_AT_ONCE_MAX)
        self.logs_scanned = 0
        self.flushes_scanned = 0
        """Since the beginning; for people."""

    async def open(self, openings: Sequence[Opening], image: ClusterImage, on_opened: OnOpened) -> None:
        """Bring each partition to the state in which its last leader left it."""
        wanted = {(o.partition.topic_id, o.partition.index) for o in openings}
        wals = dict.fromkeys(wal for opening in openings for wal in opening.info.wals)
        wals.pop(self._own, None)
        loads = self._begin_loads(one.info.manifest for one in openings if one.info.manifest is not None)
        scans = {wal: self._begin(partial(self._scan, wal, image, wanted)) for wal in wals}
        try:
            await asyncio.gather(*(self._open_one(one, loads, scans, on_opened) for one in openings))
        finally:
            await _end((*loads.values(), *scans.values()))

    async def manifest(self, ref: ManifestRef) -> Manifest | DamagedObjectError:
        """One manifest, as it is stored."""
        return (await self._load_object(ref.key, (ref,)))[ref]

    async def manifests(
        self, refs: Sequence[ManifestRef]
    ) -> Mapping[ManifestRef, Manifest | DamagedObjectError]:
        """Several of them: those that lie in one object are read in one go."""
        loads = self._begin_loads(refs)
        loaded: dict[ManifestRef, Manifest | DamagedObjectError] = {}
        try:
            for load in loads.values():
                loaded.update(await load)
        finally:
            await _end(loads.values())
        return loaded

    def _begin_loads(self, refs: Iterable[ManifestRef]) -> dict[str, Load]:
        by_key: dict[str, list[ManifestRef]] = {}
        for ref in refs:
            by_key.setdefault(ref.key, []).append(ref)
        return {
            key: self._begin(partial(self._load_object, key, together)) for key, together in by_key.items()
        }

    def _begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Some are under way at a time: what they wait for is a distant store."""

        async def do() -> T:
            async with self._room:
                return await work()

        return asyncio.get_running_loop().create_task(do())

    async def _open_one(
        self,
        opening: Opening,
        loads: Mapping[str, Load],
        scans: Mapping[WalRef, asyncio.Task[LogContents]],
        on_opened: OnOpened,
    ) -> None:
        info = opening.info
        try:
            manifest: Manifest | DamagedObjectError | None = None
            if info.manifest is not None:
                manifest = (await asyncio.shield(loads[info.manifest.key]))[info.manifest]
            if isinstance(manifest, DamagedObjectError):
                raise manifest
            logs = [await asyncio.shield(scans[wal]) for wal in info.wals if wal in scans]
            _take_over(opening, manifest, logs)
        except StoreError as error:
            on_opened(opening, error)
        else:
            on_opened(opening, None)

    async def _load_object(
        self, key: str, refs: Sequence[ManifestRef]
    ) -> dict[ManifestRef, Manifest | DamagedObjectError]:
        """The manifests that lie in one object are read in one go."""
        start = min(ref.start for ref in refs)
        end = max(ref.start + ref.length for ref in refs)
        stored = memoryview(await self._store.get_range(key, start, end - start))
        loaded: dict[ManifestRef, Manifest | DamagedObjectError] = {}
        for ref in refs:
            at = ref.start - start
            try:
                loaded[ref] = decode_manifest(stored[at : at + ref.length])
            except ManifestError as error:
                loaded[ref] = DamagedObjectError(f"{key} at {ref.start}: {error}")
        return loaded

    async def _scan(self, wal: WalRef, image: ClusterImage, wanted: set[PartitionKey]) -> LogContents:
        end = image.sealed.get(wal)
        if end is None:
            raise StoreError(f"the log of broker {wal.broker}, epoch {wal.epoch} was never sealed")
        contents = LogContents(wanted)
        self.logs_scanned += 1
        async for flush in self._wal_store.scan(wal, image.wal_starts.get(wal, 0), end):
            self.flushes_scanned += 1
            file = self._files.file(wal, flush.key)
            file.last_flush, file.bytes = flush.number, flush.position + flush.size
            contents.add(flush, file.number)
        return contents


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Give up what is not done."""
    tasks = tuple(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _take_over(opening: Opening, manifest: Manifest | None, logs: Sequence[LogContents]) -> None:
    partition, info = opening
    restore(partition, info, manifest)
    replay = Replay(partition, info.log_start)
    for log in logs:
        _replay(partition, replay, log.of((partition.topic_id, partition.index)))
    replay.finish()
    for one in replay.hurt:
        logger.error(
            "records are lost topic=%s partition=%d start=%d end=%d: %s",
            partition.topic, partition.index, one.start, one.end, one.reason,
        )  # fmt: skip
    for start, end in replay.torn:
        logger.warning(
            "records were gone after a loss of power topic=%s partition=%d start=%d end=%d",
            partition.topic, partition.index, start, end,
        )  # fmt: skip
    partition.hurt += tuple(replay.hurt)
    # Without durability=fsync a loss of power may take records that were deleted anyway, and no others.
    partition.next_offset = max(partition.next_offset, info.log_start)
    partition.publish(partition.next_offset, partition.staged_stable_offset)
    partition.advance_log_start(info.log_start)
    partition.count_bytes()
    partition.lead()


def restore(partition: Partition, info: PartitionInfo, manifest: Manifest | None) -> None:
    """Begin from the manifest: the state at its end."""
    partition.manifest_ref = info.manifest
    partition.manifest = manifest
    if manifest is None:
        return  # Nothing was settled yet, so the logs hold everything from offset 0 on.
    if (manifest.topic_id, manifest.partition) != (partition.topic_id, partition.index):
        raise DamagedObjectError("the manifest is that of another partition")
    partition.next_offset = manifest.end_offset
    partition.producer_entries = dict(manifest.producers)
    partition.epochs = manifest.epochs
    partition.ongoing = dict(manifest.ongoing)
    partition.aborted = list(manifest.aborted)
    partition.hurt = manifest.hurt


def _replay(partition: Partition, replay: Replay, contents: Iterator[Found | Damaged]) -> None:
    for one in contents:
        if isinstance(one, Damaged):
            replay.damaged(*one)
            continue
        for header, position, control in one.block.batches():
            if replay.takes(header, control, one.time_ms, proven=one.proven):
                partition.unsettled.append(
                    header.base_offset,
                    header.last_offset,
                    header.max_timestamp,
                    one.flush_position + position,
                    header.size,
                    one.file,
                )
