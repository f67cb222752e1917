"""The records of some partitions, read from the store alone, whether or not brokers run.

Theory of operation. A partition is its manifest (settled segments, and the state at their end) and then the
later records in the write-ahead logs that the cluster image names. The view follows logs by their flush
indexes, which repeat batch headers. So it reads no record to know offsets, positions and transactions. It
keeps everything between calls and reads only the new flushes: a look for news costs a few small requests.

The view reads a log that is still written to up to its last whole flush; `storage.wal.following` says why
those flushes count. If objects vanish, or offsets do not join, the image is old, and the view reads it again.
It does the same if the image names other places of records after a look at the logs than before it. If
offsets do not join with the newest image either, records are lost: the view says which.

An object that is gone looks like the end of a log that is still written to. So whoever knows what the log's
broker said of it is asked, when a log is read for the first time and while nothing comes. Records that were
acknowledged and are not there are an error, and not the end.

A view of sealed logs ends where a broker that takes the partition over begins to write: records that a
damaged flush may have held are lost. If a log is still written to, only its writer knows what a damaged flush
held: those records are lost when a later batch shows it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from penstock.log.checking import Facts
from penstock.log.epochs import EpochStart, without_below
from penstock.log.extents import Extents
from penstock.log.isolation import Isolation
from penstock.log.manifest import HurtRange, Manifest, SegmentRef, without_hurt_below
from penstock.log.markers import AbortedTransaction
from penstock.log.partition import PartitionLog
from penstock.log.replaying import Damaged, Replay
from penstock.metadata.image import ClusterImage, ManifestRef, PartitionInfo, PartitionKey, TopicInfo, WalRef
from penstock.storage.reader.contents import Block, LogContents
from penstock.storage.reader.manifests import Loaded, load_manifests, manifest_of
from penstock.storage.reader.replaying import GapError, replay_log, restore
from penstock.storage.stores.objects import ObjectMissingError, ObjectStore, StoreError
from penstock.storage.wal.following import LogTail, follow_log
from penstock.storage.wal.port import ScannedFlush

ATTEMPTS_MAX = 40
"""Tries to get a picture that fits together. With the pauses below about ten seconds: a broker that takes
over a dead one's log needs far less between the seal and the command that says where the log ends."""
PAUSE_FIRST_SECONDS = 0.005
PAUSE_MAX_SECONDS = 0.4
_LOOKS_PER_QUESTION = 10
"""Looks that find nothing new, for each question whether there should be something."""


