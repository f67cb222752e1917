"""The chain of snapshots, and what it says about which entries of the log count.

`meta/snapshot/1`, `/2`, ... are each created once and never disappear: a snapshot that a later one replaced
is cut down to a stub with its version. Every snapshot names its *floor*, the version of the one before it;
once it exists, entries up to the floor may be deleted. So the floor only grows, and whoever looks for the
snapshot after the last one it knows learns of every deletion that could have happened before the look.
`metadata_log` explains what rests on that.
"""

from typing import Final

import msgspec

from penstock.metadata.codec import Stub, decode_snapshot, encode_snapshot, encode_stub
from penstock.metadata.image import ClusterImage
from penstock.storage.objects import ObjectStore

HINT_KEY: Final = "meta/hint"


def entry_key(number: int) -> str:
    return f"meta/log/{number:012d}"


def snapshot_key(ordinal: int) -> str:
    return f"meta/snapshot/{ordinal:09d}"


class _Hint(msgspec.Struct):
    snapshot: int


class SnapshotChain:
    """What is known of the chain: its last snapshot's `ordinal`, `version` and `floor`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.ordinal = 0
        self.version = 0
        self.floor = 0
        self._newest: ClusterImage | None = None

    async def find(self) -> ClusterImage | None:
        """The newest snapshot's image, or None if there is none yet. For a start: the hint saves probing."""
        hint = await self._store.get(HINT_KEY)
        if hint is not None:
            try:
                ordinal = msgspec.json.decode(hint, type=_Hint).snapshot
            except msgspec.DecodeError:
                ordinal = 0
            # The hinted one may be a stub by now; the look from before it reads it and what follows.
            self.ordinal = max(0, ordinal - 1)
        await self.look()
        return self.take()

    async def look(self) -> None:
        """Learn of snapshots after the last known one."""
        while True:
            ordinal = self.ordinal + 1
            data = await self._store.get(snapshot_key(ordinal))
            if data is None:
                return
            floor, content = decode_snapshot(data, ordinal)
            # Another look may have come this far while this one waited for the store.
            if ordinal > self.ordinal:
                self.ordinal, self.floor, self.version = ordinal, floor, content.version
                self._newest = None if isinstance(content, Stub) else content

    def take(self) -> ClusterImage | None:
        """The image of the newest snapshot if the last look brought one, and let go of it."""
        image, self._newest = self._newest, None
        return image

    async def load(self) -> ClusterImage:
        """The image of the newest snapshot."""
        while True:
            image = self.take()
            if image is not None:
                return image
            ordinal = self.ordinal
            data = await self._store.get(snapshot_key(ordinal))
            if data is not None:
                _, content = decode_snapshot(data, ordinal)
                if not isinstance(content, Stub):
                    return content
            # It was replaced since it was looked at.
            await self.look()

    async def create(self, image: ClusterImage) -> bool:
        """Add a snapshot to the chain. False if somebody else did."""
        ordinal = self.ordinal + 1
        data = encode_snapshot(image, self.version)
        if not await self._store.create(snapshot_key(ordinal), data):
            await self.look()
            return False
        if ordinal > self.ordinal:
            self.ordinal, self.floor, self.version = ordinal, self.version, image.version
            self._newest = None
        await self._store.put(HINT_KEY, msgspec.json.encode(_Hint(ordinal)))
        return True

    async def trim(self) -> int:
        """Delete entries that the newest snapshot made needless, then cut the replaced snapshots down.

        Also finishes what an earlier trimmer left undone. Returns the number of entries deleted.
        """
        deleted = 0
        newest = self.ordinal
        for ordinal in range(max(1, newest - 2), newest):
            data = await self._store.get(snapshot_key(ordinal))
            if data is None:
                continue
            floor, content = decode_snapshot(data, ordinal)
            if isinstance(content, Stub):
                continue
            for number in range(floor + 1, content.version + 1):
                await self._store.delete(entry_key(number))
                deleted += 1
            await self._store.put(snapshot_key(ordinal), encode_stub(content.version, floor))
        return deleted
