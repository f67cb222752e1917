"""The chain of snapshots, and what it says about which entries of the log count.

`meta/snapshot/1`, `/2`, ... are each created once and never disappear: a snapshot that a later one replaced
is cut down to a stub with its version. Every snapshot names its *floor*, the version of the one before it.
Once it exists, entries up to the floor may be deleted: one whole interval is left for brokers that lag. So
the floor only grows. A broker that looks for the snapshot after the last one it knows learns of every
deletion that could have happened before the look. An entry counts only above the floor, which is looked up
after the entry was read (`tail`) or created (`entries`).

A damaged snapshot is passed over. The one before it is kept whole until there are two later ones, and its
version is the damaged one's floor: the entries that it needs are still there. For the same reason the chain
can be entered before its last snapshot, if that one is gone.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.cluster.second_looks import get_whole
from penstock.metadata.codec import (
    DamagedError,
    FormatError,
    Stub,
    decode_snapshot,
    encode_snapshot,
    encode_stub,
)
from penstock.metadata.image import ClusterImage
from penstock.storage.stores.objects import ObjectStore, StoreError

HINT_KEY: Final = "meta/hint"
LOG_PREFIX: Final = "meta/log/"
SNAPSHOT_PREFIX: Final = "meta/snapshot/"
_ENTRY_DIGITS: Final = 12
_SNAPSHOT_DIGITS: Final = 9

logger = logging.getLogger(__name__)


def entry_key(number: int) -> str:
    return f"{LOG_PREFIX}{number:0{_ENTRY_DIGITS}d}"


def entry_number(key: str) -> int | None:
    """Which entry has this key; None if it is another object's."""
    return _number(key.removeprefix(LOG_PREFIX), _ENTRY_DIGITS)


def snapshot_key(ordinal: int) -> str:
    return f"{SNAPSHOT_PREFIX}{ordinal:0{_SNAPSHOT_DIGITS}d}"


def snapshot_number(key: str) -> int | None:
    """Which snapshot has this key; None if it is another object's."""
    return _number(key.removeprefix(SNAPSHOT_PREFIX), _SNAPSHOT_DIGITS)


