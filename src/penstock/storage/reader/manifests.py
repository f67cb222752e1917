"""Reading manifests: those that lie in one object are read in one go."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from penstock.log.manifest import Manifest, ManifestError, decode_manifest
from penstock.metadata.image import ManifestRef, PartitionKey
from penstock.storage.stores.objects import DamagedObjectError, ObjectMissingError, ObjectStore
from penstock.wire.buffers import Buffer

Loaded = Manifest | DamagedObjectError | ObjectMissingError
"""A manifest, or why there is none: it is provably hurt, or it is not there."""

READS_AT_ONCE_MAX = 32


def by_object(refs: Iterable[ManifestRef]) -> dict[str, list[ManifestRef]]:
    """The manifests by the object that they lie in."""
    together: dict[str, list[ManifestRef]] = {}
    for ref in refs:
        together.setdefault(ref.key, []).append(ref)
    return together


async def load_object(store: ObjectStore, refs: Sequence[ManifestRef]) -> dict[ManifestRef, Loaded]:
    """The manifests that lie in one object. StoreError if the store does not give it."""
    start = min(ref.start for ref in refs)
    length = max(ref.start + ref.length for ref in refs) - start
    try:
        stored = memoryview(await store.get_range(refs[0].key, start, length))
    except ObjectMissingError as error:
        if len(refs) == 1:
            return {refs[0]: error}
        # The object may be cut short: the manifests at its beginning are there.
        loaded: dict[ManifestRef, Loaded] = {}
        for ref in refs:
            loaded.update(await load_object(store, (ref,)))
        return loaded
    return {ref: _decoded(stored[ref.start - start :][: ref.length], ref) for ref in refs}


def _decoded(stored: Buffer, ref: ManifestRef) -> Manifest | DamagedObjectError:
    try:
        return decode_manifest(stored)
    except ManifestError as error:
        return DamagedObjectError(f"{ref.key} at {ref.start}: {error}")


async def load_manifests(store: ObjectStore, refs: Iterable[ManifestRef]) -> Mapping[ManifestRef, Loaded]:
    """The manifests, read side by side. StoreError if the store does not give one of their objects."""
    room = asyncio.Semaphore(READS_AT_ONCE_MAX)
    loaded: dict[ManifestRef, Loaded] = {}

    async def load(some: Sequence[ManifestRef]) -> None:
        async with room:
            loaded.update(await load_object(store, some))

    await asyncio.gather(*(load(some) for some in by_object(refs).values()))
    return loaded


def manifest_of(owner: PartitionKey, found: Loaded) -> Manifest:
    """The manifest of a partition. DamagedObjectError if it is hurt or another partition's, and
    ObjectMissingError if it is not there."""
    if not isinstance(found, Manifest):
        raise found
    if (found.topic_id, found.partition) != owner:
        raise DamagedObjectError("the manifest is that of another partition")
    return found