class EndUnknownError(StoreError):
    """A write-ahead log was sealed, and nobody has said yet where it ends."""


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
    """One partition as the store has it."""

    def __init__(self, topic: str, topic_id: bytes, index: int) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.segments: tuple[SegmentRef, ...] = ()
        self._manifest_ref: ManifestRef | None = None
        self._wals: tuple[WalRef, ...] | None = None
        self._log = PartitionLog(0)
        self._compacted_end = 0
        self.unsettled = Extents()
        """What write-ahead logs hold beyond the segments; `file_key` tells the objects."""
        self._keys: list[str] = []
        self._taken: dict[WalRef, int] = {}
        self._settled_hurt: tuple[HurtRange, ...] = ()
        self._replay = Replay(self._log, 0)
        self._after_sealed: tuple[int, HurtRange] | None = None
        """What sealed logs lost behind their last batch, and where that batch ends."""

    @property
    def log_start(self) -> int:
        return self._replay.log_start

    @property
    def hurt(self) -> tuple[HurtRange, ...]:
        """Records that the store lost, from the log start on, in order."""
        lost = self._lost_at_end
        at_end = (lost,) if lost is not None else ()
        return without_hurt_below((*self._settled_hurt, *self._replay.hurt, *at_end), self.log_start)

    @property
    def end(self) -> int:
        """The high watermark: what a broker gave out, or will when it takes the partition over."""
        lost = self._lost_at_end
        return max(self._log.next_offset if lost is None else lost.end, self.log_start)

    @property
    def stable_end(self) -> int:
        """The last stable offset: all transactions that begin below it have ended. The first records of an
        open one may be deleted, and no reader is sent back to them."""
        return max(self._log.staged_stable_offset, self.log_start) if self._log.ongoing else self.end

    def end_for(self, isolation: Isolation) -> int:
        """Where the records end that a reader may see."""
        return self.stable_end if isolation is Isolation.READ_COMMITTED else self.end

    @property
    def epochs(self) -> tuple[EpochStart, ...]:
        return without_below(self._log.epochs, self.log_start)

    @property
    def facts(self) -> Facts:
        """What its batches are checked against."""
        return Facts(self._log.epochs, self._compacted_end)

    @property
    def _lost_at_end(self) -> HurtRange | None:
        # A batch that came since says better what is lost.
        if self._after_sealed is None or self._after_sealed[0] != self._log.next_offset:
            return None
        return self._after_sealed[1]

    def aborted(self, low: int, high: int) -> list[AbortedTransaction]:
        return self._log.aborted_transactions(low, high)

    def tail(self, low: int, high: int) -> list[TailPiece]:
        """What write-ahead logs hold of [low, high)."""
        extents = self.unsettled
        found = []
        for at in range(extents.find(low), len(extents)):
            if extents.base_offsets[at] >= high:
                break
            base, last, timestamp, position, length, file = extents[at]
            found.append(TailPiece(self._keys[file], position, length, base, last, timestamp))
        return found

    def file_key(self, number: int) -> str:
        return self._keys[number]

    def is_of(self, info: PartitionInfo) -> bool:
        return info.manifest == self._manifest_ref and info.wals == self._wals

    def begin(self, info: PartitionInfo, manifest: Manifest | None) -> None:
        """Begin from the manifest. Called once."""
        self._manifest_ref = info.manifest
        self._wals = info.wals
        if manifest is not None:
            restore(self._log, manifest)
            self.segments = manifest.segments
            self._settled_hurt = manifest.hurt
            self._compacted_end = manifest.compacted_end

    def advance_log_start(self, offset: int) -> None:
        self._replay.log_start = offset

    def take(self, wal: WalRef, found: Sequence[Block | Damaged], *, gaps: bool) -> None:
        """Take over what a log holds beyond what was taken from it. With `gaps`, records that are missing
        without a damaged flush to explain it are lost; else GapError says that they are missing."""
        taken = self._taken.get(wal, 0)
        if len(found) > taken:
            replay_log(self._replay, found[taken:], self.unsettled, self._file_number, gaps=gaps)
            self._taken[wal] = len(found)

    def has_taken(self, wal: WalRef) -> bool:
        """Whether this log held something of it."""
        return wal in self._taken

    @property
    def in_doubt(self) -> bool:
        """Whether a damaged flush may have held records of it, and no batch came since."""
        return self._replay.in_doubt

    def nothing_follows(self) -> None:
        """All logs that held something of it so far are sealed."""
        lost = self._replay.lost_at_end
        self._after_sealed = (self._log.next_offset, lost) if lost is not None else None

    def _file_number(self, key: str) -> int:
        if not self._keys or self._keys[-1] != key:
            self._keys.append(key)
        return len(self._keys) - 1


class _Log:
    """One write-ahead log, as far as it was read."""

    def __init__(self, tail: LogTail) -> None:
        self.tail = tail
        self.flushes: list[ScannedFlush] = []
        self.contents = LogContents()
        """Of the partitions that somebody wants. Emptied when those are in a manifest."""
        self.idle = 0
        """Looks since something came."""

    def add(self, flushes: Iterable[ScannedFlush]) -> None:
        for flush in flushes:
            self.flushes.append(flush)
            self.contents.add(flush)

    def want(self, keys: Iterable[PartitionKey]) -> None:
        """Keep the blocks of these partitions, too."""
        self.contents.want(keys, self.flushes)

    def forget_below(self, number: int) -> None:
        """Flushes below `number` hold nothing that a manifest does not."""
        if self.flushes and self.flushes[0].number < number:
            self.flushes = [flush for flush in self.flushes if flush.number >= number]


def _same_places(one: PartitionInfo, other: PartitionInfo) -> bool:
    return one.manifest == other.manifest and one.wals == other.wals


Choose = Callable[[ClusterImage], Mapping[PartitionKey, Chosen]]
Said = Callable[[WalRef], Awaitable[int]]
"""How many flushes a log holds at least, as its broker said; 0 if it said nothing."""


async def _nothing_said(_wal: WalRef) -> int:
    return 0


class Images(Protocol):
    """Where cluster images come from."""

    @property
    def image(self) -> ClusterImage: ...

    async def refresh(self) -> ClusterImage: ...


