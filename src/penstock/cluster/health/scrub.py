"""Reads everything that is stored, and says what is hurt: `penstock store scrub`.

    metadata    identity, entries, snapshots: checksums, order, no number missing (`metadata`)
    manifests   checksums, and that they are their partition's
    segments    footers, indexes, every batch: CRC, and offsets and leader epochs that agree (`pieces`)
    logs        those that partitions need: file and flush headers, indexes, every needed batch (`logs`)

Brokers may run meanwhile, and settle, merge, compact and delete while the scrub reads. So a finding counts
only if an image that is read afterwards still needs the object. Objects that this image needs and that were
not looked at yet are looked at then. Nothing is ever written.

Objects that could not be read (refused, late, of a newer format) are told apart from damaged ones: they may
be whole. So are records that a loss of power took with durability=os, which nobody was promised (`torn`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from penstock.cluster.health.bench import Bench, Progress
from penstock.cluster.health.findings import HURT, MANIFEST, TORN, Finding, Report
from penstock.cluster.health.logs import LogCheck, LogFinding, Need, Walk, missing_records
from penstock.cluster.health.metadata import MetadataCheck
from penstock.cluster.health.pieces import Piece, check_footer, check_piece
from penstock.cluster.leases import flushes_said
from penstock.cluster.reading import ImageReader
from penstock.log.manifest import Manifest
from penstock.metadata.image import ClusterImage, ManifestRef, PartitionInfo, PartitionKey, WalRef
from penstock.storage.reader.manifests import Loaded, by_object, load_object, manifest_of
from penstock.storage.settling.segment_writer import SEGMENT_PREFIX
from penstock.storage.stores.objects import DamagedObjectError, DatedStore, ObjectMissingError, StoreError

JOBS: Final = 8
_ROUNDS_MAX: Final = 5
"""Each looks at what was settled during the one before it. What comes later is left to the next scrub."""


class Place(NamedTuple):
    """A partition, as one image has it."""

    topic: str
    key: PartitionKey
    info: PartitionInfo


class Scrub:
    """After `run`, `image`, `manifests` and `metadata` say what the report was made from."""

    def __init__(
        self,
        store: DatedStore,
        *,
        topics: Collection[str] = (),
        jobs: int = JOBS,
        progress: Progress | None = None,
    ) -> None:
        """`topics`: look at the records of these only."""
        self._bench = Bench(store, jobs, progress)
        self._topics = topics
        self.metadata = MetadataCheck(self._bench)
        self.image = ClusterImage()
        self.manifests: dict[ManifestRef, Manifest | Finding | None] = {}
        """Whole, hurt, or not read."""
        self._pieces: dict[Piece, list[Finding]] = {}
        self._footers: dict[str, list[Finding]] = {}
        self._logged: list[LogFinding] = []
        self._walks: list[Walk] = []

    async def run(self) -> Report:
        """Raises NoClusterError, and StoreError if the metadata log cannot be read."""
        report = self._bench.report
        reader = await self.metadata.run()
        if reader is not None:
            await self._check_records(reader)
            standing = list(self._standing())
            report.damaged += (one for one in standing if one.what != TORN)
            report.torn = sorted({one for one in standing if one.what == TORN}, key=_order)
        report.cluster_id, report.version = self.image.cluster_id, self.image.version
        report.damaged = sorted(set(report.damaged), key=_order)
        report.unread = list(dict.fromkeys(report.unread))
        return report

    async def close(self) -> None:
        """Let go of the place of the metadata log, where that is not the store."""
        if self.metadata.store is not self._bench.store:
            await self.metadata.store.close()

    async def _check_records(self, reader: ImageReader) -> None:
        self.image = await reader.refresh()
        await self._load_manifests()
        await self._check_pieces()
        await self._check_logs()
        for _ in range(_ROUNDS_MAX):
            self.image = await reader.refresh()
            await self._load_manifests()
            if not await self._check_pieces():
                break

    def places(self) -> Iterator[Place]:
        for name, topic in self.image.topics.items():
            if not self._topics or name in self._topics:
                for index, info in enumerate(topic.partitions):
                    yield Place(name, (topic.id, index), info)

    def manifest(self, info: PartitionInfo) -> Manifest | Finding | None:
        return None if info.manifest is None else self.manifests.get(info.manifest)

    # Manifests.

    async def _load_manifests(self) -> None:
        """Those that lie in one object are read in one go."""
        places = {
            place.info.manifest: place
            for place in self.places()
            if place.info.manifest is not None and place.info.manifest not in self.manifests
        }
        works = by_object(places).values()
        await self._bench.at_once(partial(self._load, refs, places) for refs in works)

    async def _load(self, refs: Sequence[ManifestRef], places: Mapping[ManifestRef, Place]) -> None:
        key = refs[0].key
        try:
            loaded = await load_object(self._bench.store, refs)
        except StoreError as error:
            self._bench.unread(key, error)
            self.manifests.update(dict.fromkeys(refs))
            return
        for ref, found in loaded.items():
            self._bench.count(key, ref.length)
            self.manifests[ref] = _judged(places[ref], found)

    # Segments.

    def _needed_pieces(self) -> Iterator[tuple[Piece, PartitionInfo, Manifest]]:
        for place in self.places():
            manifest = self.manifest(place.info)
            if isinstance(manifest, Manifest):
                for segment in manifest.segments:
                    if segment.end_offset > place.info.log_start:
                        yield Piece(place.topic, *place.key, segment), place.info, manifest

    async def _check_pieces(self) -> bool:
        """Whether there were any that were not looked at before."""
        fresh = [needed for needed in self._needed_pieces() if needed[0] not in self._pieces]
        if not fresh:
            return False
        bench = self._bench
        bench.planned_bytes += sum(piece.segment.size_bytes for piece, _info, _manifest in fresh)

        async def check(piece: Piece, info: PartitionInfo, manifest: Manifest) -> None:
            self._pieces[piece] = await check_piece(bench, piece, info, manifest)

        await bench.at_once(partial(check, *needed) for needed in fresh)
        await self._check_footers([piece for piece, _info, _manifest in fresh])
        return True

    async def _check_footers(self, pieces: Iterable[Piece]) -> None:
        together: dict[str, list[Piece]] = {}
        for piece in pieces:
            together.setdefault(piece.segment.index_key, []).append(piece)
        sizes = {info.key: info.size async for info in self._bench.store.list(SEGMENT_PREFIX)}

        async def check(key: str) -> None:
            found = await check_footer(self._bench, key, sizes[key], together[key])
            self._footers[key] = [*self._footers.get(key, ()), *found]

        await self._bench.at_once(partial(check, key) for key in together if key in sizes)

    # Logs.

    async def _check_logs(self) -> None:
        image = self.image
        needs: dict[WalRef, dict[PartitionKey, Need]] = {}
        for place in self.places():
            need = self._need(place)
            for wal in place.info.wals:
                needs.setdefault(wal, {})[place.key] = need
        walks = {
            wal: Walk(wal, image.wal_starts.get(wal, 0), image.sealed.get(wal), needed)
            for wal, needed in needs.items()
        }
        local = self._bench.store.local
        boot = b"" if local is None else local.files.boot_id()
        said = {wal: await flushes_said(self.metadata.store, wal, boot) for wal in walks}
        check = LogCheck(self._bench)
        works = [work for walk in walks.values() for work in await check.works(walk)]
        await self._bench.at_once(works)
        self._walks = list(walks.values())
        for wal, walk in walks.items():
            walk.require(said[wal])
        for place in self.places():
            if place.info.manifest is None or isinstance(self.manifest(place.info), Manifest):
                mine = [walks[wal] for wal in place.info.wals]
                self._logged += missing_records(place.key, self._need(place), mine)

    def _need(self, place: Place) -> Need:
        manifest = self.manifest(place.info)
        settled = manifest.end_offset if isinstance(manifest, Manifest) else 0
        return Need(place.topic, place.key[1], max(settled, place.info.log_start))

    # What counts.

    def _standing(self) -> Iterator[Finding]:
        """Those findings that matter to the newest image."""
        needed = {piece for piece, _info, _manifest in self._needed_pieces()}
        for piece in needed:
            yield from self._pieces.get(piece, ())
        indexes = {piece.segment.index_key for piece in needed}
        for key, findings in self._footers.items():
            if key in indexes:
                yield from findings
        for place in self.places():
            manifest = self.manifest(place.info)
            if isinstance(manifest, Finding):
                yield manifest
            elif manifest is not None:
                yield from _known_hurt(place, manifest)
        for walk in self._walks:
            yield from (found.finding for found in walk.findings if self._is_needed(walk, found))
        yield from (found.finding for found in self._logged if self._is_unsettled(found))

    def _is_needed(self, walk: Walk, found: LogFinding) -> bool:
        image = self.image
        if not image.wal_uses.get(walk.wal) or found.flush < image.wal_starts.get(walk.wal, 0):
            return False
        return found.key is None or self._is_unsettled(found)

    def _is_unsettled(self, found: LogFinding) -> bool:
        assert found.key is not None
        info = self.image.partition(*found.key)
        if info is None:
            return False
        manifest = self.manifest(info)
        settled = manifest.end_offset if isinstance(manifest, Manifest) else 0
        return found.finding.end > max(settled, info.log_start)


def _manifest_finding(place: Place, reason: str) -> Finding:
    ref = place.info.manifest
    assert ref is not None
    return Finding(MANIFEST, ref.key, reason, ref.start, ref.length, place.topic, place.key[1])


def _known_hurt(place: Place, manifest: Manifest) -> Iterator[Finding]:
    ref = place.info.manifest
    assert ref is not None
    for hurt in manifest.hurt:
        if hurt.end > place.info.log_start:
            reason = hurt.reason or "it was found hurt when it was settled"
            span = (place.topic, place.key[1], hurt.start, hurt.end)
            yield Finding(HURT, ref.key, reason, ref.start, ref.length, *span)


def _judged(place: Place, found: Loaded) -> Manifest | Finding:
    """A manifest, unless it is hurt or cannot be this partition's."""
    try:
        manifest = manifest_of(place.key, found)
    except ObjectMissingError:
        return _manifest_finding(place, "it is not there, or cut short")
    except DamagedObjectError as error:
        return _manifest_finding(place, str(error))
    problem = _disagreement(manifest)
    return manifest if problem is None else _manifest_finding(place, problem)


def _disagreement(manifest: Manifest) -> str | None:
    """Why the segments of a manifest whose checksum is right cannot be a partition's."""
    at = 0
    for segment in manifest.segments:
        if not at <= segment.base_offset < segment.end_offset:
            return f"the segments are out of order at offset {segment.base_offset}"
        at = segment.end_offset
    if at > manifest.end_offset:
        return f"the segments end at offset {at}, and the manifest at {manifest.end_offset}"
    return None


def _order(finding: Finding) -> tuple[str, int, int, str, int]:
    return finding.topic, finding.partition, finding.start, finding.key, finding.position
