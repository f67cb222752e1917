"""Reading the metadata log without joining the cluster: for those who only look, such as Spark.

Nothing is ever written. Which entries count is decided as in `metadata_log`: entries are read first, then the
chain of snapshots is looked at, and an entry counts only above the floor that is known by then. Where the log
is, the store says (`home`).
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.cluster.home import find, open_elsewhere
from penstock.cluster.snapshots import SnapshotChain, entry_key
from penstock.cluster.tail import apply_tail, can_be_torn, unreadable
from penstock.metadata.codec import DamagedError
from penstock.metadata.image import ClusterImage
from penstock.storage.reader.view import Choose, LogView
from penstock.storage.stores.objects import ObjectStore

_WINDOW_MAX: Final = 32
"""Entries asked for at once. The window starts at one, because mostly there is nothing new, and doubles."""


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
        self._chain = SnapshotChain(store)

    @property
    def floor(self) -> int:
        """Entries up to this one do not count any more."""
        return self._chain.floor

    @property
    def elsewhere(self) -> bool:
        """Whether the log is not in the store that was given. Known after the first `refresh`."""
        return self._elsewhere

    async def refresh(self) -> ClusterImage:
        """Read the log to its end: the image then holds every entry that was written before this call.

        Raises NoClusterError, FormatError for what this version cannot read, and StoreError.
        """
        if not self.image.cluster_id:
            await self._find()
        window = 1
        while True:
            first = self.image.version + 1
            found = await self._entries(first, window)
            await self._chain.look()
            if self._chain.floor >= first:
                # The log was trimmed beyond what is known here.
                self.image = await self._chain.load()
                continue
            self.image, error, torn = apply_tail(self.image, found)
            if error is not None:
                number = self.image.version + 1
                if isinstance(error, DamagedError) and self._chain.version >= number:
                    self.image = await self._chain.load()
                    continue
                if not (torn and can_be_torn(self._store) and len(found) < window):
                    raise unreadable(error, entry_key(number)) from error
            if len(found) < window:
                return self.image
            window = min(window * 2, _WINDOW_MAX)

    async def _find(self) -> None:
        # Nobody tells a reader when to let go, so it keeps no connection between its looks.
        home = await find(self._store, partial(open_elsewhere, idle_max=0))
        if home is None:
            raise NoClusterError("The store holds no Penstock cluster.")
        self._elsewhere = home.metadata_store is not self._store
        self._store = home.metadata_store if self._view is None else self._view(home.metadata_store)
        self._chain = SnapshotChain(self._store)
        self.image = await self._chain.find() or ClusterImage(cluster_id=home.cluster_id)

    async def _entries(self, first: int, count: int) -> list[bytes]:
        """Entries from `first` on, at most `count`, up to the first that does not exist."""
        answers = await asyncio.gather(
            *(self._store.get(entry_key(number)) for number in range(first, first + count))
        )
        found = []
        for data in answers:
            if data is None:
                break
            found.append(data)
        return found


def view_of(store: ObjectStore, choose: Choose) -> LogView:
    """The partitions of a store that `choose` names, from the store alone."""
    return LogView(store, ImageReader(store), choose)
