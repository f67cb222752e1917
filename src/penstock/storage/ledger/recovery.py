"""Opens partitions: reads the manifest, then the write-ahead logs of earlier incarnations beyond it.

The cost is one range read per object that manifests lie in, and one scan of each sealed log that some
partition still needs. It does not grow with the number of partitions or the length of their history. Objects
are read side by side. A partition is open as soon as the objects that it needs were read: an object that is
slow, or refused, holds up no other partition.

An object that cannot be read is unknown, not damaged, and recovery asks for it again. A partition opens with
all that its leader left, or not yet. Damage is proof that bytes are not as they were written. Damage in a log
becomes a hurt range of each partition that lost records (`log.replaying`), and these open all the same. After
a manifest with a wrong checksum there is nothing to begin from: the partition stays closed until an
administrator brings the manifest back.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Never, TypeVar

from penstock.log.manifest import Manifest
from penstock.log.replaying import Replay
from penstock.metadata.image import ClusterImage, ManifestRef, PartitionInfo, PartitionKey, WalRef
from penstock.storage.partitions.partition import Partition
from penstock.storage.reader.contents import LogContents
from penstock.storage.reader.manifests import (
    READS_AT_ONCE_MAX,
    Loaded,
    by_object,
    load_object,
    manifest_of,
)
from penstock.storage.reader.replaying import replay_log, restore
from penstock.storage.stores.objects import ObjectStore, StoreError
from penstock.storage.wal.files import WalFiles
from penstock.storage.wal.port import WalStore

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Opening(NamedTuple):
    """A partition to open, and what the image says of it."""

    partition: Partition
    info: PartitionInfo

    @property
    def key(self) -> PartitionKey:
        return self.partition.topic_id, self.partition.index


Load = asyncio.Task[dict[ManifestRef, Loaded]]
OnOpened = Callable[[Opening, StoreError | None], None]
"""Called for each partition once it is open, or with the reason why it is not."""


class Recovery:
    def __init__(self, store: ObjectStore, wal_store: WalStore, own: WalRef, files: WalFiles) -> None:
        self._store = store
        self._wal_store = wal_store
        self._own = own
        self._files = files
        self._room = asyncio.Semaphore(READS_AT_ONCE_MAX)
        self._told: Exception | None = None
        """A read that failed for another reason than the store's; many partitions may have waited for it."""
        self.logs_scanned = 0
        self.flushes_scanned = 0
        """Since the beginning; for people."""

    async def open(self, openings: Sequence[Opening], image: ClusterImage, on_opened: OnOpened) -> None:
        """Bring each partition to the state in which its last leader left it."""
        wanted: dict[WalRef, list[PartitionKey]] = {}
        for opening in openings:
            for wal in opening.info.wals:
                wanted.setdefault(wal, []).append(opening.key)
        wanted.pop(self._own, None)
        loads = self._begin_loads(one.info.manifest for one in openings if one.info.manifest is not None)
        scans = {wal: self._begin(partial(self._scan, wal, image, keys)) for wal, keys in wanted.items()}
        try:
            await asyncio.gather(*(self._open_one(one, loads, scans, on_opened) for one in openings))
        finally:
            await _end((*loads.values(), *scans.values()))

    def _begin_loads(self, refs: Iterable[ManifestRef]) -> dict[str, Load]:
        return {
            key: self._begin(partial(load_object, self._store, together))
            for key, together in by_object(refs).items()
        }

    def _begin(self, work: Callable[[], Coroutine[object, Never, T]]) -> asyncio.Task[T]:
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
        ref = opening.info.manifest
        try:
            manifest = None
            if ref is not None:
                manifest = manifest_of(opening.key, (await asyncio.shield(loads[ref.key]))[ref])
            logs = {wal: await asyncio.shield(scans[wal]) for wal in opening.info.wals if wal in scans}
            self._take_over(opening, manifest, logs)
        except StoreError as error:
            on_opened(opening, error)
        except Exception as error:
            # As without memory, or threads, for a moment. Nobody would try again what nobody hears of.
            if error is not self._told:
                self._told = error
                logger.exception("partitions were not opened")
            on_opened(opening, StoreError(f"it could not be opened: {error!r}"))
        else:
            on_opened(opening, None)

    async def _scan(self, wal: WalRef, image: ClusterImage, wanted: Iterable[PartitionKey]) -> LogContents:
        end = image.sealed.get(wal)
        if end is None:
            raise StoreError(f"the log of broker {wal.broker}, epoch {wal.epoch} was never sealed")
        contents = LogContents(wanted)
        self.logs_scanned += 1
        async for flush in self._wal_store.scan(wal, image.wal_starts.get(wal, 0), end):
            self.flushes_scanned += 1
            file = self._files.file(wal, flush.key)
            file.last_flush, file.bytes = flush.number, flush.position + flush.size
            file.may_be_adopted = False  # Whoever sealed the log has synced it, and may have failed.
            contents.add(flush)
        return contents

    def _file_number(self, wal: WalRef, key: str) -> int:
        return self._files.file(wal, key).number

    def _take_over(
        self, opening: Opening, manifest: Manifest | None, logs: Mapping[WalRef, LogContents]
    ) -> None:
        partition, info = opening
        partition.manifest_ref, partition.manifest = info.manifest, manifest
        if manifest is not None:
            restore(partition, manifest)
            partition.hurt = manifest.hurt
        # Else nothing was settled yet, and the logs hold everything from offset 0 on.
        replay = Replay(partition, info.log_start)
        for wal, log in logs.items():
            replay_log(replay, log.of(opening.key), partition.unsettled, partial(self._file_number, wal))
        replay.finish()
        _tell(partition, replay)
        partition.hurt += tuple(replay.hurt)
        partition.publish(partition.next_offset, partition.staged_stable_offset)
        partition.advance_log_start(info.log_start)
        partition.count_bytes()
        partition.lead()


async def _end(tasks: Iterable[asyncio.Task[object]]) -> None:
    """Give up what is not done."""
    tasks = tuple(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _tell(partition: Partition, replay: Replay) -> None:
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
