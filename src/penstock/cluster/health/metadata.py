"""Checks the metadata log: the cluster's identity, every entry and every snapshot that counts, leases.

An object that one flipped bit hurt is corrected in memory, so that the image can be known and the records be
looked at. The identity of a cluster is in its metadata snapshots, too. Leases and the hint are overwritten
every moment and nothing rests on them: they are read, and not judged. But a whole lease says how far its
broker had read the log.
"""

import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial

import msgspec

from penstock.cluster.health.bench import Bench
from penstock.cluster.health.findings import ENTRY, IDENTITY, SNAPSHOT, Finding
from penstock.cluster.home import IDENTITY_KEY, find, named_by_snapshot, open_elsewhere
from penstock.cluster.leases import LEASE_PREFIX, Lease, whole_leases
from penstock.cluster.reading import ImageReader, NoClusterError
from penstock.cluster.snapshots import (
    LOG_PREFIX,
    SNAPSHOT_PREFIX,
    entry_key,
    entry_number,
    snapshot_key,
    snapshot_number,
)
from penstock.cluster.tail import is_torn
from penstock.metadata.codec import (
    FORMAT_VERSION,
    DamagedError,
    FormatError,
    decode_entry,
    decode_identity,
    decode_snapshot,
    encode_identity,
)
from penstock.storage.stores.local import LocalDirectory
from penstock.storage.stores.objects import ObjectInfo, ObjectStore, StoreError
from penstock.wire.buffers import Buffer
from penstock.wire.correction import corrections

_FRAMES = ((10, 6), (18, 10))
"""Of each version of the frame, where the body begins and where its checksum is."""


class Corrected:
    """A store some of whose objects read as they were before they were hurt."""

    def __init__(self, store: ObjectStore, contents: Mapping[str, bytes]) -> None:
        self._store = store
        self._contents = contents

    @property
    def local(self) -> LocalDirectory | None:
        return self._store.local

    async def create(self, key: str, *parts: Buffer) -> bool:
        return await self._store.create(key, *parts)

    async def put(self, key: str, *parts: Buffer) -> None:
        await self._store.put(key, *parts)

    async def get(self, key: str) -> bytes | None:
        return self._contents.get(key) or await self._store.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes | bytearray:
        return await self._store.get_range(key, start, length)

    async def size(self, key: str) -> int | None:
        return await self._store.size(key)

    async def delete(self, key: str) -> None:
        await self._store.delete(key)

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self._store.list(prefix)

    async def close(self) -> None:
        await self._store.close()


