"""The answers of this broker about partitions that it is a replica of and does not lead.

It holds no copy: storage is shared. It knows the image, which names the manifest that the leader last
committed. So it answers as a replica that lags by the records that are not settled yet, some seconds usually.
It reads a manifest when it is asked for and not known, all manifests of one object together. It keeps sizes,
so a request over many partitions reads only changed ones, and no more than some objects at once. If a request
does not come to a partition, or the store does not give it, the last known size stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from penstock.metadata.image import PartitionKey
from penstock.storage.stores.objects import StoreError

if TYPE_CHECKING:
    from penstock.log.manifest import Manifest
    from penstock.metadata.image import ClusterImage, ManifestRef, PartitionInfo
    from penstock.storage.ledger.ledger import Ledger

T = TypeVar("T")

"""Topic id and partition."""

OBJECTS_MAX = 64
"""Objects that one request reads manifests from."""
SECONDS_MAX = 1.0
"""How long a request waits for them."""
KNOWN_MAX = 50_000
"""Partitions whose sizes are kept: a few hundred bytes each."""


def is_directory(store: str) -> bool:
    scheme, separator, _rest = store.partition("://")
    return not separator or scheme == "file"


def log_dir(store: str) -> str:
    """The name of the one log directory that there is: the store, by its absolute path or its URL, without
    credentials."""
    scheme, separator, rest = store.partition("://")
    if not is_directory(store):
        return scheme + separator + rest.rpartition("@")[2]
    return os.path.abspath(rest if separator else store)


def batched(items: Iterable[T], count: int) -> Iterator[list[T]]:
    """The items in order, so many at a time."""
    left = iter(items)
    while some := list(islice(left, count)):
        yield some


class _Sizes(NamedTuple):
    ref: ManifestRef
    segments: tuple[tuple[int, int], ...]
    """End offset and bytes of each segment."""


class Replicas:
    def __init__(self, broker_id: int, ledger: Ledger) -> None:
        self._broker_id = broker_id
        self._ledger = ledger
        self._known: OrderedDict[PartitionKey, _Sizes] = OrderedDict()

    def is_replica(self, image: ClusterImage, info: PartitionInfo) -> bool:
        return self._broker_id in image.shown_replicas(info)

    def size_bytes(self, key: PartitionKey, info: PartitionInfo) -> int:
        """Settled bytes from the log start on, counted in whole segments, as far as they are known."""
        known = self._known.get(key)
        if known is None:
            return 0
        return sum(size for end_offset, size in known.segments if end_offset > info.log_start)

    def unknown(self, wanted: Mapping[PartitionKey, PartitionInfo]) -> dict[PartitionKey, ManifestRef]:
        """The manifests that changed since their sizes were learnt, from few enough objects."""
        found: dict[PartitionKey, ManifestRef] = {}
        objects: set[str] = set()
        for key, info in wanted.items():
            ref = info.manifest
            known = self._known.get(key)
            if ref is None or (known is not None and known.ref == ref):
                continue
            if ref.key not in objects and len(objects) == OBJECTS_MAX:
                continue
            objects.add(ref.key)
            found[key] = ref
        return found

    async def learn(self, refs: Mapping[PartitionKey, ManifestRef]) -> None:
        """Learn the sizes of these partitions, as far as the store gives them in time."""
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(SECONDS_MAX):
                manifests = await self.manifests(refs.values())
                for key, ref in refs.items():
                    if ref in manifests:
                        self._remember(key, ref, manifests[ref])

    async def manifests(self, refs: Iterable[ManifestRef]) -> dict[ManifestRef, Manifest]:
        """Those that can be read. Raises StoreError if the store cannot be reached."""
        found = await self._ledger.manifests(list(refs))
        return {ref: one for ref, one in found.items() if not isinstance(one, Exception)}

    def _remember(self, key: PartitionKey, ref: ManifestRef, manifest: Manifest) -> None:
        sizes = tuple((segment.end_offset, segment.size_bytes) for segment in manifest.segments)
        self._known[key] = _Sizes(ref, sizes)
        self._known.move_to_end(key)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
