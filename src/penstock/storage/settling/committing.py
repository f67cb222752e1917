"""Makes changes of manifests true: one command in the metadata log for any number of partitions.

A change carries the manifest that it was computed from, its base. It is committed only on an image in which
the base is still the partition's manifest; otherwise its author computes it anew. So manifests follow each
other in a chain, and none is laid over one that its author had not seen.

The author of a change works in two steps. First it writes the segments, which may take long and holds up
nobody. Then `commit` asks for the changes (`fold`), lays them over the present manifests, writes the new
manifests, and proposes them. One proposal is under way at a time. If another change was faster in some
partitions, these are folded again.

A proposal whose answer is lost is in doubt: it may take effect late. Its manifests are expected until a later
proposal is answered, which decides it (`cluster.metadata_log`). If the image names one of them before that,
it is taken over. Until then its objects are not deleted. When the fate of an attempt is known, its objects
that nothing refers to are deleted (`garbage`).
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Sequence

from penstock.log.manifest import Manifest
from penstock.metadata.commands import AnyCommand, Settled, SettlePartitions
from penstock.metadata.image import ClusterImage, ManifestRef, PartitionInfo, PartitionKey
from penstock.metadata.refusal import Refusal
from penstock.storage.partitions.holdings import Holdings
from penstock.storage.partitions.partition import Partition
from penstock.storage.partitions.reading import Reader
from penstock.storage.settling.change import Change, Fold, key_of
from penstock.storage.settling.garbage import Garbage
from penstock.storage.settling.segment_writer import Attempt, SegmentWriter

logger = logging.getLogger(__name__)

_TRIES = 4
"""How often changes are folded again that others were faster than."""


class Committer:
    def __init__(
        self,
        holdings: Holdings,
        reader: Reader,
        writer: SegmentWriter,
        garbage: Garbage,
        on_image: Callable[[ClusterImage], None],
    ) -> None:
        """`on_image` is called with the image that holds what was committed."""
        self._holdings = holdings
        self._own = holdings.own
        self._settings = holdings.settings
        self._propose = holdings.propose
        self._partitions = holdings.partitions
        self._files = holdings.files
        self._reader = reader
        self._writer = writer
        self._garbage = garbage
        self._on_image = on_image
        self._proposing = asyncio.Lock()
        self._expected: dict[ManifestRef, Change] = {}
        """Manifests that were proposed, until it is known what became of them."""
        self._doubtful: dict[Attempt, None] = {}
        self.unmerged: dict[PartitionKey, None] = {}
        """Partitions with new segments, in the order in which they got them."""
        self.bytes_settled = 0

    # Attempts.

    @contextlib.contextmanager
    def attempt(self) -> Iterator[Attempt]:
        """For one try to change manifests: however it ends, what it wrote is deleted or referred to."""
        attempt = self.begin()
        try:
            yield attempt
        finally:
            self.end(attempt)

    def begin(self) -> Attempt:
        attempt = Attempt()
        self._garbage.attempts.add(attempt)
        return attempt

    def end(self, attempt: Attempt) -> None:
        if not attempt.doubtful:
            self._garbage.end(attempt, self._settings.delete_delay_ms)

    # Committing.

    async def commit(
        self, attempt: Attempt, keys: Collection[PartitionKey], fold: Fold, wal_start: int | None = None
    ) -> list[Change] | None:
        """Make what `fold` says of these partitions true. The changes that are true now; None if the command
        was refused. `wal_start`: where the own log may begin once none of them needs what is before."""
        left = dict.fromkeys(keys)
        done: list[Change] = []
        for _ in range(_TRIES):
            changes = await self.with_refs(fold(left), attempt)
            if not changes and wal_start is None:
                break
            async with self._proposing:
                included = await self._commit_once(attempt, changes, left, wal_start)
            if included is None:
                return None
            for change in included:
                del left[key_of(change.partition)]
            done += included
            if not any(self._is_stale(change) for change in changes if key_of(change.partition) in left):
                break
        return done

    async def with_refs(self, changes: Sequence[Change], attempt: Attempt) -> list[Change]:
        """Write the manifests."""
        manifests = [change.manifest for change in changes if change.manifest is not None]
        if not manifests:
            return list(changes)
        refs = iter(await self._writer.write_manifests(manifests, self._holdings.image.level, attempt))
        return [c if c.manifest is None else c._replace(ref=next(refs)) for c in changes]

    def _is_stale(self, change: Change) -> bool:
        """Whether another change of the partition was faster, so that this one is worth another try."""
        partition = change.partition
        return self.is_open(partition) and partition.manifest_ref != change.base.ref

    def is_led(self, partition: Partition) -> bool:
        return self._partitions.get(key_of(partition)) is partition

    def is_open(self, partition: Partition) -> bool:
        """Not so while it is being given to another leader."""
        return self.is_led(partition) and not partition.closed

    async def _commit_once(
        self,
        attempt: Attempt,
        changes: Sequence[Change],
        waiting: Collection[PartitionKey],
        wal_start: int | None,
    ) -> list[Change] | None:
        included: list[Change] = []
        changes = [change for change in changes if self.is_open(change.partition)]

        def decide(image: ClusterImage) -> Sequence[AnyCommand]:
            included.clear()
            settled = []
            for change in changes:
                partition = change.partition
                info = image.partition(partition.topic_id, partition.index)
                if info is None or not self._leads(info, partition) or info.manifest != change.base.ref:
                    continue
                included.append(change)
                command = _settled(change, info)
                if command is not None:
                    settled.append(command)
            start = wal_start
            if start is not None and self._needed_in(image, waiting, included):
                start = None
            if not settled and (start is None or image.wal_starts.get(self._own, 0) >= start):
                return ()
            return (SettlePartitions(self._own.broker, self._own.epoch, tuple(settled), start),)

        for change in changes:
            if change.ref is not None:
                self._expected[change.ref] = change
                attempt.proposed.add(change.ref.key)
            for segment in (one.segment for one in change.written):
                attempt.proposed.update((segment.key, segment.index_key))
        try:
            answer = await self._propose(decide)
        except BaseException:
            attempt.doubtful = True
            self._doubtful[attempt] = None
            raise
        if isinstance(answer, Refusal):
            # What is in doubt stays so: mostly this incarnation is over, and its image may be behind.
            logger.warning("settling was refused: %s", answer.message)
            self._forget(changes)
            return None
        for change in included:
            self._apply(change)
        self._forget(changes)
        self._clear_doubts(answer)
        if wal_start is not None and answer.wal_starts.get(self._own, 0) >= wal_start:
            self._garbage.doom_own_below(wal_start, self._settings.delete_delay_ms)
        self._doom_logs(changes, answer)
        self._on_image(answer)
        return included

    def _leads(self, info: PartitionInfo, partition: Partition) -> bool:
        return info.leader == self._own.broker and info.leader_epoch == partition.leader_epoch

    def needs_log(self, keys: Collection[PartitionKey], done: Sequence[Change]) -> bool:
        """Whether one of the partitions, whose change is not among those done, still reads the own log."""
        return self._needed_in(self._holdings.image, keys, done)

    def _needed_in(self, image: ClusterImage, keys: Collection[PartitionKey], done: Sequence[Change]) -> bool:
        settled = {key_of(change.partition) for change in done}
        for key in keys:
            info = image.partition(*key)
            if key not in settled and info is not None and self._own in info.wals:
                return True
        return False

    def _doom_logs(self, changes: Sequence[Change], image: ClusterImage) -> None:
        """Earlier logs that no partition needs now."""
        if any(change.dropped for change in changes):
            for wal in self._files.logs():
                if wal != self._own and not image.wal_uses.get(wal):
                    self._garbage.doom_log(wal, self._settings.delete_delay_ms)

    # What became of proposals.

    def take_committed(self, partition: Partition, ref: ManifestRef | None) -> bool:
        """The image says that `ref` is the partition's manifest: ours, if it was proposed here and the
        answer is still under way or was lost. False if it is not known here."""
        if ref == partition.manifest_ref:
            return True
        change = self._expected.get(ref) if ref is not None else None
        if change is None or change.partition is not partition:
            return False
        self._apply(change)
        return True

    def take_repaired(self, partition: Partition, manifest: Manifest, ref: ManifestRef) -> None:
        """Somebody repaired what is stored of a partition, and the image says so. Whatever is computed from
        the manifest before it will not be committed."""
        if not self.is_open(partition):
            return
        self._replace(partition, manifest, ref)

    def _apply(self, change: Change) -> None:
        """The change is in the metadata log."""
        partition = change.partition
        if change.log_start is not None:
            partition.advance_log_start(change.log_start)
        if change.ref is None or self._expected.pop(change.ref, None) is None:
            return
        if not self.is_led(partition):
            return  # Led by another broker since, which holds the manifest now.
        assert change.manifest is not None
        for written in change.written:
            self._reader.remember_index(written.segment, written.extents)
            self.bytes_settled += written.segment.size_bytes
        self._replace(partition, change.manifest, change.ref)
        if change.forgotten:
            partition.forget_aborted(change.forgotten)
        self.unmerged[key_of(partition)] = None

    def _replace(self, partition: Partition, manifest: Manifest, ref: ManifestRef) -> None:
        delay_ms = partition.policy.file_delete_delay_ms
        self._garbage.hold(manifest)
        self._garbage.release(partition.manifest, delay_ms)
        self._garbage.doom_manifest(partition.manifest_ref, delay_ms)
        partition.settled(manifest, ref)

    def _forget(self, changes: Sequence[Change]) -> None:
        """What was not applied of these is not in the metadata log, and will not be."""
        for change in changes:
            if change.ref is not None:
                self._expected.pop(change.ref, None)

    def _clear_doubts(self, image: ClusterImage) -> None:
        """A proposal was answered: an entry that was in doubt came before it, or never."""
        if not self._doubtful:
            return
        for change in list(self._expected.values()):
            info = image.partition(change.partition.topic_id, change.partition.index)
            if info is not None and info.manifest == change.ref:
                self._apply(change)
        self._expected.clear()
        attempts = list(self._doubtful)
        self._doubtful.clear()
        for attempt in attempts:
            attempt.doubtful = False
            self.end(attempt)

    async def be_certain(self) -> None:
        """Find out what became of every proposal that is in doubt. None is under way afterwards."""
        async with self._proposing:
            if self._doubtful:
                answer = await self._propose(lambda _image: ())
                assert not isinstance(answer, Refusal), "nothing was asked for"
                self._clear_doubts(answer)


def _settled(change: Change, info: PartitionInfo) -> Settled | None:
    """What the command says of one partition; None if nothing is to be said."""
    partition = change.partition
    dropped = tuple(wal for wal in change.dropped if wal in info.wals)
    log_start = change.log_start
    if log_start is not None and log_start <= info.log_start:
        log_start = None
    if change.ref is None and not dropped and log_start is None:
        return None
    return Settled(
        partition.topic_id, partition.index, partition.leader_epoch, change.ref, dropped, log_start
    )
