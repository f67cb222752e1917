"""Compares the objects of a store with those that its cluster needs: finds orphaned and missing ones.

    referenced   the image needs it: manifests, the segments and indexes they name, the write-ahead logs that
                 partitions name and those of live incarnations, the metadata log, the leases of brokers
    orphaned     nothing needs it, and it is older than the grace age
    in flight    nothing needs it yet, or any more, and it is younger: a settling that is not committed, an
                 object whose readers get time to finish. So is an older one of an incarnation that is not
                 over: it may sleep, or wait for its store, and commit later. Its broker sweeps what is left
    unknown      no manifest that can be read needs it, but one that cannot be read may; it is never deleted
    missing      needed, and not there, or shorter than the needed part
    other        under a name that is not judged here: objects of Spark queries, for instance

Brokers may run meanwhile. So the audit reads the image before and after it lists the objects, and an object
that either image needs is no orphan. It looks once more for an object that seems to be missing. The object
counts as missing only if an image that is read after that look still needs it.

Seals of write-ahead logs stay for ever, by intent (`storage.wal.objects`), and count as referenced.

It also says how much is stored for what can be read (`space`).
"""

from collections.abc import Iterable, Mapping, Set
from typing import Final

import msgspec

from penstock.cluster.home import IDENTITY_KEY
from penstock.cluster.leases import lease_key
from penstock.cluster.reading import ImageReader
from penstock.cluster.snapshots import HINT_KEY, entry_key
from penstock.cluster.space import Space, space_of
from penstock.metadata.image import ClusterImage, ManifestRef, PartitionKey, WalRef
from penstock.storage.reader.footers import read_footer
from penstock.storage.reader.manifests import Loaded, load_manifests, manifest_of
from penstock.storage.settling.segment_writer import (
    FIRST_REPAIR_NAME,
    INDEX_SUFFIX,
    MANIFEST_PREFIX,
    SEGMENT_PREFIX,
)
from penstock.storage.stores.objects import (
    DatedObject,
    DatedStore,
    ObjectMissingError,
    StoreError,
)
from penstock.storage.wal.following import follow_log
from penstock.storage.wal.opening import open_wal_store
from penstock.storage.wal.port import SEAL_BYTES_MAX, WAL_PREFIX

_KINDS: Final = {
    "meta/": "metadata",
    "live/": "leases",
    WAL_PREFIX: "write-ahead logs",
    SEGMENT_PREFIX: "segments",
    MANIFEST_PREFIX: "manifests",
}
_OTHER: Final = "other"


class Found(msgspec.Struct, frozen=True):
    key: str
    size: int
    age_seconds: int


class Missing(msgspec.Struct, frozen=True):
    key: str
    reason: str


class Tally(msgspec.Struct):
    """The count of one kind of object."""

    objects: int = 0
    bytes: int = 0
    referenced: int = 0
    orphaned: int = 0
    orphaned_bytes: int = 0
    in_flight: int = 0


class Report(msgspec.Struct):
    cluster_id: str
    version: int
    """The entry of the metadata log that the store was compared with."""
    kinds: dict[str, Tally] = {}
    orphaned: list[Found] = []
    in_flight: list[Found] = []
    unknown: list[Found] = []
    missing: list[Missing] = []
    deleted: list[str] = []
    space: Space | None = None
    """None if it cannot be told, because a manifest cannot be read."""


class _Needs(msgspec.Struct):
    """The objects that one image needs."""

    image: ClusterImage
    floor: int
    elsewhere: bool
    """The metadata log is not in the store."""
    ends: dict[str, int] = {}
    """Objects, and how many bytes they must have."""
    damaged: dict[str, str] = {}
    """Manifests that could not be read, and why."""
    unread: set[PartitionKey] = set()
    """The partitions that these belong to."""
    readable_bytes: int = 0

    def needs(self, found: DatedObject) -> bool | None:
        """Whether an object is needed; None if that is not for us to say."""
        key, image = found.key, self.image
        if key in self.ends or key in (IDENTITY_KEY, HINT_KEY):
            return True
        match key.split("/"):
            case ["meta", "log", number] if not self.elsewhere and number.isdecimal():
                return key > entry_key(self.floor)
            case ["meta", "snapshot", _] if not self.elsewhere:
                return True
            case ["meta", "probe", _, _]:
                return False
            case ["live", broker] if not self.elsewhere:
                return any(lease_key(one) == key for one in image.brokers) or not broker.isdecimal()
            case ["wal", broker, epoch, _] if broker.isdecimal() and epoch.isdecimal():
                return found.size <= SEAL_BYTES_MAX or self._needs_log(WalRef(int(broker), int(epoch)))
            case ["segments" | "manifests", broker, epoch, _] if broker.isdecimal() and epoch.isdecimal():
                # Of an incarnation that registered after this image was read.
                return int(epoch) > image.version
        return None

    def may_commit(self, key: str) -> bool:
        """Whether its writer may still make the metadata log refer to an object. Who repairs looks whether
        what it wrote is there."""
        match key.split("/"):
            case ["segments" | "manifests", broker, epoch, name] if broker.isdecimal() and epoch.isdecimal():
                number = name.removesuffix(INDEX_SUFFIX)
                counted = number.isdecimal() and int(number) < FIRST_REPAIR_NAME
                return counted and self.image.is_current(int(broker), int(epoch))
        return False

    def _needs_log(self, wal: WalRef) -> bool:
        image = self.image
        return bool(
            image.wal_uses.get(wal) or image.is_current(wal.broker, wal.epoch) or wal.epoch > image.version
        )


