"""Checking the metadata log: the cluster's identity, every entry and every snapshot that counts, leases.

What one flipped bit hurt is corrected in memory, so that the image can be known and the records be looked at.
Leases and the hint are overwritten every moment and nothing rests on them: they are read, and not judged.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial

from penstock.cluster.health.bench import Bench
from penstock.cluster.health.findings import ENTRY, IDENTITY, SNAPSHOT, Finding
from penstock.cluster.home import IDENTITY_KEY, find, open_elsewhere
from penstock.cluster.reading import ImageReader, NoClusterError
from penstock.cluster.snapshots import entry_key, snapshot_key
from penstock.metadata.codec import FormatError, decode_entry, decode_snapshot
from penstock.storage.objects import ObjectInfo, ObjectStore, StoreError
from penstock.wire.buffers import Buffer
from penstock.wire.checksum import crc32c
from penstock.wire.correction import corrections

_LOG = "meta/log/"
_SNAPSHOTS = "meta/snapshot/"
_LEASES = "live/"
_FRAME = 10
"""Magic (4), format (2), checksum (4) before the body."""


class Corrected:
    """A store some of whose objects read as they were before they were hurt."""

    def __init__(self, store: ObjectStore, contents: Mapping[str, bytes]) -> None:
        self._store = store
        self._contents = contents

    async def create(self, key: str, *parts: Buffer) -> bool:
        return await self._store.create(key, *parts)

    async def put(self, key: str, *parts: Buffer) -> None:
        await self._store.put(key, *parts)

    async def get(self, key: str) -> bytes | None:
        return self._contents.get(key) or await self._store.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes | bytearray:
        return await self._store.get_range(key, start, length)

    async def delete(self, key: str) -> None:
        await self._store.delete(key)

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self._store.list(prefix)

    async def close(self) -> None:
        await self._store.close()


class MetadataCheck:
    """`corrected`: the objects that one flipped bit hurt, as they were before."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.corrected: dict[str, bytes] = {}
        self.store: ObjectStore = bench.store
        """Where the metadata log is. Known after `run`."""
        self._floors: dict[int, int] = {}
        self._versions: dict[int, int] = {}

    async def run(self) -> ImageReader | None:
        """Check all, and note what is hurt. None if the image cannot be known. Raises NoClusterError, and
        StoreError if the metadata log cannot be read at all."""
        bench = self._bench
        try:
            home = await find(bench.store, partial(open_elsewhere, idle_max=0))
        except FormatError as error:
            bench.damaged(Finding(IDENTITY, IDENTITY_KEY, str(error)))
            return None
        if home is None:
            raise NoClusterError("The store holds no Penstock cluster.")
        self.store = home.metadata_store
        await self._check_leases()
        await self._check_all(_SNAPSHOTS, self._check_snapshot)
        self._check_chain()
        floor = max(self._floors.values(), default=0)
        numbers = await self._check_all(_LOG, self._check_entry, above=floor)
        reader = ImageReader(bench.store, view=lambda store: Corrected(store, self.corrected))
        try:
            image = await reader.refresh()
        except FormatError as error:
            self._cannot_go_on(error)
            return None
        # Snapshots may have been taken meanwhile, and entries below them deleted.
        for number in range(reader.floor + 1, max(numbers, default=0)):
            if number not in numbers:
                reason = "the entry is not there, and later ones are"
                bench.damaged(Finding(ENTRY, entry_key(number), reason))
        if image.version < max(numbers, default=0):
            self._cannot_go_on(f"entry {image.version + 1} of it is not there")
            return None
        if image.cluster_id != home.cluster_id:
            reason = f"it names the cluster {home.cluster_id}, and its snapshot {image.cluster_id}"
            bench.damaged(Finding(IDENTITY, IDENTITY_KEY, reason))
        return reader

    def _cannot_go_on(self, reason: object) -> None:
        self._bench.unread(_LOG, f"records were not looked at, because the metadata log ends early: {reason}")

    async def _check_leases(self) -> None:
        for key in [info.key async for info in self.store.list(_LEASES)]:
            self._bench.count(key, len(await self.store.get(key) or b""))

    async def _check_all(
        self, prefix: str, check: Callable[[int, str, bytes], None], above: int = 0
    ) -> set[int]:
        """Read and check all objects of a prefix; their numbers."""
        names = {info.key: info.key[len(prefix) :] async for info in self.store.list(prefix)}
        numbers = {key: int(name) for key, name in names.items() if name.isdecimal() and int(name) > above}

        async def look(key: str, number: int) -> None:
            try:
                data = await self.store.get(key)
            except StoreError as error:
                self._bench.unread(key, error)
                return
            if data is not None:  # Else it was trimmed since it was listed.
                self._bench.count(key, len(data))
                check(number, key, data)

        await self._bench.at_once(partial(look, key, number) for key, number in numbers.items())
        return set(numbers.values())

    def _check_entry(self, number: int, key: str, data: bytes) -> None:
        def read(stored: bytes) -> None:
            decode_entry(stored, number)

        self._judge(ENTRY, key, data, read)

    def _check_snapshot(self, ordinal: int, key: str, data: bytes) -> None:
        def read(stored: bytes) -> None:
            floor, content = decode_snapshot(stored, ordinal)
            self._floors[ordinal], self._versions[ordinal] = floor, content.version

        self._judge(SNAPSHOT, key, data, read)

    def _judge(self, what: str, key: str, data: bytes, read: Callable[[bytes], None]) -> None:
        try:
            read(data)
            return
        except FormatError as error:
            whole = corrected_frame(data, read)
            if whole is None and is_whole(data):
                self._bench.unread(key, error)
                return
            self._bench.damaged(Finding(what, key, str(error)))
        if whole is not None:
            self.corrected[key] = whole

    def _check_chain(self) -> None:
        for ordinal in range(1, max(self._versions, default=0) + 1):
            before = self._versions.get(ordinal - 1, 0 if ordinal == 1 else None)
            floor = self._floors.get(ordinal)
            if floor is not None and before is not None and floor != before:
                reason = f"its floor is {floor}, and the snapshot before it is that of entry {before}"
                self._bench.damaged(Finding(SNAPSHOT, snapshot_key(ordinal), reason))


def is_whole(data: bytes) -> bool:
    """Whether an entry or a snapshot matches its checksum, whoever can read it."""
    return len(data) >= _FRAME and crc32c(memoryview(data)[_FRAME:]) == int.from_bytes(data[6:_FRAME], "big")


def corrected_frame(data: bytes, read: Callable[[bytes], None]) -> bytes | None:
    """The entry or snapshot that one flipped bit made of `data`."""
    if len(data) < _FRAME:
        return None
    for candidate in corrections(data, _FRAME, len(data), 6):
        stored = bytes(candidate)
        if stored[4:6] != data[4:6]:
            continue  # Another format number is no proof of damage.
        try:
            read(stored)
        except FormatError:
            continue
        return stored
    return None
