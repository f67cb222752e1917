"""Brokers that are broken on purpose. A simulator that finds nothing here finds nothing.

fencing      a writer does not notice that its log was sealed
ack-early    a flush counts as written a moment before it is
no-seal      a log that is taken over is read, but not sealed
sealed-end   a broker that takes a log over reads on beyond its end
stale-image  a broker that does not know something says so without looking at the log
stale-reads  a broker that slept is as sure as ever that it leads
unopened     objects of partitions that are led here and could not be opened yet count as garbage
closed       a partition that the store refused to give once is never opened
late-base    a change of a manifest is committed on the manifest found at that moment
log-ends     a write-ahead log on a directory ends at the first flush that is not whole
page-cache   a broker that seals a log takes bytes in memory for bytes on the disk
torn-entry   the metadata log is not synced, and an entry that is torn stops every start
twice        retention by size counts records below the log start as well
dead         live pieces in objects that are mostly dead stay there
copies       objects of a failed attempt are left behind
one-stops    an object that cannot be judged keeps all others from being collected
listed       what a list does not name counts as not written
asleep       the clock that leases are measured with stands still while its machine is suspended

`transactions/broken.py` has those whose transactions are broken.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from penstock.broker import freshness
from penstock.broker.context import Broker
from penstock.cluster import tail
from penstock.log.extents import Extents
from penstock.log.manifest import SegmentRef
from penstock.metadata.image import ClusterImage, PartitionKey, WalRef
from penstock.storage.ledger.recovery import Opening
from penstock.storage.ledger.takeover import Takeover
from penstock.storage.settling import jobs
from penstock.storage.settling.change import Base, Change
from penstock.storage.settling.committing import Committer
from penstock.storage.settling.garbage import Garbage
from penstock.storage.settling.moving import Mover
from penstock.storage.settling.references import References
from penstock.storage.settling.segment_writer import Attempt
from penstock.storage.stores import directory
from penstock.storage.stores.files import store_error
from penstock.storage.stores.objects import StoreError
from penstock.storage.wal.directory import DirectoryWalStore
from penstock.storage.wal.file_tail import FileTail
from penstock.storage.wal.log_file import LogFile
from penstock.storage.wal.objects import SEAL, ObjectWalStore
from penstock.storage.wal.port import ScannedFlush
from penstock.wire.buffers import Buffer
from simulation.clocks import MachineClock
from simulation.disk import SimulatedFiles
from simulation.store import StoreView
from simulation.transactions import broken as transactions

EARLY_SECONDS = 0.3

Changes = list[tuple[Any, str, Any]]
"""Where, what, and what it is instead."""


def fencing() -> Changes:
    real, really_exists = StoreView.create, SimulatedFiles.exists

    async def create(self: StoreView, key: str, *parts: Buffer) -> bool:
        return await real(self, key, *parts) or _is_flush(key, parts)

    def exists(self: SimulatedFiles, path: str) -> bool:
        return really_exists(self, path) or path.endswith("/open")

    return [(StoreView, "create", create), (SimulatedFiles, "exists", exists)]


def ack_early() -> Changes:
    real, really_write = StoreView.create, SimulatedFiles.pwritev

    async def create(self: StoreView, key: str, *parts: Buffer) -> bool:
        if not _is_flush(key, parts):
            return await real(self, key, *parts)
        contents = b"".join(parts)
        shared = self._shared
        self._owner.post_at(self._world.time() + EARLY_SECONDS, shared.create, key, contents)
        return True

    def pwritev(self: SimulatedFiles, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        opened = self._open[fd]
        if "/wal/" not in opened.path or not position:
            return really_write(self, fd, buffers, position)
        copied = b"".join(buffers)
        when = self._disk.world.time() + EARLY_SECONDS
        self._process.post_at(when, self.write_to, opened, copied, position)
        return len(copied)

    return [(StoreView, "create", create), (SimulatedFiles, "pwritev", pwritev)]


def _is_flush(key: str, parts: tuple[Buffer, ...]) -> bool:
    return key.startswith("wal/") and parts != (SEAL,)


def no_seal() -> Changes:
    async def seal(self: ObjectWalStore, wal: WalRef, start: int = 0, said: int = 0) -> int:
        return max(await self._sizes(wal), default=0)

    def count(self: DirectoryWalStore, wal: WalRef, start: int) -> tuple[int, int]:
        try:
            return self._count(wal, start)
        except OSError as error:
            raise store_error(error, "could not count the flushes of a log") from error

    return [(ObjectWalStore, "seal", seal), (DirectoryWalStore, "_seal", count)]


def sealed_end() -> Changes:
    real = ObjectWalStore.scan

    async def scan(self: ObjectWalStore, wal: WalRef, start: int, end: int) -> AsyncIterator[ScannedFlush]:
        async for flush in real(self, wal, start, end):
            yield flush
        for number, size in (await self._sizes(wal)).items():
            if number > end and size > len(SEAL):
                yield await self._scan_one(wal, number - 1, size)

    async def scan_files(
        self: DirectoryWalStore, wal: WalRef, start: int, end: int
    ) -> AsyncIterator[ScannedFlush]:
        for flush in (await FileTail(self._store, wal, start, self.boot).read_on()).flushes:
            yield flush

    return [(ObjectWalStore, "scan", scan), (DirectoryWalStore, "scan", scan_files)]


def stale_image() -> Changes:
    async def caught_up(broker: Broker) -> bool:
        return True

    return [(freshness, "caught_up", caught_up)]


def stale_reads() -> Changes:
    return [(Broker, "leads_surely", True)]


def unopened() -> Changes:
    async def refers(self: References, partition: PartitionKey, key: str, image: ClusterImage) -> bool:
        info = image.partition(*partition)
        if info is None or info.manifest is None or info.leader == self._holdings.own.broker:
            return False
        return key in await self._references_of(partition, info.manifest)

    return [(References, "refers", refers)]


def closed() -> Changes:
    real = Takeover._on_opened

    def on_opened(self: Takeover, refused: list[Any], opening: Opening, error: StoreError | None) -> None:
        real(self, refused, opening, error)
        if error is not None and refused:
            self._damaged[refused.pop().key] = error  # type: ignore[assignment]

    return [(Takeover, "_on_opened", on_opened)]


def log_ends() -> Changes:
    def not_whole(self: LogFile, *where: Any, **how: Any) -> Iterator[ScannedFlush]:
        return iter(())

    return [(LogFile, "_not_whole", not_whole)]


def page_cache() -> Changes:
    def sync(self: LogFile, position: int = 0) -> None:
        """What is in memory is taken for what is on the disk."""

    return [(LogFile, "sync", sync)]


def late_base() -> Changes:
    real = Committer._commit_once

    async def commit_once(self: Committer, attempt: Attempt, changes: Sequence[Change], *rest: Any) -> Any:
        changes = [change._replace(base=Base.of(change.partition)) for change in changes]
        return await real(self, attempt, changes, *rest)

    return [(Committer, "_commit_once", commit_once)]


def torn_entry() -> Changes:
    return [
        (directory, "_is_durable", lambda key: False),
        (tail, "can_be_torn", lambda store: False),
    ]


def twice() -> Changes:
    def bytes_from(segments: Sequence[SegmentRef], unsettled: Extents, log_start: int) -> int:
        return unsettled.total_bytes() + sum(
            segment.size_bytes for segment in segments if segment.end_offset > log_start
        )

    return [(jobs, "bytes_from", bytes_from)]


def dead() -> Changes:
    async def move(self: Mover) -> bool:
        return False

    return [(Mover, "move", move)]


def copies() -> Changes:
    real = Garbage.end

    def end(self: Garbage, attempt: Attempt, delay_ms: int) -> None:
        if attempt.proposed:
            real(self, attempt, delay_ms)

    return [(Garbage, "end", end)]


def one_stops() -> Changes:
    async def collect_objects(self: Garbage, keys: Sequence[str], image: ClusterImage) -> StoreError | None:
        manifests = {
            info.manifest.key
            for topic in image.topics.values()
            for info in topic.partitions
            if info.manifest is not None
        }
        for key in keys:
            doomed = self._doomed.get(key)
            error = await self._collect_one(key, image, manifests)
            if error is not None and doomed is not None:
                self._doomed[key] = doomed
                return error
        return None

    return [(Garbage, "_collect_objects", collect_objects)]


def listed() -> Changes:
    real = ObjectWalStore.scan

    async def scan(self: ObjectWalStore, wal: WalRef, start: int, end: int) -> AsyncIterator[ScannedFlush]:
        sizes = await self._sizes(wal)
        while end > start and end not in sizes:
            end -= 1
        async for flush in real(self, wal, start, end):
            yield flush

    return [(ObjectWalStore, "scan", scan)]


def asleep() -> Changes:
    """The clock that leases are measured with stands still while its machine is suspended, as Linux's
    monotonic clock does."""

    def slept(self: MachineClock, seconds: float) -> None:
        self._since -= seconds * self.rate

    return [(MachineClock, "slept", slept)]


VARIANTS: dict[str, Callable[[], Changes]] = {
    "fencing": fencing,
    "ack-early": ack_early,
    "no-seal": no_seal,
    "sealed-end": sealed_end,
    "stale-image": stale_image,
    "stale-reads": stale_reads,
    "unopened": unopened,
    "closed": closed,
    "late-base": late_base,
    "log-ends": log_ends,
    "page-cache": page_cache,
    "torn-entry": torn_entry,
    "twice": twice,
    "dead": dead,
    "copies": copies,
    "one-stops": one_stops,
    "listed": listed,
    "asleep": asleep,
    **transactions.VARIANTS,
}


@contextmanager
def broken(variant: str | None) -> Iterator[None]:
    """Brokers are like that meanwhile; None: they are sound."""
    with ExitStack() as stack:
        for place, name, instead in VARIANTS[variant]() if variant is not None else ():
            stack.enter_context(mock.patch.object(place, name, instead))
        yield