class Audit:
    def __init__(self, store: DatedStore, now_ms: int, grace_ms: int) -> None:
        self._store = store
        self._now_ms = now_ms
        self._grace_ms = grace_ms
        self._reader = ImageReader(store)
        self._manifests: dict[ManifestRef, Loaded] = {}

    async def run(self) -> Report:
        """Compare. Raises NoClusterError, FormatError and StoreError."""
        before = await self._needs()
        objects = {one.key: one async for one in self._store.list_dated("")}
        after = await self._needs()
        report = Report(after.image.cluster_id, after.image.version)
        for one in objects.values():
            self._judge(one, before, after, report)
        await self._set_apart_unknown(report, before.unread | after.unread)
        _set_apart_in_flight(report, before, after)
        report.space = _space(report, after)
        suspects = await self._suspects(after, objects)
        if suspects:
            suspects = await self._look_again(suspects, after)
        if suspects:
            # Deleted in the meantime is not missing: does the newest image need it still?
            newest = await self._needs()
            suspects = {key: why for key, why in suspects.items() if _still_needed(newest, after, key)}
        report.missing = [Missing(key, reason) for key, reason in sorted(suspects.items())]
        return report

    async def delete(self, report: Report) -> None:
        """Delete the orphans of a report, as far as nothing needs them now."""
        newest = await self._needs()
        logs = set[WalRef]()
        for orphan in report.orphaned:
            if newest.needs(DatedObject(orphan.key, orphan.size, 0)) is not False:
                continue
            if newest.may_commit(orphan.key):
                continue
            if await self._may_hold(orphan.key, newest.unread):
                continue
            if orphan.key.startswith(WAL_PREFIX):
                _wal, broker, epoch, _name = orphan.key.split("/")
                logs.add(WalRef(int(broker), int(epoch)))
            else:
                await self._store.delete(orphan.key)
            report.deleted.append(orphan.key)
        wal_store = open_wal_store(self._store)
        for wal in sorted(logs):
            await wal_store.delete(wal)
        await wal_store.close()

    def _judge(self, found: DatedObject, before: _Needs, after: _Needs, report: Report) -> None:
        tally = report.kinds.setdefault(_kind_of(found.key), Tally())
        tally.objects += 1
        tally.bytes += found.size
        answers = (before.needs(found), after.needs(found))
        if None in answers:
            return
        if any(answers):
            tally.referenced += 1
            return
        age_ms = max(0, self._now_ms - found.modified_ms)
        told = Found(found.key, found.size, age_ms // 1000)
        if age_ms < self._grace_ms:
            tally.in_flight += 1
            report.in_flight.append(told)
        else:
            tally.orphaned += 1
            tally.orphaned_bytes += found.size
            report.orphaned.append(told)

    async def _set_apart_unknown(self, report: Report, unread: Set[PartitionKey]) -> None:
        """Objects that a manifest may need which could not be read are no orphans."""
        if not unread:
            return
        orphaned = []
        for orphan in report.orphaned:
            if await self._may_hold(orphan.key, unread):
                report.unknown.append(orphan)
                tally = report.kinds[_KINDS[SEGMENT_PREFIX]]
                tally.orphaned -= 1
                tally.orphaned_bytes -= orphan.size
            else:
                orphaned.append(orphan)
        report.orphaned = orphaned

    async def _may_hold(self, key: str, partitions: Set[PartitionKey]) -> bool:
        """Whether a segment may hold records of one of these partitions: also if its footer cannot be
        read."""
        if not partitions or not key.startswith(SEGMENT_PREFIX):
            return False
        index_key = key + INDEX_SUFFIX
        try:
            size = await self._store.size(index_key)
            if size is None:
                index_key = key
                size = await self._store.size(key)
            footer = await read_footer(self._store.get_range, index_key, size or 0)
        except StoreError:
            return True
        return any((piece.topic_id, piece.partition) in partitions for piece in footer.pieces)

    # What is needed.

    async def _needs(self) -> _Needs:
        image = await self._reader.refresh()
        needs = _Needs(image, self._reader.floor, self._reader.elsewhere, {}, {})
        partitions = {
            (topic.id, index): info
            for topic in image.topics.values()
            for index, info in enumerate(topic.partitions)
        }
        refs = {info.manifest for info in partitions.values() if info.manifest is not None}
        self._manifests.update(await load_manifests(self._store, refs - self._manifests.keys()))
        for key, info in partitions.items():
            ref = info.manifest
            if ref is None:
                continue
            _need(needs.ends, ref.key, ref.start + ref.length)
            try:
                manifest = manifest_of(key, self._manifests[ref])
            except StoreError as error:
                needs.damaged[ref.key] = str(error)
                needs.unread.add(key)
                continue
            for segment in manifest.segments:
                _need(needs.ends, segment.key, segment.size_bytes)
                _need(needs.ends, segment.index_key, segment.index_start + segment.index_length)
                if segment.end_offset > info.log_start:
                    needs.readable_bytes += segment.size_bytes
        return needs

    # What is not there.

    async def _suspects(self, needs: _Needs, objects: Mapping[str, DatedObject]) -> dict[str, str]:
        suspects = dict(needs.damaged)
        for key, end in needs.ends.items():
            found = objects.get(key)
            if found is None:
                suspects[key] = "it is not there"
            elif found.size < end:
                suspects[key] = f"it has {found.size} bytes, and {end} are needed"
        lowest = _lowest_numbers(objects)
        for wal in needs.image.wal_uses:
            prefix = f"{WAL_PREFIX}{wal.broker}/{wal.epoch}/"
            start = needs.image.wal_starts.get(wal, 0)
            count = needs.image.sealed.get(wal)
            if count is None:
                # Where an open log ends nobody knows, but it begins no later than what is needed of it.
                if lowest.get(wal, 0) > start:
                    suspects[prefix] = f"this log begins with {lowest[wal]}, and flush {start} is needed"
                continue
            first = await self._first_missing(wal, start, count, objects)
            if first is not None:
                what = f"flush {first}" if first < count else "the seal"
                suspects[prefix] = f"{what} of this log is not there, and all up to {count} are needed"
        return suspects

    async def _first_missing(
        self, wal: WalRef, start: int, end: int, objects: Mapping[str, DatedObject]
    ) -> int | None:
        """The first flush of a sealed log that is not there; `end` if that is its seal."""
        if start >= end:
            return None
        if self._store.local is not None:
            tail = follow_log(self._store, wal, start)
            await tail.read_on(end)
            return tail.next_flush if tail.next_flush < end else None
        # Flush n is object n + 1, and the seal follows the last.
        numbers = range(start, end + 1)
        keys = (f"{WAL_PREFIX}{wal.broker}/{wal.epoch}/{number + 1:020d}" for number in numbers)
        return next((number for number, key in zip(numbers, keys, strict=True) if key not in objects), None)

    async def _look_again(self, suspects: Mapping[str, str], needs: _Needs) -> dict[str, str]:
        """Those that are still not there: a listing may be older than what was written meanwhile."""
        left = {}
        for key, reason in suspects.items():
            end = needs.ends.get(key)
            if end and key not in needs.damaged:
                try:
                    await self._store.get_range(key, end - 1, 1)
                    continue
                except ObjectMissingError:
                    pass
            left[key] = reason
        return left


def _set_apart_in_flight(report: Report, before: _Needs, after: _Needs) -> None:
    """What may still be committed is no orphan at any age."""
    orphaned, report.orphaned = report.orphaned, []
    for one in orphaned:
        if before.may_commit(one.key) or after.may_commit(one.key):
            report.in_flight.append(one)
            tally = report.kinds[_kind_of(one.key)]
            tally.orphaned -= 1
            tally.orphaned_bytes -= one.size
            tally.in_flight += 1
        else:
            report.orphaned.append(one)


def _kind_of(key: str) -> str:
    return next((name for prefix, name in _KINDS.items() if key.startswith(prefix)), _OTHER)


def _space(report: Report, needs: _Needs) -> Space | None:
    if needs.unread:
        return None
    kinds = (_KINDS[SEGMENT_PREFIX], _KINDS[MANIFEST_PREFIX])
    stored = sum(report.kinds[kind].bytes for kind in kinds if kind in report.kinds)
    waiting = sum(
        one.size for one in report.in_flight if one.key.startswith((SEGMENT_PREFIX, MANIFEST_PREFIX))
    )
    return space_of(needs.readable_bytes, stored - waiting)


def _lowest_numbers(objects: Iterable[str]) -> dict[WalRef, int]:
    """Of each write-ahead log, the lowest number of its files or objects."""
    lowest: dict[WalRef, int] = {}
    for key in objects:
        match key.split("/"):
            case ["wal", broker, epoch, number] if number.isdecimal():
                wal = WalRef(int(broker), int(epoch))
                lowest[wal] = min(lowest.get(wal, int(number)), int(number))
    return lowest


def _need(ends: dict[str, int], key: str, end: int) -> None:
    ends[key] = max(end, ends.get(key, 0))


def _still_needed(newest: _Needs, before: _Needs, key: str) -> bool:
    if key in newest.ends:
        return True
    match key.split("/"):
        case ["wal", broker, epoch, ""]:
            wal = WalRef(int(broker), int(epoch))
            start = before.image.wal_starts.get(wal, 0)
            return wal in newest.image.wal_uses and newest.image.wal_starts.get(wal, 0) == start
    return False
