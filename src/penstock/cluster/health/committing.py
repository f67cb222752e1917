"""Commits a repair: exchanges segments of a manifest for healed ones, through the metadata log.

A leader may settle or merge meanwhile. The healed segments are then exchanged in the newer manifest, as long
as it still names the segments that were looked at. If it does not, these must be looked at again.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from penstock.clock import Clock
from penstock.cluster.health.rewriting import Rewriter
from penstock.cluster.metadata_log import MetadataLog, MetadataUnavailableError
from penstock.log.manifest import HurtRange, Manifest, SegmentRef
from penstock.metadata.commands import AnyCommand, RepairPartition
from penstock.metadata.image import ClusterImage, ManifestRef, PartitionKey, WalRef
from penstock.metadata.proposing import Decide
from penstock.metadata.refusal import Refusal
from penstock.storage.reader.manifests import load_object, manifest_of
from penstock.storage.stores.objects import DamagedObjectError, ObjectStore
from penstock.wire.errors import ErrorCode

_TRIES_MAX: Final = 20
_AGAIN: Final = "The partition was settled, merged or cleaned meanwhile. Run this command again."


class Exchange(NamedTuple):
    """The differences of a repaired manifest."""

    replaced: dict[SegmentRef, list[SegmentRef]]
    added: list[SegmentRef]
    healed: list[HurtRange]
    """Ranges that are not hurt any more: restored, or cut out."""
    left: list[HurtRange]
    """The parts of these that are hurt all the same."""

    def __bool__(self) -> bool:
        return bool(self.replaced or self.healed)

    def within(self, manifest: Manifest) -> Manifest | None:
        """The manifest with it; None if that does not have what is to be exchanged, or was merged around it:
        readers look for an offset in one segment only."""
        if not set(self.replaced) <= set(manifest.segments) or not set(self.healed) <= set(manifest.hurt):
            return None
        segments = list(self.added)
        for segment in manifest.segments:
            segments += self.replaced.get(segment, (segment,))
        segments.sort(key=lambda segment: segment.base_offset)
        if any(one.end_offset > other.base_offset for one, other in pairwise(segments)):
            return None
        hurt = [one for one in manifest.hurt if one not in self.healed] + self.left
        hurt.sort(key=lambda one: one.start)
        return msgspec.structs.replace(manifest, segments=tuple(segments), hurt=tuple(hurt))

    @property
    def written(self) -> list[SegmentRef]:
        return [*self.added, *(one for some in self.replaced.values() for one in some)]


class Committer:
    def __init__(self, store: ObjectStore, clock: Clock, rewriter: Rewriter) -> None:
        self._store = store
        self._clock = clock
        self._rewriter = rewriter
        self._log: MetadataLog | None = None

    async def commit(
        self,
        key: PartitionKey,
        base: ManifestRef,
        manifest: Manifest,
        exchange: Exchange,
        incarnation: WalRef,
    ) -> str | None:
        """None once it is in the metadata log, else why it is not. `manifest`: what `base` says, or said
        before it was hurt. StoreError."""
        if self._log is None:
            self._log = MetadataLog(self._store, self._clock)
            await self._log.open()
        for _ in range(_TRIES_MAX):
            repaired = exchange.within(manifest)
            if repaired is None:
                return await self._give_up(exchange, _AGAIN)
            ref = await self._rewriter.write_manifest(repaired, incarnation, self._log.image.level)
            try:
                answer = await self._log.propose(_deciding(RepairPartition(*key, base, ref)))
            except MetadataUnavailableError as error:
                return f"Whether it was committed is not known: {error} Run this command again."
            if not isinstance(answer, Refusal):
                return None
            await self._store.delete(ref.key)
            if answer.code is not ErrorCode.INVALID_UPDATE_VERSION:
                return await self._give_up(exchange, answer.message)
            info = self._log.image.partition(*key)
            if info is None or info.manifest is None:
                return await self._give_up(exchange, _AGAIN)
            base = info.manifest
            try:
                manifest = manifest_of(key, (await load_object(self._store, (base,)))[base])
            except DamagedObjectError as error:
                return await self._give_up(exchange, f"{_AGAIN} ({error})")
        return await self._give_up(exchange, _AGAIN)

    async def _give_up(self, exchange: Exchange, reason: str) -> str:
        """Nothing refers to what was written, and nothing will."""
        for segment in exchange.written:
            await self._store.delete(segment.key)
        return reason

    async def close(self) -> None:
        if self._log is not None:
            await self._log.close()


def _deciding(command: RepairPartition) -> Decide:
    """The command, unless it is in the log already."""

    def decide(image: ClusterImage) -> Sequence[AnyCommand]:
        info = image.partition(command.topic_id, command.partition)
        return () if info is not None and info.manifest == command.manifest else (command,)

    return decide