class MetadataCheck:
    """`corrected`: the objects that one flipped bit hurt, and the identity, as they were before."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.corrected: dict[str, bytes] = {}
        self.store: ObjectStore = bench.store
        """Where the metadata log is. Known after `run`."""
        self._floors: dict[int, int] = {}
        self._versions: dict[int, int] = {}
        self.torn: set[int] = set()
        """Entries that were not synced when the power went."""

    async def run(self) -> ImageReader | None:
        """Check all, and note what is hurt. None if the image cannot be known. Raises NoClusterError, and
        StoreError if the metadata log cannot be read at all."""
        bench = self._bench
        try:
            home = await find(bench.store, partial(open_elsewhere, idle_max=0))
        except FormatError as error:
            await self._judge_identity(error)
            return None
        if home is None:
            whole = await self._identity_of_snapshot()
            if whole is None:
                raise NoClusterError("The store holds no Penstock cluster.")
            self.corrected[IDENTITY_KEY] = whole
            bench.damaged(
                Finding(IDENTITY, IDENTITY_KEY, "it is not there, and snapshots of its cluster are")
            )
            return None
        self.store = home.metadata_store
        leases = await self._check_leases()
        await self._check_all(SNAPSHOT_PREFIX, snapshot_number, self._check_snapshot)
        self._check_chain()
        floor = max(self._floors.values(), default=0)
        numbers = await self._check_all(LOG_PREFIX, entry_number, self._check_entry, above=floor)
        view = (lambda store: Corrected(store, self.corrected)) if self.corrected else None
        reader = ImageReader(bench.store, view=view)
        try:
            image = await reader.refresh()
        except FormatError as error:
            self._note_gaps(reader.floor, numbers)
            self._cannot_go_on(error)
            return None
        # What the newest snapshot covers is only kept for the case that it is hurt.
        self._note_gaps(max((reader.floor, *self._versions.values())), numbers)
        if image.version < max(numbers - self.torn, default=0):
            self._cannot_go_on(f"entry {image.version + 1} of it is not there")
            return None
        for key, lease in leases.items():
            if lease.version > max(image.version, *numbers, 0):
                reason = f"the entry is not there, and a broker had read it ({key})"
                bench.damaged(Finding(ENTRY, entry_key(lease.version), reason))
        if image.cluster_id != home.cluster_id:
            reason = f"it names the cluster {home.cluster_id}, and its snapshot {image.cluster_id}"
            bench.damaged(Finding(IDENTITY, IDENTITY_KEY, reason))
        return reader

    async def _judge_identity(self, error: FormatError) -> None:
        """The store does not say which cluster lives in it: it is hurt, or newer than this version."""
        data = await self._bench.store.get(IDENTITY_KEY) or b""
        try:
            identity = msgspec.json.decode(data)
            other_format = isinstance(identity, dict) and identity.get("format") != FORMAT_VERSION
            other_format = other_format and not isinstance(error, DamagedError)
        except (msgspec.DecodeError, UnicodeDecodeError):
            other_format = False
        if other_format:
            self._bench.unread(IDENTITY_KEY, error)
            return
        self._bench.damaged(Finding(IDENTITY, IDENTITY_KEY, str(error)))
        whole = corrected_identity(data) or await self._identity_of_snapshot()
        if whole is not None:
            self.corrected[IDENTITY_KEY] = whole

    async def _identity_of_snapshot(self) -> bytes | None:
        try:
            identity = await named_by_snapshot(self._bench.store)
        except FormatError:
            return None
        return encode_identity(identity) if identity is not None else None

    def _cannot_go_on(self, reason: object) -> None:
        self._bench.unread(
            LOG_PREFIX, f"records were not looked at, because the metadata log ends early: {reason}"
        )

    async def _check_leases(self) -> dict[str, Lease]:
        for key in [info.key async for info in self.store.list(LEASE_PREFIX)]:
            self._bench.count(key, len(await self.store.get(key) or b""))
        return await whole_leases(self.store)

    def _note_gaps(self, floor: int, numbers: set[int]) -> None:
        # Snapshots may have been taken meanwhile, and entries below them deleted.
        for before, number in itertools.pairwise((floor, *sorted(one for one in numbers if one > floor))):
            if number > before + 1:
                what = f"entries {before + 1} to {number - 1} are" if number > before + 2 else "the entry is"
                reason = f"{what} not there, and later ones are"
                self._bench.damaged(Finding(ENTRY, entry_key(before + 1), reason))

    async def _check_all(
        self,
        prefix: str,
        number_of: Callable[[str], int | None],
        check: Callable[[int, str, bytes], None],
        above: int = 0,
    ) -> set[int]:
        """Read and check all objects of a prefix; their numbers."""
        found = {info.key: number_of(info.key) async for info in self.store.list(prefix)}
        numbers = {key: number for key, number in found.items() if number is not None and number > above}

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

        if is_torn(number, data):
            self.torn.add(number)
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
            if whole is None and not isinstance(error, DamagedError):
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


def corrected_frame(data: bytes, read: Callable[[bytes], None]) -> bytes | None:
    """The entry or snapshot that one flipped bit made of `data`."""
    for start, checksum_at in _FRAMES:
        if len(data) < start:
            continue
        for candidate in corrections(data, start, len(data), checksum_at):
            if start == _FRAMES[0][0] and candidate[4:6] != data[4:6]:
                continue  # No checksum of the first frame covers its version: it may be a newer one.
            try:
                read(bytes(candidate))
            except FormatError:
                continue
            return bytes(candidate)
    return None


def corrected_identity(data: bytes) -> bytes | None:
    """The identity that one flipped bit made of `data`, if there is only one that it can have been: those of
    the first version have no checksum."""
    found = []
    for at, bit in itertools.product(range(len(data)), range(8)):
        candidate = bytearray(data)
        candidate[at] ^= 1 << bit
        try:
            decode_identity(bytes(candidate))
        except FormatError:
            continue
        found.append(bytes(candidate))
    return found[0] if len(found) == 1 else None
