"""Which partitions need an object: those that its footer names and whose manifests refer to it.

Partitions that are open here are known from memory (`usage`). For others their manifest is read, as the image
names it. An object that cannot be read raises StoreError: it is unknown, and proves nothing.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping

from penstock.log.moving import footprint
from penstock.metadata.image import ClusterImage, ManifestRef, PartitionKey
from penstock.storage.partitions.holdings import Holdings
from penstock.storage.reader.footers import read_footer
from penstock.storage.reader.manifests import load_object, manifest_of
from penstock.storage.settling.segment_writer import SegmentWriter
from penstock.storage.stores.objects import ObjectMissingError, StoreError

_MANIFESTS_REMEMBERED = 1000
_FOOTERS_REMEMBERED = 1000


class References:
    def __init__(self, holdings: Holdings, writer: SegmentWriter) -> None:
        """`writer` remembers what it wrote."""
        self._holdings = holdings
        self._store = holdings.store
        self._writer = writer
        self._known: OrderedDict[ManifestRef, Mapping[str, int]] = OrderedDict()
        """What manifests that were read lately refer to, and how many bytes they need of it."""
        self._footers: OrderedDict[str, Collection[PartitionKey]] = OrderedDict()
        """What footers that were read lately name. A footer never changes."""

    async def refers(self, partition: PartitionKey, key: str, image: ClusterImage) -> bool:
        """Whether the partition's manifest refers to an object that none of those open here is known to."""
        info = image.partition(*partition)
        if info is None or info.manifest is None:
            return False
        if partition in self._holdings.partitions:
            return False
        return key in await self._references_of(partition, info.manifest)

    def is_moving(self, partition: PartitionKey, image: ClusterImage) -> bool:
        """Whether a partition that is open here has another manifest than the image says."""
        own, info = self._holdings.partitions.get(partition), image.partition(*partition)
        return own is not None and info is not None and own.manifest_ref != info.manifest

    async def pieces(self, index_key: str) -> Collection[PartitionKey]:
        """The partitions that a footer names. ObjectMissingError if it is not there."""
        remembered = self._writer.contents(index_key) or self._footers.get(index_key)
        if remembered is not None:
            return remembered
        size = await self._store.size(index_key)
        if size is None:
            raise ObjectMissingError(f"{index_key} is not there, and what it describes is not known")
        footer = await read_footer(self._store.get_range, index_key, size)
        found = dict.fromkeys((piece.topic_id, piece.partition) for piece in footer.pieces)
        self._footers[index_key] = found
        if len(self._footers) > _FOOTERS_REMEMBERED:
            self._footers.popitem(last=False)
        return found

    async def _references_of(self, owner: PartitionKey, ref: ManifestRef) -> Mapping[str, int]:
        known = self._known.get(ref)
        if known is None:
            segments = manifest_of(owner, (await load_object(self._store, (ref,)))[ref]).segments
            found = dict.fromkeys((segment.index_key for segment in segments), 0)
            for segment in segments:
                found[segment.key] = found.get(segment.key, 0) + footprint(segment)
            known = self._known[ref] = found
            if len(self._known) > _MANIFESTS_REMEMBERED:
                self._known.popitem(last=False)
        return known

    async def live_elsewhere(self, key: str, index_key: str, image: ClusterImage) -> int | None:
        """How many bytes of an object partitions need that are not open here; None if it cannot be told."""
        size = 0
        try:
            for partition in await self.pieces(index_key):
                info = None if partition in self._holdings.partitions else image.partition(*partition)
                if info is not None and info.manifest is not None:
                    size += (await self._references_of(partition, info.manifest)).get(key, 0)
        except StoreError:
            return None
        return size