class LogView:
    """The partitions that `choose` names, brought up to date by each `refresh`."""

    def __init__(
        self, store: ObjectStore, images: Images, choose: Choose, said: Said = _nothing_said
    ) -> None:
        self._store = store
        self._choose = choose
        self._said = said
        self._images = images
        self._logs: dict[WalRef, _Log] = {}
        self.partitions: dict[PartitionKey, PartitionView] = {}
        self._gaps = False
        """Whether records that are missing are lost, and not only beyond what an old image tells."""

    @property
    def image(self) -> ClusterImage:
        return self._images.image

    async def refresh(self) -> Mapping[PartitionKey, PartitionView]:
        """Every record that was acknowledged before this call is in the views that it gives.

        Records that the store lost are in the views' `hurt`. Raises EndUnknownError and other StoreErrors,
        and what the source of images raises.
        """
        pause = PAUSE_FIRST_SECONDS
        self._gaps = False
        for attempt in range(ATTEMPTS_MAX):
            image = await self._images.refresh()
            chosen = self._choose(image)
            try:
                await self._follow_logs(image, chosen)
                await self._update(image, chosen)
                # What was settled may be deleted, and a log that is not there looks like an empty one. So
                # the image is read again: if it still says the same, nothing was missed.
                if self._holds(image, await self._images.refresh(), chosen):
                    return self.partitions
                if self._gaps:
                    # What seemed to be lost may only have been settled meanwhile.
                    self._gaps = False
                    self._forget()
                continue
            except (EndUnknownError, ObjectMissingError, GapError) as error:
                newest = await self._images.refresh()
                unchanged = newest.version == image.version and not isinstance(error, EndUnknownError)
                if attempt == ATTEMPTS_MAX - 1 or (attempt and unchanged):
                    # It is not the image's age.
                    if not isinstance(error, GapError):
                        raise
                    self._gaps = True
                self._forget()
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_MAX_SECONDS)
        raise EndUnknownError("the places of records changed at each look")

    def _forget(self) -> None:
        """Begin anew."""
        self._logs.clear()
        self.partitions.clear()

    def _holds(
        self, image: ClusterImage, newest: ClusterImage, chosen: Mapping[PartitionKey, Chosen]
    ) -> bool:
        if newest.version == image.version:
            return True
        for key, one in chosen.items():
            info = newest.partition(*key)
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
            if end is None:
                found += await self._overlooked(wal, log, bool(found))
            if end is None and not certain:
                raise EndUnknownError(
                    f"the write-ahead log of broker {wal.broker}, epoch {wal.epoch} was sealed, and the"
                    " metadata log does not say yet where it ends"
                )
            if end is not None and log.tail.next_flush < end:
                raise ObjectMissingError(
                    f"the write-ahead log of broker {wal.broker}, epoch {wal.epoch} should hold {end}"
                    f" flushes, but flush {log.tail.next_flush} is not there"
                )
            log.add(found)
            log.forget_below(start)

    async def _overlooked(self, wal: WalRef, log: _Log, came: bool) -> list[ScannedFlush]:
        """What is there of a log that is still written to, and was not found. ObjectMissingError if its
        broker wrote more than can be found. `came`: whether this look found something."""
        first = not log.flushes and not log.idle
        log.idle = 0 if came else log.idle + 1
        if not first and log.idle % _LOOKS_PER_QUESTION != 1:
            return []
        said = await self._said(wal)
        found: list[ScannedFlush] = []
        if said > log.tail.next_flush:
            # It may have come since.
            found, _certain = await log.tail.read_on()
        if said > log.tail.next_flush:
            raise ObjectMissingError(
                f"flush {log.tail.next_flush} of the write-ahead log of broker {wal.broker}, epoch"
                f" {wal.epoch} is not there, and the broker said that there are {said}"
            )
        return found

    def _begin_again(self, keys: Iterable[PartitionKey]) -> None:
        """These partitions counted the blocks of a log that is now read anew."""
        for key in keys:
            self.partitions.pop(key, None)

    async def _update(self, image: ClusterImage, chosen: Mapping[PartitionKey, Chosen]) -> None:
        for key in [key for key in self.partitions if key not in chosen]:
            del self.partitions[key]
        changed: list[tuple[PartitionKey, Chosen]] = []
        for key, one in chosen.items():
            view = self.partitions.get(key)
            if view is None or not view.is_of(one.info):
                changed.append((key, one))
        refs = {one.info.manifest for _key, one in changed if one.info.manifest is not None}
        manifests = await load_manifests(self._store, refs)
        for key, one in changed:
            self.partitions[key] = self._begun(key, one, manifests)
        for key, one in chosen.items():
            view = self.partitions[key]
            view.advance_log_start(one.info.log_start)
            sealed = True
            for wal in one.info.wals:
                if sealed and view.in_doubt and wal not in image.sealed and not view.has_taken(wal):
                    view.nothing_follows()
                sealed = sealed and wal in image.sealed
                view.take(wal, self._logs[wal].contents.of(key), gaps=self._gaps)
            if sealed and view.in_doubt:
                view.nothing_follows()

    def _begun(
        self, key: PartitionKey, one: Chosen, manifests: Mapping[ManifestRef, Loaded]
    ) -> PartitionView:
        ref = one.info.manifest
        manifest = manifest_of(key, manifests[ref]) if ref is not None else None
        view = PartitionView(one.topic.name, *key)
        view.begin(one.info, manifest)
        for wal in one.info.wals:
            self._logs[wal].contents.forget_settled(key, manifest.end_offset if manifest is not None else 0)
        return view
