"""Writes healed pieces and their manifests into new objects.

Names are those of an incarnation, in a range that it never reaches by counting, and are used once.
"""

from collections.abc import Iterator, Sequence

from penstock.cluster.health.mending import Part
from penstock.entropy import SYSTEM, Entropy
from penstock.log.extents import Extents
from penstock.log.manifest import Manifest, SegmentRef, encode_manifest
from penstock.log.segment import Footer, PieceRef, encode_footer
from penstock.metadata.image import ManifestRef, PartitionKey, WalRef
from penstock.storage.settling.segment_writer import FIRST_REPAIR_NAME, MANIFEST_PREFIX, SEGMENT_PREFIX
from penstock.storage.stores.objects import ObjectStore
from penstock.wire.buffers import Buffer

_NAMES = 100_000_000_000
_OBJECT_BYTES = 64 * 1024 * 1024


class Rewriter:
    def __init__(self, store: ObjectStore, entropy: Entropy = SYSTEM) -> None:
        self._store = store
        self._entropy = entropy

    async def _create(self, prefix: str, incarnation: WalRef, parts: Sequence[Buffer]) -> str:
        while True:
            number = FIRST_REPAIR_NAME + int.from_bytes(self._entropy.token(8), "big") % _NAMES
            key = f"{prefix}{incarnation.broker}/{incarnation.epoch}/{number:012d}"
            if await self._store.create(key, *parts):
                return key

    async def write(
        self, owner: PartitionKey, parts: Sequence[Part], incarnation: WalRef, settled_ms: int
    ) -> list[SegmentRef]:
        """New segments of one partition's batches, as old as those that they replace."""
        return [await self._write_one(owner, some, incarnation, settled_ms) for some in _objects(parts)]

    async def _write_one(
        self, owner: PartitionKey, parts: Sequence[Part], incarnation: WalRef, settled_ms: int
    ) -> SegmentRef:
        extents = Extents()
        position = 0
        for part in parts:
            span = (part.base_offset, part.last_offset, part.max_timestamp)
            extents.append(*span, position, len(part.stored))
            position += len(part.stored)
        index = extents.encode()
        base, end = extents.base_offsets[0], extents.last_offsets[-1] + 1
        place = (base, end, position, len(index))
        footer = encode_footer(Footer((PieceRef(*owner, *place),)))
        stored = [*(part.stored for part in parts), index, footer]
        key = await self._create(SEGMENT_PREFIX, incarnation, stored)
        return SegmentRef(
            key,
            base,
            end,
            position,
            max(extents.max_timestamps),
            key,
            position,
            len(index),
            min(extents.max_timestamps),
            settled_ms,
            position + len(index) + len(footer),
        )

    async def write_manifest(self, manifest: Manifest, incarnation: WalRef, level: int) -> ManifestRef:
        stored = encode_manifest(manifest, level)
        key = await self._create(MANIFEST_PREFIX, incarnation, (stored,))
        return ManifestRef(key, 0, len(stored))


def _objects(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Parts that share an object."""
    together: list[Part] = []
    size = 0
    for part in parts:
        if together and size + len(part.stored) > _OBJECT_BYTES:
            yield together
            together, size = [], 0
        together.append(part)
        size += len(part.stored)
    if together:
        yield together
