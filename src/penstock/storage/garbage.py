"""Deleting objects that nobody needs any more: not the metadata log, not a reader.

A name is used once and never referred to again after the last reference went, so an object that an image
does not need is not needed by any later image either; a broker whose image is behind errs only on the
safe side. Deletion waits for a delay, which gives readers elsewhere (another broker, Spark) time to finish,
and for readers here.

A segment object may hold records of several partitions. Those led here are counted; for those led by other
brokers the object's footer names them, and their manifests tell. The first one that still refers to the
object ends the search, and is asked first the next time.

A write-ahead log is doomed by who settles the last record in it. If its last user goes in another way (its
topic is deleted, or the incarnation never led anything), the controller sees it go in the image.

What a killed broker left behind (objects written, but never committed) is found by `sweep`, which lists
the objects of incarnations that are over. Such an incarnation can commit nothing more.
"""

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import NamedTuple

from penstock.clock import Clock
from penstock.log.manifest import Manifest, ManifestError, decode_manifest
from penstock.log.segment import TRAILER_SIZE, Footer, SegmentError, decode_footer, footer_size
from penstock.metadata.image import ClusterImage, ManifestRef, WalRef
from penstock.storage.directory import DirectoryStore
from penstock.storage.objects import ObjectStore, StoreError
from penstock.storage.segment_writer import INDEX_SUFFIX, MANIFEST_PREFIX, SEGMENT_PREFIX
from penstock.storage.wal import SEAL_BYTES_MAX, WAL_PREFIX, WalStore
from penstock.storage.wal_files import WalFiles

logger = logging.getLogger(__name__)

_UNFINISHED_MS = 3_600_000
"""A file that nobody has touched for so long is not being written any more."""


class _Doomed(NamedTuple):
    due: float
    index_key: str
    """The object whose footer says what the doomed one holds; "" for what is not a segment."""


