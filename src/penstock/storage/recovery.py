"""Opening partitions: the manifest, then what the write-ahead logs of earlier incarnations hold beyond it.

What it costs: one range read per object that manifests lie in, and one scan of each sealed log that some
partition still needs, whatever the number of partitions and the length of their history.

A record that was acknowledged is in the manifest or in one of those logs, so offsets must join without a
gap. Where they do not, the store lost something: the partition stays closed and says so, since going on
would hand out offsets a second time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from penstock.log.flush import FlushBlock, iter_blocks
from penstock.log.manifest import Manifest, ManifestError, decode_manifest
from penstock.metadata.image import ClusterImage, ManifestRef, PartitionInfo, WalRef
from penstock.storage.objects import ObjectStore, StoreError, StoreUnavailableError
from penstock.storage.partition import Partition
from penstock.storage.wal import WalStore
from penstock.storage.wal_files import WalFiles

logger = logging.getLogger(__name__)

T = TypeVar("T")
READS_AT_ONCE_MAX = 32


class Opening(NamedTuple):
    """A partition to open, and what the image says of it."""

    partition: Partition
    info: PartitionInfo


class Found(NamedTuple):
    """A partition's block in a flush."""

    file: int
    flush_position: int
    time_ms: int
    block: FlushBlock


class DamagedError(Exception):
    """What the store holds of a partition does not fit together."""


PartitionKey = tuple[bytes, int]
Blocks = dict[PartitionKey, list[Found]]


class Recovery:
    def __init__(self, store: ObjectStore, wal_store: WalStore, own: WalRef, files: WalFiles) -> None:
        self._store = store
        self._wal_store = wal_store
        self._own = own
        self._files = files
        self.logs_scanned = 0
        self.flushes_scanned = 0
        """Since the beginning; for people."""

    async def open(
        self, openings: Sequence[Opening], image: ClusterImage
    ) -> dict[PartitionKey, DamagedError]:
        """Bring each partition to the state in which its last leader left it. Those that are damaged are
        returned with the reason. Raises StoreUnavailableError if the store cannot be read now."""
        manifests = await self.manifests([o.info.manifest for o in openings if o.info.manifest])
        wanted = {(o.partition.topic_id, o.partition.index) for o in openings}
        wals = dict.fromkeys(wal for opening in openings for wal in opening.info.wals)
        wals.pop(self._own, None)
        scanned = await _at_once(partial(self._scan, wal, image, wanted) for wal in wals)
        scans: dict[WalRef, Blocks | DamagedError] = dict(zip(wals, scanned, strict=True))
        damaged: dict[PartitionKey, DamagedError] = {}
        for opening in openings:
            try:
                _open_one(opening, manifests, scans)
            except DamagedError as error:
                partition = opening.partition
                logger.error(
                    "a partition cannot be opened topic=%s partition=%d: %s",
                    partition.topic,
                    partition.index,
                    error,
                )
                damaged[partition.topic_id, partition.index] = error
        return damaged

    async def manifest(self, ref: ManifestRef) -> Manifest | DamagedError:
        """One manifest, as it is stored."""
        return (await self.manifests((ref,)))[ref]

    async def manifests(self, refs: Sequence[ManifestRef]) -> Mapping[ManifestRef, Manifest | DamagedError]:
        """Several of them: those that lie in one object are read in one go."""
        by_key: dict[str, list[ManifestRef]] = {}
        for ref in refs:
            by_key.setdefault(ref.key, []).append(ref)
        loaded: dict[ManifestRef, Manifest | DamagedError] = {}
        parts = await _at_once(partial(self._load_object, key, together) for key, together in by_key.items())
        for part in parts:
            loaded.update(part)
        return loaded

    async def _load_object(
        self, key: str, refs: Sequence[ManifestRef]
    ) -> dict[ManifestRef, Manifest | DamagedError]:
        """The manifests that lie in one object."""
        start = min(ref.start for ref in refs)
        end = max(ref.start + ref.length for ref in refs)
        try:
            stored = memoryview(await self._store.get_range(key, start, end - start))
        except StoreUnavailableError:
            raise
        except StoreError as error:
            return {ref: DamagedError(str(error)) for ref in refs}
        loaded: dict[ManifestRef, Manifest | DamagedError] = {}
        for ref in refs:
            at = ref.start - start
            try:
                loaded[ref] = decode_manifest(stored[at : at + ref.length])
            except ManifestError as error:
                loaded[ref] = DamagedError(f"{key} at {ref.start}: {error}")
        return loaded

    async def _scan(
        self, wal: WalRef, image: ClusterImage, wanted: set[PartitionKey]
    ) -> Blocks | DamagedError:
        end = image.sealed.get(wal)
        if end is None:
            return DamagedError(f"the log of broker {wal.broker}, epoch {wal.epoch} was never sealed")
        blocks: Blocks = {}
        self.logs_scanned += 1
        try:
            async for flush in self._wal_store.scan(wal, image.wal_starts.get(wal, 0), end):
                self.flushes_scanned += 1
                file = self._files.file(wal, flush.key)
                file.last_flush, file.bytes = flush.number, flush.position + flush.size
                for block in iter_blocks(flush.blocks):
                    key = (block.topic_id, block.partition)
                    if key in wanted:
                        found = Found(file.number, flush.position, flush.time_ms, block)
                        blocks.setdefault(key, []).append(found)
        except StoreUnavailableError:
            raise
        except StoreError as error:
            return DamagedError(str(error))
        return blocks


async def _at_once(works: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """The results in order, some works under way at a time: what they wait for is a distant store. When one
    fails, the others end first."""
    room = asyncio.Semaphore(READS_AT_ONCE_MAX)

    async def do(work: Callable[[], Awaitable[T]]) -> tuple[T]:
        async with room:
            return (await work(),)

    results = []
    for done in await asyncio.gather(*map(do, works), return_exceptions=True):
        if isinstance(done, BaseException):
            raise done
        results.append(done[0])  # Which may be an exception that was returned, not raised.
    return results


def _open_one(
    opening: Opening,
    manifests: Mapping[ManifestRef, Manifest | DamagedError],
    scans: Mapping[WalRef, Blocks | DamagedError],
) -> None:
    partition, info = opening
    manifest = manifests[info.manifest] if info.manifest is not None else None
    if isinstance(manifest, DamagedError):
        raise manifest
    restore(partition, info, manifest)
    for wal in info.wals:
        blocks = scans.get(wal, {})
        if isinstance(blocks, DamagedError):
            raise blocks
        _replay(partition, blocks.get((partition.topic_id, partition.index), ()), info.log_start)
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
        raise DamagedError("the manifest is that of another partition")
    partition.next_offset = manifest.end_offset
    partition.producer_entries = dict(manifest.producers)
    partition.epochs = manifest.epochs
    partition.ongoing = dict(manifest.ongoing)
    partition.aborted = list(manifest.aborted)


def _replay(partition: Partition, found: Sequence[Found], log_start: int) -> None:
    for file, flush_position, time_ms, block in found:
        for header, position, control in block.batches():
            if header.last_offset < partition.next_offset:
                continue
            if header.base_offset != partition.next_offset and header.base_offset > log_start:
                raise DamagedError(
                    f"records {partition.next_offset} to {header.base_offset - 1} are missing from the store"
                )
            partition.replay(header, control, time_ms)
            partition.unsettled.append(
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
                flush_position + position,
                header.size,
                file,
            )