def _number(name: str, digits: int) -> int | None:
    return int(name) if len(name) == digits and name.isascii() and name.isdecimal() else None


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
        self._damaged: DamagedError | None = None
        """Why the last snapshot cannot be read; `floor` and `version` are then those of the one before."""

    async def find(self) -> ClusterImage | None:
        """The newest snapshot's image, or None if there is none yet. For a start: the hint saves listing."""
        hinted = await self._hinted()
        if hinted:
            await self._enter(hinted)
        if self._newest is None and self._damaged is None:
            # No hint, or the hinted one is gone. The last one that is there is never a stub.
            last = await self._last_listed()
            if last:
                await self._enter(last)
            if last < hinted:
                logger.warning("a metadata snapshot was not there key=%s", snapshot_key(hinted))
        return self.take()

    async def _hinted(self) -> int:
        hint = await self._store.get(HINT_KEY)
        try:
            return msgspec.json.decode(hint, type=_Hint).snapshot if hint is not None else 0
        except msgspec.DecodeError:
            return 0

    async def _last_listed(self) -> int:
        numbers = [snapshot_number(info.key) async for info in self._store.list(SNAPSHOT_PREFIX)]
        return max((number for number in numbers if number is not None), default=0)

    async def _enter(self, ordinal: int) -> None:
        # It may be a stub by now; the look from before it reads it and what follows.
        self.ordinal = max(0, ordinal - 1)
        await self.look()

    async def look(self) -> None:
        """Learn of snapshots after the last known one."""
        while True:
            ordinal = self.ordinal + 1
            try:
                found = await self._get(ordinal)
            except DamagedError as error:
                await self._pass_over(ordinal, error)
                continue
            if found is None:
                return
            floor, content = found
            # Another look may have come this far while this one waited for the store.
            if ordinal > self.ordinal:
                self.ordinal, self.floor, self.version = ordinal, floor, content.version
                self._newest = None if isinstance(content, Stub) else content
                self._damaged = None

    async def _get(self, ordinal: int) -> "tuple[int, ClusterImage | Stub] | None":
        """The floor and the image of a snapshot, or what is left of it; None if it is not there."""
        key = snapshot_key(ordinal)
        return await get_whole(self._store, key, lambda data: decode_snapshot(data, ordinal))

    async def _pass_over(self, ordinal: int, error: DamagedError) -> None:
        """Go on without a damaged snapshot. One at a time: the floor of a second one would not be known."""
        version, image = self.version, self._newest
        if self._damaged is not None:
            raise _lost(error, ordinal)
        if ordinal > 1 and not version:
            # The chain was entered here, by the hint.
            found = await self._get(ordinal - 1)
            if found is None:
                raise _lost(error, ordinal)
            _floor, content = found
            version, image = content.version, None if isinstance(content, Stub) else content
        if ordinal > self.ordinal:
            logger.warning(
                "a metadata snapshot was passed over key=%s error=%s", snapshot_key(ordinal), error
            )
            self.ordinal, self.floor, self.version = ordinal, version, version
            self._newest, self._damaged = image, error

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
            ordinal, damaged = self.ordinal, self._damaged
            found = await self._get(ordinal if damaged is None else ordinal - 1)
            if found is not None:
                _, content = found
                if not isinstance(content, Stub):
                    return content
            if damaged is not None and ordinal == self.ordinal:
                raise _lost(damaged, ordinal)
            # It was replaced since it was looked at.
            await self.look()
            if self.ordinal == ordinal:
                # One is cut down only when there are two later ones.
                gone = snapshot_key(ordinal if found is None else ordinal + 1)
                raise FormatError(f"{gone} is not there any more; bring it back from a backup")

    async def create(self, image: ClusterImage) -> bool:
        """Add a snapshot to the chain. False if somebody else did."""
        ordinal = self.ordinal + 1
        data = encode_snapshot(image, self.version)
        if not await self._store.create(snapshot_key(ordinal), data):
            await self.look()
            return False
        if ordinal > self.ordinal:
            self.ordinal, self.floor, self.version = ordinal, self.version, image.version
            self._newest = self._damaged = None
        await self._store.put(HINT_KEY, msgspec.json.encode(_Hint(ordinal)))
        return True

    async def trim(self) -> int:
        """Delete entries that are needless even without the newest snapshot, then cut the snapshots that the
        one before it replaced down.

        Also finishes what an earlier trimmer left undone. Returns the number of entries deleted.
        """
        deleted = 0
        newest = self.ordinal
        for ordinal in range(max(1, newest - 3), newest - 1):
            data = await self._store.get(snapshot_key(ordinal))
            if data is None:
                continue
            try:
                floor, content = decode_snapshot(data, ordinal)
            except DamagedError:
                continue  # Which entries it made needless is not known.
            if isinstance(content, Stub):
                continue
            for number in range(floor + 1, content.version + 1):
                await self._store.delete(entry_key(number))
                deleted += 1
            await self._store.put(snapshot_key(ordinal), encode_stub(content.version, floor, content.level))
        return deleted


def _lost(error: DamagedError, ordinal: int) -> DamagedError:
    return DamagedError(
        f"{error} ({snapshot_key(ordinal)}), and nothing else holds what it held; `penstock store repair` "
        "says what can be saved"
    )


class Snapshotter:
    """Writes a snapshot every so many entries, and trims the log."""

    def __init__(self, chain: SnapshotChain, now: Callable[[], ClusterImage], entries: int) -> None:
        self._chain = chain
        self._now = now
        self._entries = entries
        self._tried_at = 0
        self.task: asyncio.Task[None] | None = None
        """The snapshot under way, and the trimming that follows it."""

    def advanced(self) -> None:
        """There is a newer image: begin a snapshot, if one is due."""
        version = self._now().version
        if version - max(self._chain.version, self._tried_at) >= self._entries and self.task is None:
            self._tried_at = version
            self.task = asyncio.create_task(self._write(), name="metadata snapshot")

    async def _write(self) -> None:
        """A failure costs nothing but a longer tail; it is tried again."""
        try:
            await self._chain.look()
            image = self._now()
            if image.version - self._chain.version < self._entries:
                return
            if await self._chain.create(image):
                deleted = await self._chain.trim()
                logger.info("wrote a metadata snapshot version=%d trimmed=%d", image.version, deleted)
        except (StoreError, FormatError) as error:
            logger.warning("a metadata snapshot was not written error=%s", error)
        finally:
            self.task = None