class Garbage:
    def __init__(
        self,
        store: ObjectStore,
        wal_store: WalStore,
        own: WalRef,
        files: WalFiles,
        clock: Clock,
        held: Callable[[str], bool],
    ) -> None:
        self._store = store
        self._wal_store = wal_store
        self._own = own
        self._files = files
        self._clock = clock
        self._held = held
        self._uses: dict[str, int] = {}
        """Segment and index objects that partitions led here refer to, and how often."""
        self._doomed: dict[str, _Doomed] = {}
        self._witnesses: dict[str, tuple[bytes, int]] = {}
        self._logs: dict[WalRef, float] = {}
        self._own_starts: deque[tuple[int, float]] = deque()
        """Where the own log may begin, and when it may: one for each settling of the last while."""
        self.objects_deleted = 0

    # What is referred to.

    def hold(self, manifest: Manifest | None) -> None:
        """A partition led here refers to the objects of `manifest`."""
        for key, _index_key in _objects(manifest):
            self._uses[key] = self._uses.get(key, 0) + 1

    def release(self, manifest: Manifest | None, delay_ms: int) -> None:
        """It does not any more. Call `hold` for what replaces it first."""
        due = self._due(delay_ms)
        for key, index_key in _objects(manifest):
            left = self._uses[key] - 1
            if left:
                self._uses[key] = left
            else:
                del self._uses[key]
                self._doomed[key] = _Doomed(due, index_key)

    def forget(self, manifest: Manifest | None) -> None:
        """Another broker leads the partition now, and its manifest with it."""
        for key, _index_key in _objects(manifest):
            left = self._uses[key] - 1
            if left:
                self._uses[key] = left
            else:
                del self._uses[key]

    def doom(self, key: str, delay_ms: int, index_key: str = "") -> None:
        """Delete an object after the delay, if nothing refers to it then."""
        self._doomed[key] = _Doomed(self._due(delay_ms), index_key)

    def doom_manifest(self, ref: ManifestRef | None, delay_ms: int) -> None:
        if ref is not None:
            self.doom(ref.key, delay_ms)

    def doom_log(self, wal: WalRef, delay_ms: int) -> None:
        """A sealed log that no partition needs."""
        self._logs.setdefault(wal, self._due(delay_ms))

    def follow(self, old: ClusterImage, new: ClusterImage, delay_ms: int) -> None:
        """On the controller: doom the logs that nobody needs any more since the image before."""
        if new.controller_id != self._own.broker:
            return
        gone: list[WalRef] = []
        if old.wal_uses is not new.wal_uses:
            gone.extend(wal for wal in old.wal_uses if not new.wal_uses.get(wal))
        if old.brokers is not new.brokers:
            gone.extend(info.wal for info in old.brokers.values() if not info.fenced)
        for wal in gone:
            if _is_over(new, wal) and not new.wal_uses.get(wal):
                self.doom_log(wal, delay_ms)

    def doom_own_below(self, flush: int, delay_ms: int) -> None:
        """Flushes of this incarnation's own log below `flush` are settled."""
        self._own_starts.append((flush, self._due(delay_ms)))

    def _due(self, delay_ms: int) -> float:
        return self._clock.monotonic() + delay_ms / 1000

    @property
    def waiting(self) -> bool:
        return bool(self._doomed or self._logs or self._own_starts)

    # Deleting.

    async def collect(self, image: ClusterImage) -> None:
        """Delete what is due."""
        now = self._clock.monotonic()
        starts = [flush for flush, due in self._own_starts if due <= now]
        if starts:
            await self._wal_store.delete_below(self._own, starts[-1])
            self._files.forget(self._own, starts[-1])
            # Not by their number: another collection may have been here meanwhile.
            while self._own_starts and self._own_starts[0][0] <= starts[-1]:
                self._own_starts.popleft()
        for wal in [wal for wal, due in self._logs.items() if due <= now]:
            if not image.wal_uses.get(wal) and _is_over(image, wal):
                await self._wal_store.delete(wal)
                self._files.forget(wal)
            self._logs.pop(wal, None)  # last, so that a store that fails is asked again
        due = [(key, doomed) for key, doomed in self._doomed.items() if doomed.due <= now]
        if not due:
            return
        manifests = {
            info.manifest.key
            for topic in image.topics.values()
            for info in topic.partitions
            if info.manifest is not None
        }
        for key, doomed in due:
            if self._held(key):
                continue
            if key in manifests or key in self._uses or await self._used_elsewhere(key, doomed, image):
                # Whoever drops the last reference dooms it again.
                self._doomed.pop(key, None)
                continue
            await self._store.delete(key)
            self._doomed.pop(key, None)
            self._witnesses.pop(key, None)
            self.objects_deleted += 1

    async def _used_elsewhere(self, key: str, doomed: _Doomed, image: ClusterImage) -> bool:
        if not doomed.index_key or set(image.leader_counts) <= {self._own.broker}:
            return False
        footer = await self._footer(doomed.index_key)
        if footer is None:
            return False
        partitions = dict.fromkeys((piece.topic_id, piece.partition) for piece in footer.pieces)
        witness = self._witnesses.get(key)
        ordered = (witness, *partitions) if witness is not None else tuple(partitions)
        for topic_id, index in ordered:
            info = image.partition(topic_id, index)
            if info is None or info.manifest is None or info.leader == self._own.broker:
                continue
            if any(key in pair for pair in _objects(await self._manifest(info.manifest))):
                self._witnesses[key] = (topic_id, index)
                return True
        return False

    async def _footer(self, key: str) -> Footer | None:
        sizes = [info.size async for info in self._store.list(key) if info.key == key]
        if not sizes:
            return None
        try:
            trailer = await self._store.get_range(key, sizes[0] - TRAILER_SIZE, TRAILER_SIZE)
            size = footer_size(trailer)
            return decode_footer(await self._store.get_range(key, sizes[0] - size, size))
        except SegmentError as error:
            raise StoreError(f"{key}: {error}") from error

    async def _manifest(self, ref: ManifestRef) -> Manifest:
        stored = await self._store.get_range(ref.key, ref.start, ref.length)
        try:
            return decode_manifest(stored)
        except ManifestError as error:
            raise StoreError(f"{ref.key} at {ref.start}: {error}") from error

    # What incarnations that are over left behind.

    async def sweep(self, image: ClusterImage, delay_ms: int) -> None:
        """Doom the objects of incarnations that are over, as far as nothing refers to them: those of this
        broker's earlier ones and, on the controller, those of brokers that are gone."""
        if isinstance(self._store, DirectoryStore):
            await self._store.sweep(self._clock.time_ms() - _UNFINISHED_MS)
        brokers = {self._own.broker}
        if image.controller_id == self._own.broker:
            for prefix in (WAL_PREFIX, SEGMENT_PREFIX, MANIFEST_PREFIX):
                brokers.update([_incarnation(key).broker async for key in self._keys(prefix)])
        for broker in sorted(brokers):
            if broker != self._own.broker and image.is_live(broker):
                continue
            for prefix in (MANIFEST_PREFIX, SEGMENT_PREFIX):
                keys = [key async for key in self._keys(f"{prefix}{broker}/")]
                self._doom_left([key for key in keys if _is_over(image, _incarnation(key))], delay_ms)
            async for info in self._store.list(f"{WAL_PREFIX}{broker}/"):
                wal = _incarnation(info.key)
                if info.size > SEAL_BYTES_MAX and _is_over(image, wal) and not image.wal_uses.get(wal):
                    self.doom_log(wal, delay_ms)

    def _doom_left(self, keys: Sequence[str], delay_ms: int) -> None:
        names = set(keys)
        for key in keys:
            if key in self._uses or key in self._doomed:
                continue
            if key.startswith(MANIFEST_PREFIX):
                self.doom(key, delay_ms)
            else:
                self.doom(key, delay_ms, key + INDEX_SUFFIX if key + INDEX_SUFFIX in names else key)

    async def _keys(self, prefix: str) -> AsyncIterator[str]:
        async for info in self._store.list(prefix):
            yield info.key


def _incarnation(key: str) -> WalRef:
    """Whose object this is, by its name."""
    _prefix, broker, epoch, _rest = key.split("/", 3)
    return WalRef(int(broker), int(epoch))


def _is_over(image: ClusterImage, wal: WalRef) -> bool:
    """Whether this incarnation can commit nothing more. One that registered after this image, whose epoch
    is the number of a later entry, is not known yet."""
    return wal.epoch <= image.version and not image.is_current(wal.broker, wal.epoch)


def _objects(manifest: Manifest | None) -> Iterable[tuple[str, str]]:
    """Each object that a manifest refers to, once, with the one whose footer describes it."""
    if manifest is None:
        return ()
    found: dict[str, str] = {}
    for segment in manifest.segments:
        found[segment.key] = segment.index_key
        found[segment.index_key] = segment.index_key
    return found.items()
