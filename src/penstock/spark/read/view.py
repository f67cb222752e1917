"""What the store holds of some partitions: read from the store alone, whether or not brokers run.

Theory of operation. A partition is its manifest (settled segments, and the state at their end) and then what
the write-ahead logs that the cluster image names hold beyond it. Logs are followed by their flush indexes,
which repeat batch headers, so no record is read to know offsets, positions and transactions. Everything is
kept between calls and only what is new is read: a look for news costs a few small requests.

A log that is still written to is read up to its last whole flush; `storage.wal.following` says why those
flushes count. Objects that vanish, or offsets that do not join, mean that the image is old: it is read again.
So do changes of
the places that records are in, between two looks at the image around each look at the logs. If offsets do not
join with the newest image either, records are lost: the view says which.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from penstock.cluster.reading import ImageReader
from penstock.log.extents import Extents
from penstock.log.flush import FlushBlock, iter_blocks
from penstock.log.manifest import (
    HurtRange,
    Manifest,
    ManifestError,
    SegmentRef,
    decode_manifest,
    without_hurt_below,
)
from penstock.log.markers import AbortedTransaction, touching
from penstock.log.partition import PartitionLog
from penstock.log.replaying import Damaged, Replay
from penstock.metadata.image import ClusterImage, ManifestRef, PartitionInfo, PartitionKey, TopicInfo, WalRef
from penstock.spark.errors import LostRecordsError, TakeoverError
from penstock.storage.stores.objects import ObjectMissingError, ObjectStore
from penstock.storage.wal.following import LogTail, follow_log
from penstock.storage.wal.port import ScannedFlush
from penstock.wire.batch import HEADER, HEADER_SIZE, BatchHeader

ATTEMPTS_MAX = 40
"""Tries to get a picture that fits together. With the pauses below about ten seconds: a broker that takes
over a dead one's log needs far less between the seal and the command that says where the log ends."""
PAUSE_FIRST_SECONDS = 0.005
PAUSE_MAX_SECONDS = 0.4


class Chosen(NamedTuple):
    """A partition that a reader wants, and what the image says of it."""

    topic: TopicInfo
    number: int
    info: PartitionInfo


class TailPiece(NamedTuple):
    """Adjacent batches in a write-ahead log."""

    key: str
    position: int
    length: int
    base_offset: int
    last_offset: int
    max_timestamp: int


class PartitionView:
    """One partition as the store has it. `stable_end` is where a read_committed reader stops."""

    def __init__(self, topic: str, topic_id: bytes, index: int) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log_start = 0
        self.segments: tuple[SegmentRef, ...] = ()
        self._manifest_ref: ManifestRef | None = None
        self._wals: tuple[WalRef, ...] | None = None
        self._log = PartitionLog(0)
        self._tail = Extents()
        self._keys: list[str] = []
        self._taken: dict[WalRef, int] = {}
        self._settled_hurt: tuple[HurtRange, ...] = ()
        self._replay = Replay(self._log, 0)

    @property
    def hurt(self) -> tuple[HurtRange, ...]:
        """Records that the store lost, from the log start on, in order."""
        return without_hurt_below((*self._settled_hurt, *self._replay.hurt), self.log_start)

    @property
    def end(self) -> int:
        return self._log.next_offset

    @property
    def stable_end(self) -> int:
        return self._log.staged_stable_offset

    def aborted(self, low: int, high: int) -> list[AbortedTransaction]:
        return touching(self._log.aborted, low, high)

    def tail(self, low: int, high: int) -> list[TailPiece]:
        """What write-ahead logs hold of [low, high)."""
        extents = self._tail
        found = []
        for at in range(extents.find(low), len(extents)):
            if extents.base_offsets[at] >= high:
                break
            base, last, timestamp, position, length, file = extents[at]
            found.append(TailPiece(self._keys[file], position, length, base, last, timestamp))
        return found

    def is_of(self, info: PartitionInfo) -> bool:
        return info.manifest == self._manifest_ref and info.wals == self._wals

    def restore(self, info: PartitionInfo, manifest: Manifest | None) -> None:
        """Begin from the manifest."""
        self._manifest_ref = info.manifest
        self._wals = info.wals
        self._log = log = PartitionLog(0)
        self._tail = Extents()
        self._keys = []
        self._taken = {}
        self._settled_hurt = ()
        self._replay = Replay(log, info.log_start)
        self.segments = ()
        if manifest is not None:
            self.segments = manifest.segments
            self._settled_hurt = manifest.hurt
            log.next_offset = manifest.end_offset
            log.producer_entries = dict(manifest.producers)
            log.ongoing = dict(manifest.ongoing)
            log.aborted = list(manifest.aborted)

    def take(self, wal: WalRef, blocks: "list[_Block | Damaged]", *, gaps: bool = False) -> None:
        """Take over what a log holds beyond what was taken from it. With `gaps`, records that are missing
        without a damaged flush to explain it are lost; else LostRecordsError says that they are missing."""
        replay = self._replay
        for at in range(self._taken.get(wal, 0), len(blocks)):
            one = blocks[at]
            if isinstance(one, Damaged):
                replay.damaged(*one)
                continue
            if not self._keys or self._keys[-1] != one.key:
                self._keys.append(one.key)
            for header, batch_at, control in one.block.batches():
                if not gaps and not replay.expects(header.base_offset, proven=one.proven):
                    raise LostRecordsError(self.topic, self.index, self.end, header.base_offset - 1)
                if replay.takes(header, control, one.time_ms, proven=one.proven):
                    self._tail.append(
                        header.base_offset,
                        header.last_offset,
                        header.max_timestamp,
                        one.position + batch_at,
                        header.size,
                        len(self._keys) - 1,
                    )
        self._taken[wal] = len(blocks)


