"""Reads the metadata log without joining the cluster: for programs that only look, such as Spark.

Nothing is ever written. The same entries count as for brokers (`tail`). The store says where the log is
(`home`).
"""

from collections.abc import Callable
from functools import partial

from penstock.cluster.home import find, open_elsewhere
from penstock.cluster.leases import flushes_said
from penstock.cluster.tail import LogReader
from penstock.metadata.image import ClusterImage, WalRef
from penstock.storage.reader.view import Choose, LogView
from penstock.storage.stores.objects import ObjectStore


class NoClusterError(Exception):
    """The store holds no cluster. The message is one sentence for a person."""


class ImageReader:
    """The newest image, read again on each `refresh`."""

    def __init__(
        self, store: ObjectStore, *, view: Callable[[ObjectStore], ObjectStore] | None = None
    ) -> None:
        """`view`: how the store of the metadata log is looked at, where not as it is."""
        self.image = ClusterImage()
        self._view = view
        self._elsewhere = False
        self._store = store
        self._log = LogReader(store)

    @property
    def floor(self) -> int:
        """Entries up to this one do not count any more."""
        return self._log.chain.floor

    @property
    def elsewhere(self) -> bool:
        """Whether the log is not in the store that was given. Known after the first `refresh`."""
        return self._elsewhere

    async def refresh(self) -> ClusterImage:
        """Read the log to its end: the image then holds every entry that was written before this call.

        Raises NoClusterError, FormatError for what this version cannot read, and StoreError.
        """
        first = not self.image.cluster_id
        if first:
            await self._find()
        # A log that ends with torn entries ends before them, for a reader.
        stuck = await self._log.read_to_end(lambda: self.image, self._advance)
        if first and stuck is None:
            await self._log.require_whole(lambda: self.image, self._advance, {})
        return self.image

    async def flushes_said(self, wal: WalRef) -> int:
        """How many flushes a log on an object store holds at least, by what its broker last said. Known after
        the first `refresh`. StoreError."""
        return await flushes_said(self._store, wal, b"")

    def _advance(self, image: ClusterImage) -> None:
        self.image = image

    async def _find(self) -> None:
        # Nobody tells a reader when to let go, so it keeps no connection between its looks.
        home = await find(self._store, partial(open_elsewhere, idle_max=0))
        if home is None:
            raise NoClusterError("The store holds no Penstock cluster.")
        self._elsewhere = home.metadata_store is not self._store
        self._store = home.metadata_store if self._view is None else self._view(home.metadata_store)
        self._log = LogReader(self._store)
        self.image = await self._log.chain.find() or ClusterImage(cluster_id=home.cluster_id)


def view_of(store: ObjectStore, choose: Choose) -> LogView:
    """The partitions of a store that `choose` names, from the store alone."""
    images = ImageReader(store)
    if store.local is not None:
        # The end of a file is not an object that may be gone, and a hurt one is judged by its sealer.
        return LogView(store, images, choose)
    return LogView(store, images, choose, images.flushes_said)
