"""Deletes objects that neither the metadata log nor a reader needs any more.

Only proof deletes. The footer of a segment object names the partitions whose records it holds. The object is
unused if none of them needs it. A partition does not need it if

    the image does not know it                          its topic is deleted
    it is open here, and its manifest does not refer    counted, without reading anything
    its manifest in the image does not refer            read for this question

A partition that does refer ends the search; its leader dooms the object again when it lets go of it. A footer
or manifest that cannot be read proves nothing: the object stays and is asked about again later, less and less
often. So a partition that cannot be opened keeps all it has, and holds up nothing else.

An image that is behind does no harm. A manifest refers to segments of its base, which is the manifest that it
replaces, and to new ones that its writer has not given up. So if nothing in one image refers to an object,
and no proposal in doubt holds it (`committing`), nothing in any later image refers to it either.

Deletion waits for a delay, which gives readers elsewhere (another broker, Spark) time to finish, and for
readers here. An object that was never proposed has no readers and needs no proof.

The broker that settles the last record of a write-ahead log dooms the log. If the last user of a log goes in
another way (its topic is deleted, or the incarnation never led anything), the controller sees it in the
image.

`sweep` lists objects and finds those that no broker doomed: objects of incarnations that are over, which can
commit nothing more, and objects of the own incarnation that no attempt is on.
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from penstock.log.manifest import Manifest
from penstock.metadata.image import ClusterImage, ManifestRef, PartitionKey, WalRef
from penstock.storage.partitions.holdings import Holdings
from penstock.storage.partitions.partition import Partition
from penstock.storage.settling.references import References
from penstock.storage.settling.segment_writer import (
    FIRST_REPAIR_NAME,
    INDEX_SUFFIX,
    MANIFEST_PREFIX,
    SEGMENT_PREFIX,
    Attempt,
    SegmentWriter,
)
from penstock.storage.settling.usage import Usage
from penstock.storage.stores.objects import (
    ObjectMissingError,
    StoreError,
)
from penstock.storage.wal.port import SEAL_BYTES_MAX, WAL_PREFIX

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(segments|manifests|wal)/[0-9]+/[0-9]+/([0-9]+(\.index)?|open|sealed)")
"""Objects of incarnations. What has another name is not ours to judge."""
_UNFINISHED_MS = 3_600_000
"""A file that nobody has touched for so long is not being written any more."""
_DELETES_AT_ONCE = 8
_UNLINKS_AT_ONCE = 2
"""On a directory, where settling needs threads of the same lane."""
_DELETES_PER_PASS = 400
"""So that a pass ends, and what else is due gets its turn."""
_RETRY_FIRST_SECONDS = 5.0
_RETRY_MAX_SECONDS = 600.0


class _Doomed(NamedTuple):
    due: float
    index_key: str
    """The object whose footer says what the doomed one holds; "" for what is not a segment."""
    unproposed: bool = False
    """Nothing can refer to it."""
    pause: float = _RETRY_FIRST_SECONDS
    """How long to wait if it cannot be told whether it is used, or cannot be deleted."""


class _Verdict(Enum):
    UNUSED = "unused"
    USED = "used"
    GONE = "gone"
    UNKNOWN = "unknown"


class Garbage:
    def __init__(
        self,
        holdings: Holdings,
        writer: SegmentWriter,
        *,
        opening: Mapping[PartitionKey, Partition],
        held: Callable[[str], bool],
    ) -> None:
        """`opening`: partitions that will be open here. `held`: whether a read is on an object."""
        self._store = holdings.store
        self._wal_store = holdings.wal_store
        self._own = holdings.own
        self._files = holdings.files
        self._clock = holdings.clock
        self._partitions = holdings.partitions
        self.references = References(holdings, writer)
        self._opening = opening
        self._held = held
        self.usage = Usage()
        self.attempts: set[Attempt] = set()
        """What is being written, or was and is in doubt: not garbage yet."""
        self._doomed: dict[str, _Doomed] = {}
        self._witnesses: dict[str, PartitionKey] = {}
        self._logs: dict[WalRef, _Doomed] = {}
        self._own_starts: deque[tuple[int, float]] = deque()
        """Where the own log may begin, and when it may: one for each settling of the last while."""
        self._one_at_a_time = asyncio.Lock()
        self.objects_deleted = 0

    # What is referred to.

    def hold(self, manifest: Manifest | None) -> None:
        """A partition led here refers to the objects of `manifest`."""
        self.usage.add(manifest)

    def release(self, manifest: Manifest | None, delay_ms: int) -> None:
        """It does not any more. Call `hold` for what replaces it first."""
        due = self._due(delay_ms)
        for dropped in self.usage.drop(manifest):
            self._doomed[dropped.key] = _Doomed(due, dropped.index_key)

    def forget(self, manifest: Manifest | None) -> None:
        """Another broker leads the partition now, and its manifest with it."""
        self.usage.drop(manifest)

    def doom(self, key: str, delay_ms: int, index_key: str = "") -> None:
        """Delete an object after the delay, if it is proved then that nothing refers to it."""
        self._doomed[key] = _Doomed(self._due(delay_ms), index_key)

    def doom_manifest(self, ref: ManifestRef | None, delay_ms: int) -> None:
        if ref is not None:
            self.doom(ref.key, delay_ms)

    def end(self, attempt: Attempt, delay_ms: int) -> None:
        """It is known what became of an attempt: its objects that nothing refers to go."""
        self.attempts.discard(attempt)
        for key, index_key in attempt.made.items():
            if key in self.usage or key in self._doomed:
                continue
            if key in attempt.proposed:
                self.doom(key, delay_ms, index_key)
            else:
                self._doomed[key] = _Doomed(self._clock.monotonic(), index_key, unproposed=True)

    def doom_log(self, wal: WalRef, delay_ms: int) -> None:
        """A sealed log that no partition needs."""
        self._logs.setdefault(wal, _Doomed(self._due(delay_ms), ""))

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

    async def collect(self, image: ClusterImage) -> bool:
        """Delete what is due, a bounded number of objects. True if there is more to delete at once. What
        fails is tried again later, and holds up nothing else."""
        # What was doomed after this image was taken may be referred to in a later one.
        now = self._clock.monotonic()
        due = {key: doomed for key, doomed in self._doomed.items() if doomed.due <= now}
        logs = [wal for wal, doomed in self._logs.items() if doomed.due <= now]
        async with self._one_at_a_time:
            failed = await self._collect_own_log(now)
            for wal in logs:
                failed = await self._collect_log(wal, image) or failed
            some = [key for key, doomed in due.items() if self._doomed.get(key) == doomed]
            if some:
                failed = await self._collect_objects(some[:_DELETES_PER_PASS], image) or failed
            if failed is not None:
                logger.warning("objects were not deleted and will be tried again: %s", failed)
            return len(some) > _DELETES_PER_PASS

    async def _collect_own_log(self, now: float) -> StoreError | None:
        starts = [flush for flush, due in self._own_starts if due <= now]
        if not starts:
            return None
        try:
            await self._wal_store.delete_below(self._own, starts[-1])
        except StoreError as error:
            self._own_starts = deque(
                (flush, max(due, now + _RETRY_FIRST_SECONDS)) for flush, due in self._own_starts
            )
            return error
        self._files.forget(self._own, starts[-1])
        while self._own_starts and self._own_starts[0][0] <= starts[-1]:
            self._own_starts.popleft()
        return None

    async def _collect_log(self, wal: WalRef, image: ClusterImage) -> StoreError | None:
        doomed = self._logs.get(wal)
        if doomed is None:
            return None
        if any(wal in partition.wals for partition in self._opening.values()):
            self._logs[wal] = self._later(doomed)
            return None
        if not image.wal_uses.get(wal) and _is_over(image, wal):
            try:
                await self._wal_store.delete(wal)
            except StoreError as error:
                self._logs[wal] = self._later(doomed)
                return error
            self._files.forget(wal)
        self._logs.pop(wal, None)
        return None

    def _later(self, doomed: _Doomed) -> _Doomed:
        due = self._clock.monotonic() + doomed.pause
        return doomed._replace(due=due, pause=min(2 * doomed.pause, _RETRY_MAX_SECONDS))

    async def _collect_objects(self, keys: Sequence[str], image: ClusterImage) -> StoreError | None:
        manifests = {
            info.manifest.key
            for topic in image.topics.values()
            for info in topic.partitions
            if info.manifest is not None
        }
        room = asyncio.Semaphore(_DELETES_AT_ONCE if self._store.local is None else _UNLINKS_AT_ONCE)

        async def collect(key: str) -> StoreError | None:
            async with room:
                return await self._collect_one(key, image, manifests)

        # An index goes after its data: it is the proof that these may go.
        for some in (
            [key for key in keys if not key.endswith(INDEX_SUFFIX)],
            [key for key in keys if key.endswith(INDEX_SUFFIX)],
        ):
            answers = await asyncio.gather(*map(collect, some))
            for error in answers:
                if error is not None:
                    return error
        return None

    async def _collect_one(
        self, key: str, image: ClusterImage, manifests: Collection[str]
    ) -> StoreError | None:
        doomed = self._doomed.get(key)
        if doomed is None or self._held(key) or self._is_being_written(key):
            return None
        data = self._doomed.get(key.removesuffix(INDEX_SUFFIX)) if key.endswith(INDEX_SUFFIX) else None
        if data is not None:
            self._doomed[key] = doomed._replace(due=max(doomed.due, data.due))
            return None
        verdict, error = await self._judge(key, doomed, image, manifests)
        if verdict is _Verdict.UNUSED and self._doomed.get(key) == doomed and key not in self.usage:
            try:
                await self._store.delete(key)
            except StoreError as refused:
                verdict, error = _Verdict.UNKNOWN, refused
            else:
                self.objects_deleted += 1
        if self._doomed.get(key) != doomed:
            return error  # Doomed anew meanwhile.
        if verdict is _Verdict.UNKNOWN:
            if error is not None:
                self._doomed[key] = self._later(doomed)
        else:
            del self._doomed[key]
            if verdict in (_Verdict.UNUSED, _Verdict.GONE):
                self._witnesses.pop(key, None)
        return error

    # Proof.

    async def _judge(
        self, key: str, doomed: _Doomed, image: ClusterImage, manifests: Collection[str]
    ) -> tuple[_Verdict, StoreError | None]:
        if key in manifests or key in self.usage:
            return _Verdict.USED, None  # Whoever drops the last reference dooms it again.
        if doomed.unproposed or not doomed.index_key:
            return _Verdict.UNUSED, None
        try:
            pieces = await self.references.pieces(doomed.index_key)
        except ObjectMissingError as error:
            return await self._judge_gone(key, doomed, error)
        except StoreError as error:
            return _Verdict.UNKNOWN, error
        if any(self.references.is_moving(partition, image) for partition in pieces):
            return _Verdict.UNKNOWN, None
        unreadable: StoreError | None = None
        witness = self._witnesses.get(key)
        for partition in (witness, *pieces) if witness is not None else pieces:
            try:
                if await self.references.refers(partition, key, image):
                    self._witnesses[key] = partition
                    return _Verdict.USED, None
            except StoreError as error:
                unreadable = error
        return (_Verdict.UNUSED if unreadable is None else _Verdict.UNKNOWN), unreadable

    async def _judge_gone(
        self, key: str, doomed: _Doomed, error: StoreError
    ) -> tuple[_Verdict, StoreError | None]:
        """There is no footer. If the object is not there either, nothing is left to delete."""
        try:
            if key == doomed.index_key or await self._store.size(key) is None:
                return _Verdict.GONE, None
        except StoreError as refused:
            error = refused
        return _Verdict.UNKNOWN, error

    def let_go(self) -> None:
        """Of files that others deleted and that are open here."""
        if self._store.local is not None:
            self._store.local.let_go()

    # What nobody doomed.

    async def sweep(self, image: ClusterImage, delay_ms: int) -> None:
        """Doom the objects that nothing refers to as far as is known here: those of this broker, of its
        present incarnation and earlier ones, and, on the controller, those of brokers that are gone."""
        if self._store.local is not None:
            await self._store.local.sweep(self._clock.time_ms() - _UNFINISHED_MS)
        brokers = {self._own.broker}
        if image.controller_id == self._own.broker:
            for prefix in (WAL_PREFIX, SEGMENT_PREFIX, MANIFEST_PREFIX):
                brokers.update([_incarnation(key).broker async for key in self._keys(prefix)])
        for broker in sorted(brokers):
            if broker != self._own.broker and image.is_live(broker):
                continue
            for prefix in (MANIFEST_PREFIX, SEGMENT_PREFIX):
                keys = [key async for key in self._keys(f"{prefix}{broker}/")]
                self._doom_left([key for key in keys if self._is_swept(key, image)], keys, delay_ms)
            async for info in self._store.list(f"{WAL_PREFIX}{broker}/"):
                if info.size <= SEAL_BYTES_MAX or not _NAME.fullmatch(info.key):
                    continue
                wal = _incarnation(info.key)
                if _is_over(image, wal) and not image.wal_uses.get(wal):
                    self.doom_log(wal, delay_ms)

    def _is_being_written(self, key: str) -> bool:
        return any(key in attempt.made for attempt in self.attempts)

    def _is_swept(self, key: str, image: ClusterImage) -> bool:
        number = int(key.rpartition("/")[2].removesuffix(INDEX_SUFFIX))
        if number >= FIRST_REPAIR_NAME:
            return False  # Who writes a repair may still be at it.
        incarnation = _incarnation(key)
        if incarnation == self._own:
            return not self._is_being_written(key)
        return _is_over(image, incarnation)

    def _doom_left(self, keys: Sequence[str], all_keys: Sequence[str], delay_ms: int) -> None:
        names = set(all_keys)
        for key in keys:
            if key in self.usage or key in self._doomed:
                continue
            if key.startswith(MANIFEST_PREFIX):
                self.doom(key, delay_ms)
            else:
                self.doom(key, delay_ms, key + INDEX_SUFFIX if key + INDEX_SUFFIX in names else key)

    async def _keys(self, prefix: str) -> AsyncIterator[str]:
        async for info in self._store.list(prefix):
            if _NAME.fullmatch(info.key):
                yield info.key


def _incarnation(key: str) -> WalRef:
    """Whose object this is, by its name."""
    _prefix, broker, epoch, _rest = key.split("/")
    return WalRef(int(broker), int(epoch))


def _is_over(image: ClusterImage, wal: WalRef) -> bool:
    """Whether this incarnation can commit nothing more. One that registered after this image, whose epoch
    is the number of a later entry, is not known yet."""
    return wal.epoch <= image.version and not image.is_current(wal.broker, wal.epoch)