class _Block(NamedTuple):
    """A partition's block in a flush."""

    key: str
    position: int
    time_ms: int
    proven: bool
    """False: salvaged, and whose it is may have been hurt."""
    block: FlushBlock


class _Log:
    """One write-ahead log, as far as it was read."""

    def __init__(self, tail: LogTail) -> None:
        self.tail = tail
        self.flushes: list[ScannedFlush] = []
        self.blocks: dict[PartitionKey, list[_Block | Damaged]] = {}
        """Of the partitions that somebody wants. Emptied when those are in a manifest."""

    def add(self, flushes: Iterable[ScannedFlush]) -> None:
        for flush in flushes:
            self.flushes.append(flush)
            self._index(flush, self.blocks)

    def want(self, keys: Iterable[PartitionKey]) -> None:
        """Keep the blocks of these partitions, too."""
        fresh: dict[PartitionKey, list[_Block | Damaged]] = {
            key: [] for key in keys if key not in self.blocks
        }
        if fresh:
            for flush in self.flushes:
                self._index(flush, fresh)
            self.blocks.update(fresh)

    def forget_below(self, number: int) -> None:
        """Flushes below `number` hold nothing that a manifest does not."""
        if self.flushes and self.flushes[0].number < number:
            self.flushes = [flush for flush in self.flushes if flush.number >= number]

    def forget_settled(self, key: PartitionKey, end_offset: int) -> None:
        """A manifest covers this partition up to `end_offset`."""
        blocks = self.blocks[key]
        first = next((at for at, one in enumerate(blocks) if _is_beyond(one, end_offset)), len(blocks))
        # A damaged flush before the first block that is left may have held what lies between.
        while first and isinstance(blocks[first - 1], Damaged):
            first -= 1
        self.blocks[key] = blocks[first:]

    def _index(self, flush: ScannedFlush, blocks: dict[PartitionKey, list[_Block | Damaged]]) -> None:
        torn = flush.damage is not None and flush.damage.torn
        proven = flush.damage is None or torn
        known = set()
        for block in iter_blocks(flush.blocks):
            key = (block.topic_id, block.partition)
            wanted = blocks.get(key)
            if wanted is not None:
                known.add(key)
                if flush.damage is not None and torn:
                    wanted.append(Damaged(flush.number, flush.damage))
                wanted.append(_Block(flush.key, flush.position, flush.time_ms, proven, block))
        if flush.damage is not None:
            for key, wanted in blocks.items():
                if key not in known or torn:
                    wanted.append(Damaged(flush.number, flush.damage))


def _is_beyond(one: _Block | Damaged, end_offset: int) -> bool:
    if isinstance(one, Damaged):
        return False
    headers = one.block.headers
    last = BatchHeader._make(HEADER.unpack_from(headers, len(headers) - HEADER_SIZE))
    return last.last_offset >= end_offset


def _same_places(one: PartitionInfo, other: PartitionInfo) -> bool:
    return one.manifest == other.manifest and one.wals == other.wals


Choose = Callable[[ClusterImage], Mapping[PartitionKey, Chosen]]


class Images(Protocol):
    @property
    def image(self) -> ClusterImage: ...

    async def refresh(self) -> ClusterImage: ...


