"""Heals the findings of a scrub: `penstock store repair`.

For each hurt range, in this order:

    restored    a whole copy lies in another object that is not deleted yet (`sources`)
    corrected   one flipped bit is all that is wrong, and flipping it back makes the checksum right
    rebuilt     the rest says everything that an index or a header said
    cut         only when told to: the hurt batches are left out. Offsets stay as they are; readers pass over
                the gap as over one that compaction left

No readable byte is written over. Healed pieces of segments are written beside the old ones. One command in
the metadata log makes them true; its precondition is that the manifest is still the one that was looked at.
Leaders go on from the new manifest (`storage.ledger.repaired`). Some objects are replaced under their own
name, by their contents before the damage: entries and snapshots of the metadata log, and files of write-ahead
logs that nobody can append to any more. The hurt bytes are kept under `hurt/`, also those that are cut out.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from penstock.clock import Clock
from penstock.cluster.health import mending, repair_report
from penstock.cluster.health.bench import Bench, Progress
from penstock.cluster.health.committing import Committer, Exchange
from penstock.cluster.health.findings import (
    BATCH,
    FLUSH,
    FOOTER,
    HURT,
    INDEX,
    LOG_FILE,
    LOGGED_BATCH,
    MANIFEST,
    RECORDS,
    SEGMENT,
    Finding,
    Unread,
)
from penstock.cluster.health.gone import PLACEHOLDER, fill_gaps
from penstock.cluster.health.log_mending import mend_log
from penstock.cluster.health.logs import Span
from penstock.cluster.health.mending import Healed, Mended, Mender
from penstock.cluster.health.pieces import Piece as CheckedPiece
from penstock.cluster.health.pieces import check_piece, facts_of
from penstock.cluster.health.repair_report import Left, RepairReport, Step
from penstock.cluster.health.rewriting import Rewriter
from penstock.cluster.health.scrub import JOBS, Place, Scrub
from penstock.cluster.health.sources import Sources
from penstock.cluster.snapshots import entry_key
from penstock.log.checking import Facts
from penstock.log.manifest import HurtRange, Manifest, ManifestError, SegmentRef, decode_manifest
from penstock.metadata.commands import LEVEL_OF, RepairPartition
from penstock.metadata.image import ClusterImage, ManifestRef, PartitionKey, WalRef
from penstock.storage.stores.objects import DatedStore, ObjectMissingError, ObjectStore, StoreError
from penstock.wire.correction import corrections

QUARANTINE: Final = "hurt/"
_IN_LOGS: Final = (LOG_FILE, FLUSH, LOGGED_BATCH, RECORDS)
_IN_SEGMENTS: Final = (BATCH, INDEX, FOOTER, SEGMENT, HURT, MANIFEST)


class Repair:
    def __init__(
        self,
        store: DatedStore,
        clock: Clock,
        *,
        apply: bool = False,
        cut: bool = False,
        topics: Collection[str] = (),
        jobs: int = JOBS,
        progress: Progress | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._apply = apply
        self._cut = cut
        self._bench = Bench(store, jobs)
        self._scrub = Scrub(store, topics=topics, jobs=jobs, progress=progress)
        self._rewriter = Rewriter(store)
        self._committer = Committer(store, clock, self._rewriter)
        self.report = RepairReport(applied=apply)
        self._manifests: dict[PartitionKey, Manifest] = {}

    async def run(self) -> RepairReport:
        """Raises NoClusterError and StoreError."""
        scrubbed = await self._scrub.run()
        report = self.report
        report.cluster_id, report.version = scrubbed.cluster_id, scrubbed.version
        report.unread = scrubbed.unread
        try:
            await self._repair(scrubbed.damaged)
        finally:
            await self._scrub.close()
            await self._committer.close()
        return report

    async def _repair(self, findings: Sequence[Finding]) -> None:
        corrected = self._scrub.metadata.corrected
        await self._repair_metadata(corrected)
        for finding in findings:
            if finding.what not in _IN_LOGS + _IN_SEGMENTS and finding.key not in corrected:
                torn = finding.key in {entry_key(number) for number in self._scrub.metadata.torn}
                self._leave(finding, repair_report.TORN if torn else repair_report.BACKUP)
        places = {(place.topic, place.key[1]): place for place in self._scrub.places()}
        by_place: dict[Place, list[Finding]] = {}
        for finding in findings:
            if finding.what in _IN_SEGMENTS:
                for place in self._places_of(finding, places):
                    by_place.setdefault(place, []).append(finding)
        if self._apply and self._scrub.image.level < LEVEL_OF[RepairPartition]:
            for finding in (finding for some in by_place.values() for finding in some):
                self._leave(finding, repair_report.LEVEL)
            by_place = {}
        await self._correct_manifests(by_place)
        logged = [finding for finding in findings if finding.what in _IN_LOGS]
        sources = Sources(self._bench, self._wanted(by_place, logged, places))
        if by_place or logged:
            await sources.look()
        for place, some in by_place.items():
            try:
                await self._repair_partition(place, some, sources)
            except StoreError as error:
                self.report.unread.append(Unread(some[0].key, str(error)))
                for finding in some:
                    self._leave(finding, f"It could not be read or written just now: {error}")
        await self._repair_logs(logged, sources)

    def _places_of(self, finding: Finding, places: Mapping[tuple[str, int], Place]) -> Iterable[Place]:
        if finding.topic:
            return [places[finding.topic, finding.partition]]
        return [
            place
            for place in places.values()
            if isinstance(manifest := self._scrub.manifest(place.info), Manifest)
            and any(segment.index_key == finding.key for segment in manifest.segments)
        ]

    def _leave(self, finding: Finding, advice: str) -> None:
        self.report.left.append(Left(finding, advice))

    def _wanted(
        self,
        by_place: Mapping[Place, Sequence[Finding]],
        logged: Sequence[Finding],
        places: Mapping[tuple[str, int], Place],
    ) -> dict[PartitionKey, list[Span]]:
        """The ranges of which copies are looked for."""
        wanted: dict[PartitionKey, list[Span]] = {}
        for place, findings in by_place.items():
            wanted[place.key] = [(one.start, one.end) for one in findings if one.start >= 0]
        for finding in logged:
            if finding.topic and finding.start >= 0:
                place = places[finding.topic, finding.partition]
                wanted.setdefault(place.key, []).append((finding.start, finding.end))
        return wanted

    # The metadata log.

    async def _repair_metadata(self, corrected: Mapping[str, bytes]) -> None:
        store = self._scrub.metadata.store
        for key, whole in sorted(corrected.items()):
            hurt = await store.get(key)
            one_bit = hurt is not None and _differ_by_a_bit(hurt, whole)
            if self._apply:
                if hurt is not None:
                    await _keep(store, key, hurt)
                await store.put(key, whole)
            how = (
                (mending.CORRECTED, "one bit was flipped")
                if one_bit
                else (mending.RESTORED, "a snapshot says it")
            )
            self.report.steps.append(Step(how[0], key, how[1]))

    # Manifests.

    async def _correct_manifests(self, by_place: Mapping[Place, Sequence[Finding]]) -> None:
        for place, findings in by_place.items():
            manifest = self._scrub.manifest(place.info)
            if isinstance(manifest, Finding):
                ref = place.info.manifest
                assert ref is not None
                manifest = await self._corrected(ref, place.key)
                if manifest is None:
                    self._leave(findings[0], repair_report.BACKUP)
                else:
                    self._step(place, Mended(-1, -1, mending.CORRECTED, "a bit of the manifest"), ref.key)
            if isinstance(manifest, Manifest):
                self._manifests[place.key] = manifest

    async def _corrected(self, ref: ManifestRef, key: PartitionKey) -> Manifest | None:
        try:
            stored = await self._bench.read(ref.key, ref.start, ref.length)
        except ObjectMissingError:
            return None
        for candidate in corrections(stored, 4, len(stored), 0):
            try:
                manifest = decode_manifest(candidate)
            except ManifestError:
                continue
            if (manifest.topic_id, manifest.partition) == key:
                return manifest
        return None

    # Partitions.

    async def _repair_partition(self, place: Place, findings: Sequence[Finding], sources: Sources) -> None:
        manifest = self._manifests.get(place.key)
        if manifest is None:
            return
        mender = Mender(
            self._bench, sources, cut=self._cut, aborted=manifest.aborted, producers=manifest.producers
        )
        facts = facts_of(manifest)
        log_start = place.info.log_start
        unknown = isinstance(self._scrub.manifest(place.info), Finding)
        incarnation = _incarnation(place, self._scrub.image)
        exchange = Exchange({}, [], [], [])
        lost: dict[HurtRange, Healed] = {}
        for known in manifest.hurt:
            if known.end > log_start:
                lost[known] = await mender.lost(place.key, known.start, known.end, facts)
        for segment in manifest.segments:
            within = [known for known in lost if lost[known].parts and _is_within(known, segment)]
            if segment.end_offset > log_start and (within or _concerns(findings, segment, unknown)):
                healed = await mender.piece(place.key, segment, facts, log_start)
                self._tell(place, healed, segment.key, findings)
                if any(mended.how == mending.LEFT for mended in healed.mended):
                    # It is not written anew as if that was all of it. What lies within it stays lost, too.
                    lost.update((known, _left(known)) for known in within)
                    within = []
                if within or _changes(healed, findings, segment):
                    if not healed.mended and not within:
                        moved = Mended(-1, -1, mending.MOVED, "to an object with a whole footer")
                        self._step(place, moved, segment.key)
                    parts = healed.parts + [part for known in within for part in lost[known].parts]
                    whole = Healed(sorted(parts, key=lambda part: part.base_offset), healed.mended)
                    exchange.replaced[segment] = await self._write(place, whole, incarnation, segment)
                    exchange.healed.extend(within)
        for known, healed in lost.items():
            self._tell(place, healed, findings[0].key, findings)
            if all(mended.how == mending.LEFT for mended in healed.mended):
                continue
            exchange.left.extend(_still_hurt(known, healed))
            if known not in exchange.healed:
                exchange.healed.append(known)
                exchange.added.extend(await self._write(place, healed, incarnation, None))
        if self._apply and (exchange or unknown):
            await self._commit(place, manifest, exchange, incarnation, findings)

    def _tell(self, place: Place, healed: Healed, key: str, findings: Sequence[Finding]) -> None:
        for mended in healed.mended:
            if mended.how == mending.LEFT:
                touching = [one for one in findings if one.start < mended.end and mended.start < one.end]
                advice = mended.detail or "No other object has it. With --cut it is left out."
                self._leave((touching or findings)[0], advice)
            else:
                self._step(place, mended, key)

    def _step(self, place: Place, mended: Mended, key: str) -> None:
        span = (place.topic, place.key[1], mended.start, mended.end)
        self.report.steps.append(Step(mended.how, key, mended.detail, *span))

    async def _write(
        self, place: Place, healed: Healed, incarnation: WalRef, old: SegmentRef | None
    ) -> list[SegmentRef]:
        """New segments, which take the place of `old`."""
        if not self._apply:
            return []
        for mended in healed.mended:
            if mended.stored and mended.hurt is not None and old is not None:
                await _keep(self._store, f"{old.key}.{mended.hurt.position}", mended.stored)
        settled_ms = old.settled_ms if old is not None else self._clock.time_ms()
        return await self._rewriter.write(place.key, healed.parts, incarnation, settled_ms)

    async def _commit(
        self,
        place: Place,
        manifest: Manifest,
        exchange: Exchange,
        incarnation: WalRef,
        findings: Sequence[Finding],
    ) -> None:
        """Make it true, after everything that was written was read back."""
        base = place.info.manifest
        assert base is not None
        problem = await self._problem(place, manifest, exchange)
        if problem is None:
            problem = await self._committer.commit(place.key, base, manifest, exchange, incarnation)
        if problem is None and not await self._are_there(exchange.written):
            # Brokers sweep what nothing refers to, if this took longer than they wait for.
            problem = "What was written was deleted before it was committed. Run this command again."
        if problem is not None:
            mine = (place.topic, place.key[1])
            self.report.steps = [one for one in self.report.steps if (one.topic, one.partition) != mine]
            for finding in findings:
                self._leave(finding, problem)

    async def _are_there(self, segments: Sequence[SegmentRef]) -> bool:
        return all([await self._store.size(segment.key) is not None for segment in segments])

    async def _problem(self, place: Place, manifest: Manifest, exchange: Exchange) -> str | None:
        left = {(one.finding.start, one.finding.end) for one in self.report.left}
        for segment in exchange.written:
            piece = CheckedPiece(place.topic, *place.key, segment)
            found = await check_piece(self._bench, piece, place.info, manifest)
            if any((one.start, one.end) not in left for one in found):
                return f"What was written could not be read back: {found[0].sentence}"
        return None

    # Write-ahead logs.

    async def _repair_logs(self, findings: Sequence[Finding], sources: Sources) -> None:
        by_key: dict[str, list[Finding]] = {}
        for finding in findings:
            by_key.setdefault(finding.key, []).append(finding)
        if self._cut:
            logs = {_log_of(finding.key) for finding in findings if finding.what == FLUSH}
            self.report.steps += await fill_gaps(self._store, self._scrub.image, logs, apply=self._apply)
        for key, some in sorted(by_key.items()):
            try:
                await self._repair_log(key, some, sources)
            except StoreError as error:
                self.report.unread.append(Unread(key, str(error)))
                for finding in some:
                    self._leave(finding, f"It could not be read or written just now: {error}")

    async def _repair_log(self, key: str, findings: Sequence[Finding], sources: Sources) -> None:
        image = self._scrub.image
        wal = _log_of(key)
        advice = self._gone(wal) if key.endswith("/") else self._open_log(wal)
        if advice is not None:
            for finding in findings:
                self._leave(finding, advice)
            return
        stored = await self._store.get(key)
        if stored is None or stored == PLACEHOLDER:
            for finding in findings:
                self._leave(finding, self._gone(wal))
            return
        in_file = self._store.local is not None
        facts = self._facts()
        mended = await mend_log(stored, key, image.sealed.get(wal), sources, facts, in_file=in_file)
        if mended.stored != stored and self._apply:
            await _keep(self._store, key, stored)
            await self._store.put(key, mended.stored)
        # Where nothing is at the end of a file, the file that should follow it is gone.
        healed = [finding for finding in findings if finding.length and not mended.is_left(finding)]
        for finding in healed:
            span = (finding.topic, finding.partition, finding.start, finding.end)
            self.report.steps.append(Step(mending.CORRECTED, key, finding.reason, *span))
        for finding in findings:
            if finding not in healed:
                self._leave(finding, self._gone(wal) if not finding.length else repair_report.START)

    def _gone(self, wal: WalRef) -> str:
        """What to do about flushes that are not there."""
        if wal not in self._scrub.image.sealed or (self._cut and self._apply):
            return repair_report.START
        return repair_report.GONE

    def _open_log(self, wal: WalRef) -> str | None:
        """What to do about a log that somebody may still append to; None if nobody can."""
        local = self._store.local
        if local is None or wal in self._scrub.image.sealed:
            return None  # An object is never appended to; nor, with any effect, is a log that is sealed.
        if local.presence().is_gone(wal.broker, wal.epoch):
            return None
        return (
            f"Broker {wal.broker} may be running, and this is the log that it writes. It settles its log "
            "into segments after some seconds: run this command again then, or stop the broker first."
        )

    def _facts(self) -> dict[PartitionKey, Facts]:
        """Of partitions whose records lie in logs."""
        found = {}
        for place in self._scrub.places():
            manifest = self._scrub.manifest(place.info)
            if isinstance(manifest, Manifest):
                found[place.key] = facts_of(manifest)
        return found


def _log_of(key: str) -> WalRef:
    _wal, broker, epoch, _name = key.split("/")
    return WalRef(int(broker), int(epoch))


def _incarnation(place: Place, image: ClusterImage) -> WalRef:
    """Whose names new objects get: the leader's, which nobody sweeps while it lives, or those of who settled
    last."""
    leader = image.brokers.get(place.info.leader)
    if leader is not None and not leader.fenced:
        return leader.wal
    assert place.info.manifest is not None
    _manifests, broker, epoch, _name = place.info.manifest.key.split("/")
    return WalRef(int(broker), int(epoch))


def _concerns(findings: Sequence[Finding], segment: SegmentRef, all_of_it: bool) -> bool:
    """Whether a finding is about this segment, or nothing is known of it yet."""
    return all_of_it or any(
        one.key in (segment.key, segment.index_key)
        and (one.start < 0 or (one.start < segment.end_offset and segment.base_offset < one.end))
        for one in findings
    )


def _is_within(known: HurtRange, segment: SegmentRef) -> bool:
    """Whether a segment has records on both sides of a range: what fills the range belongs into it."""
    return segment.base_offset < known.start < segment.end_offset


def _still_hurt(known: HurtRange, healed: Healed) -> list[HurtRange]:
    left = [mended for mended in healed.mended if mended.how == mending.LEFT]
    return [HurtRange(mended.start, mended.end, known.reason) for mended in left]


def _left(known: HurtRange) -> Healed:
    return Healed([], [Mended(known.start, known.end, mending.LEFT)])


def _changes(healed: Healed, findings: Sequence[Finding], segment: SegmentRef) -> bool:
    """Whether a piece is to be written anew: something of it was healed or cut, or its footer is hurt. Not if
    it is not there: nothing would be written in its place, and what is left would be gone."""
    if any(mended.how == mending.LEFT and not mended.stored for mended in healed.mended):
        return False
    if any(mended.how != mending.LEFT for mended in healed.mended):
        return True
    return any(one.what == FOOTER and one.key == segment.index_key for one in findings)


def _differ_by_a_bit(one: bytes, other: bytes) -> bool:
    differences = [first ^ second for first, second in zip(one, other, strict=False) if first != second]
    return len(one) == len(other) and len(differences) == 1 and differences[0].bit_count() == 1


async def _keep(store: ObjectStore, key: str, hurt: bytes) -> None:
    """Keep hurt bytes, for somebody who knows more. They may be kept from an earlier try."""
    await store.create(f"{QUARANTINE}{key}", hurt)
