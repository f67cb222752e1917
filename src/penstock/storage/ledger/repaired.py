"""Takes over a manifest that a repair wrote for a partition that is led here.

A repair changes where records lie, and which of them are there. It changes neither the end of the settled
part nor the state at that end. So the partition stays open: the new manifest is read and replaces the old
one. A settling that was computed from the old one is not committed, because its base is no longer in the
image. A settling in doubt may have come before the repair. Then the manifest ends further on, never beyond
the durable end.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from penstock.log.manifest import Manifest
from penstock.metadata.image import ClusterImage, ManifestRef, PartitionKey
from penstock.storage.partitions.partition import Partition
from penstock.storage.reader.manifests import load_object, manifest_of
from penstock.storage.stores.objects import ObjectStore, StoreError

logger = logging.getLogger(__name__)

Replace = Callable[[Partition, Manifest, ManifestRef], None]

_RETRY_SECONDS = 1.0


class Repaired:
    def __init__(
        self,
        partitions: Mapping[PartitionKey, Partition],
        image: Callable[[], ClusterImage],
        store: ObjectStore,
        replace: Replace,
    ) -> None:
        self._partitions = partitions
        self._image = image
        self._store = store
        self._replace = replace
        self._tasks: dict[PartitionKey, asyncio.Task[None]] = {}

    def found(self, partition: Partition) -> None:
        """The image names a manifest of this partition that was not written here."""
        key = (partition.topic_id, partition.index)
        if key not in self._tasks:
            self._tasks[key] = asyncio.get_running_loop().create_task(self._follow(key), name="repaired")

    async def _follow(self, key: PartitionKey) -> None:
        try:
            while (ref := self._unknown(key)) is not None:
                partition = self._partitions[key]
                if partition.closed or not await self._take(partition, ref):
                    # About to be given away, or the store does not answer: it is looked at again.
                    await asyncio.sleep(_RETRY_SECONDS)
        finally:
            del self._tasks[key]

    def _unknown(self, key: PartitionKey) -> ManifestRef | None:
        """What the image says of a partition that is open here, if that is not known here."""
        partition = self._partitions.get(key)
        info = self._image().partition(*key)
        if partition is None or info is None or info.manifest == partition.manifest_ref:
            return None
        return info.manifest

    async def _take(self, partition: Partition, ref: ManifestRef) -> bool:
        try:
            loaded = (await load_object(self._store, (ref,)))[ref]
            manifest = manifest_of((partition.topic_id, partition.index), loaded)
        except StoreError as error:
            logger.warning(
                "a repaired manifest could not be read yet topic=%s partition=%d: %s",
                partition.topic,
                partition.index,
                error,
            )
            return False
        if not partition.settled_end <= manifest.end_offset <= partition.high_watermark:
            logger.error(
                "a manifest was not written here, and does not end where records are settled"
                " topic=%s partition=%d end=%d settled=%d",
                partition.topic,
                partition.index,
                manifest.end_offset,
                partition.settled_end,
            )
            return False
        self._replace(partition, manifest, ref)
        return True

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