class LogView:
    """The partitions that `choose` names, brought up to date by each `refresh`."""

    def __init__(self, store: ObjectStore, choose: Choose, images: Images | None = None) -> None:
        """`images`: where cluster images come from, if not from the store itself."""
        self._store = store
        self._choose = choose
        self._images = images if images is not None else ImageReader(store)
        self._logs: dict[WalRef, _Log] = {}
        self.partitions: dict[PartitionKey, PartitionView] = {}
        self._gaps = False
        """Whether records that are missing are lost, and not only beyond what an old image tells."""

    @property
    def image(self) -> ClusterImage:
        return self._images.image

    async def refresh(self) -> Mapping[PartitionKey, PartitionView]:
        """Every record that was acknowledged before this call is in the views that it gives.

        Records that the store lost are in the views' `hurt`. Raises TakeoverError, NoClusterError,
        FormatError and StoreError.
        """
        pause = PAUSE_FIRST_SECONDS
        self._gaps = False
        for attempt in range(ATTEMPTS_MAX):
            image = await self._images.refresh()
            chosen = self._choose(image)
            try:
                await self._follow_logs(image, chosen)
                await self._update(chosen)
                # What was settled may be deleted, and a log that is not there looks like an empty one. So
                # the image is read again: if it still says the same, nothing was missed.
                if self._holds(image, await self._images.refresh(), chosen):
                    return self.partitions
                if self._gaps:
                    # What seemed to be lost may only have been settled meanwhile.
                    self._gaps = False
                    self._logs.clear()
                    self.partitions.clear()
                continue
            except (TakeoverError, ObjectMissingError, LostRecordsError) as error:
                newest = await self._images.refresh()
                unchanged = newest.version == image.version and not isinstance(error, TakeoverError)
                if attempt == ATTEMPTS_MAX - 1 or (attempt and unchanged):
                    # It is not the image's age.
                    if self._gaps or not isinstance(error, LostRecordsError):
                        raise
                    self._gaps = True
                self._logs.clear()
                self.partitions.clear()
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_MAX_SECONDS)
        raise TakeoverError

    def _holds(
        self, image: ClusterImage, newest: ClusterImage, chosen: Mapping[PartitionKey, Chosen]
    ) -> bool:
        if newest.version == image.version:
            return True
        for (topic_id, number), one in chosen.items():
            info = newest.partition(topic_id, number)
            # The records of a topic that was deleted meanwhile are what they were.
            if info is not None and info is not one.info and not _same_places(info, one.info):
                return False
        return all(newest.wal_starts.get(wal, 0) <= image.wal_starts.get(wal, 0) for wal in self._logs)

    async def _follow_logs(self, image: ClusterImage, chosen: Mapping[PartitionKey, Chosen]) -> None:
        wanted: dict[WalRef, list[PartitionKey]] = {}
        for key, one in chosen.items():
            for wal in one.info.wals:
                wanted.setdefault(wal, []).append(key)
        for wal in [wal for wal in self._logs if wal not in wanted]:
            del self._logs[wal]
        for wal, keys in wanted.items():
            start = image.wal_starts.get(wal, 0)
            log = self._logs.get(wal)
            if log is None or log.tail.next_flush < start:
                log = self._logs[wal] = _Log(follow_log(self._store, wal, start))
                self._begin_again(keys)
            log.want(keys)
            end = image.sealed.get(wal)
            found, certain = await log.tail.read_on(end)
            if end is None and not certain:
                raise TakeoverError
            if end is not None and log.tail.next_flush < end:
                raise ObjectMissingError(
                    f"the write-ahead log of broker {wal.broker}, epoch {wal.epoch} should hold {end}"
                    f" flushes, but flush {log.tail.next_flush} is not there"
                )
            log.add(found)
            log.forget_below(start)

    def _begin_again(self, keys: Iterable[PartitionKey]) -> None:
        """These partitions counted the blocks of a log that is now read anew."""
        for key in keys:
            self.partitions.pop(key, None)

    async def _update(self, chosen: Mapping[PartitionKey, Chosen]) -> None:
        for key in [key for key in self.partitions if key not in chosen]:
            del self.partitions[key]
        changed: list[tuple[PartitionKey, Chosen]] = []
        for key, one in chosen.items():
            view = self.partitions.get(key)
            if view is None or not view.is_of(one.info):
                changed.append((key, one))
        manifests = await self._manifests({one.info.manifest for _key, one in changed} - {None})
        for key, one in changed:
            view = PartitionView(one.topic.name, one.topic.id, one.number)
            view.restore(one.info, manifests[one.info.manifest] if one.info.manifest else None)
            for wal in one.info.wals:
                self._logs[wal].forget_settled(key, view.end)
            self.partitions[key] = view
        for key, one in chosen.items():
            view = self.partitions[key]
            view.log_start = one.info.log_start
            for wal in one.info.wals:
                view.take(wal, self._logs[wal].blocks[key], gaps=self._gaps)

    async def _manifests(self, refs: Iterable[ManifestRef | None]) -> dict[ManifestRef | None, Manifest]:
        """Manifests that lie in one object are read in one go."""
        together: dict[str, list[ManifestRef]] = {}
        for ref in refs:
            assert ref is not None
            together.setdefault(ref.key, []).append(ref)
        loaded: dict[ManifestRef | None, Manifest] = {}
        for key, some in together.items():
            start = min(ref.start for ref in some)
            end = max(ref.start + ref.length for ref in some)
            stored = memoryview(await self._store.get_range(key, start, end - start))
            for ref in some:
                at = ref.start - start
                try:
                    loaded[ref] = decode_manifest(stored[at : at + ref.length])
                except ManifestError as error:
                    raise ManifestError(f"{key} at {ref.start}: {error}") from error
        return loaded
