"""Reads the metadata log: applies the entries that count, as far as they can be read.

Entries above the floor of the snapshots count (`snapshots`). The reader looks up the floor *after* it read
the entries. The snapshot that permits a deletion exists before it and for ever. So a look that finds no newer
snapshot proves that each entry just read is the first and only one of its number. A reader that is below the
floor goes on from the newest snapshot.

An entry that cannot be read:

    a newer version wrote it      nobody here can go on: FormatError
    damaged, a snapshot beyond    the snapshot holds its effect
    torn, and the last            on a directory, an entry that was never synced when the power went. A broker
                                  that starts heals it (`storage.stores.healing`); a reader takes the log to
                                  end before
    torn, and a broker read it    it was whole then, others built on it: FormatError (`require_unread`)
    damaged otherwise             FormatError that names the object

The reader reads an entry that seems damaged again first (`second_looks`). On an object store nothing is ever
torn: an object is there whole or not at all.

The log ends where an entry is not there. Whoever takes that for granted writes its own entry in the place of
one that is gone, and what follows it then follows another history. So a broker that starts, and a reader at
its first look, ask whether something knows of more (`require_whole`): a later entry, a snapshot, or the lease
of a broker, which says how far it had read.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from penstock.cluster.leases import Lease
from penstock.cluster.second_looks import SecondLooks
from penstock.cluster.snapshots import LOG_PREFIX, SnapshotChain, entry_key, entry_number
from penstock.metadata.apply import apply_to
from penstock.metadata.codec import DamagedError, FormatError, decode_entry
from penstock.metadata.draft import Draft
from penstock.metadata.image import ClusterImage
from penstock.storage.stores.objects import ObjectStore

# A tail is applied in steps of this many entries, so that a long one does not hold up the loop.
ENTRIES_PER_STEP_MAX: Final = 200
READS_AT_ONCE_MAX: Final = 32


class Stuck(NamedTuple):
    """The log cannot be read on."""

    error: FormatError
    """Why, and at which object."""
    torn: range
    """The entries after the image, if all of them are torn and they are the last."""
    found: bytes
    """What was read."""


class LogReader:
    """Reads the log that lies in `store`. `chain` is what is known of its snapshots."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.chain = SnapshotChain(store)

    async def read_to_end(
        self, now: Callable[[], ClusterImage], advance: Callable[[ClusterImage], None]
    ) -> Stuck | None:
        """Read on from the image that `now` gives, to the end; `advance` gets each newer one. The image may
        come forward by itself meanwhile. The torn entries that the log ends with, if there are some.
        FormatError for another entry that cannot be read, and StoreError."""
        stuck = await self._read_on(now, advance)
        looks = SecondLooks()
        while stuck is not None and isinstance(stuck.error, DamagedError):
            pause = looks.pause(stuck.found)
            if pause is None:
                break
            await asyncio.sleep(pause)
            stuck = await self._read_on(now, advance)
        if stuck is not None and not stuck.torn:
            raise stuck.error
        return stuck

    async def _read_on(
        self, now: Callable[[], ClusterImage], advance: Callable[[ClusterImage], None]
    ) -> Stuck | None:
        while True:
            start = now().version
            found, ended = await self._entries(start + 1)
            await self.chain.look()
            if self.chain.floor > start:
                await self._take_snapshot(now, advance)
                continue
            # As far as nobody applied them meanwhile.
            tail = apply_tail(now(), found[now().version - start :])
            if tail.image is not now():
                advance(tail.image)
            if tail.error is None:
                if ended and self.chain.version > tail.image.version:
                    # An entry is gone, and a snapshot holds its effect.
                    await self._take_snapshot(now, advance)
                elif ended:
                    return None
                continue
            number = tail.image.version + 1
            if isinstance(tail.error, DamagedError) and self.chain.version >= number:
                await self._take_snapshot(now, advance)
                continue
            torn = tail.torn if ended and can_be_torn(self._store) else range(0)
            return Stuck(unreadable(tail.error, entry_key(number)), torn, found[number - 1 - start])

    async def require_whole(
        self,
        now: Callable[[], ClusterImage],
        advance: Callable[[ClusterImage], None],
        leases: Mapping[str, Lease],
    ) -> None:
        """FormatError if the log was not read to its end, because an entry is gone. `leases`: what brokers
        say, by the key of each. StoreError."""
        entries = await self._entries_beyond(now().version)
        said = {key: lease.version for key, lease in leases.items()}
        if max((*entries, *said.values()), default=0) <= now().version:
            return
        # Others may have written since. Each of those had read the entries before its own.
        await self.read_to_end(now, advance)
        version = now().version
        if entries and max(entries) > version:
            later = entry_key(min(number for number in entries if number > version))
            raise FormatError(
                f"{entry_key(version + 1)} is not there, and {later} is: bring it back from a backup, or, in "
                "a copy that was made while brokers ran, take the later ones away"
            )
        for key, read in said.items():
            if read > version:
                raise FormatError(
                    f"the metadata log ends at entry {version}, and a broker had read entry {read} ({key}): "
                    f"bring the entries after {entry_key(version)} back from a backup, or delete {key} to go "
                    "on without what they said"
                )

    async def _entries_beyond(self, version: int) -> list[int]:
        """Entries after the end. Those of the same hundred are enough: an entry is followed by the next."""
        prefix = entry_key(version + 2)[:-2] if version else LOG_PREFIX
        numbers = [entry_number(info.key) async for info in self._store.list(prefix)]
        return [number for number in numbers if number is not None and number > version]

    async def _take_snapshot(
        self, now: Callable[[], ClusterImage], advance: Callable[[ClusterImage], None]
    ) -> None:
        image = await self.chain.load()
        if image.version > now().version:
            advance(image)

    async def _entries(self, first: int) -> tuple[list[bytes], bool]:
        """Entries from `first` on, a bounded number, and whether the end was reached.

        Mostly there is nothing new, so one is asked for; but a long tail on a distant store is read many
        entries at a time.
        """
        found: list[bytes] = []
        window = 1
        while len(found) < ENTRIES_PER_STEP_MAX:
            numbers = range(first + len(found), first + len(found) + window)
            if window == 1:
                answers = [await self._store.get(entry_key(numbers.start))]
            else:
                answers = list(await asyncio.gather(*(self._store.get(entry_key(n)) for n in numbers)))
            for data in answers:
                if data is None:
                    return found, True
                found.append(data)
            window = min(2 * window, READS_AT_ONCE_MAX)
        return found, False


class Tail(NamedTuple):
    image: ClusterImage
    error: FormatError | None
    """Why the entry after the image could not be read."""
    torn: range
    """The entries after the image, if all of them are torn."""


def apply_tail(image: ClusterImage, found: Sequence[bytes]) -> Tail:
    """Apply entries, the first of which is the one after `image`."""
    draft = Draft(image)
    numbers = range(image.version + 1, image.version + 1 + len(found))
    for number, data in zip(numbers, found, strict=True):
        try:
            entry = decode_entry(data, number)
        except FormatError as error:
            rest = range(number, numbers.stop)
            all_torn = all(is_torn(n, found[n - numbers.start]) for n in rest)
            return Tail(draft.image(), error, rest if all_torn else range(0))
        apply_to(draft, entry.commands)
    return Tail(draft.image() if found else image, None, range(0))


def is_torn(number: int, data: bytes) -> bool:
    try:
        decode_entry(data, number)
    except DamagedError as error:
        return error.torn
    except FormatError:
        return False
    return False


def require_unread(torn: range, leases: Mapping[str, Lease]) -> None:
    """FormatError if a broker says that it had read one of these entries: it was whole, and what followed
    from it (records of a broker that it registered, a log that was deleted) would be lost with it."""
    for key, lease in leases.items():
        if lease.version >= torn.start:
            raise FormatError(
                f"metadata entry {torn.start} is cut short, and a broker had read it ({key}): bring "
                f"{entry_key(torn.start)} back from a backup, or delete {key} to go on without what it said"
            )


def can_be_torn(store: ObjectStore) -> bool:
    return store.local is not None


async def heal(store: ObjectStore, torn: range, replacement: Callable[[int], bytes]) -> list[str]:
    """Replace torn entries by what `replacement` gives for their numbers. The names of what was set aside;
    none if they are not torn any more. RunningBrokersError, StoreError."""
    from penstock.storage.stores.healing import replace_torn

    local = store.local
    assert local is not None, "only files are torn"
    keys = {entry_key(number): number for number in torn}
    work = partial(
        replace_torn,
        local,
        {key: replacement(number) for key, number in keys.items()},
        entry_key(torn.stop),
        torn.start,
        lambda key, data: is_torn(keys[key], data),
    )
    return await local.run(work)


def unreadable(error: FormatError, key: str) -> FormatError:
    """The error, saying which object it is about and what to do."""
    if not isinstance(error, DamagedError):
        return error
    return DamagedError(f"{error} ({key}); `penstock store repair` says what can be saved", torn=error.torn)
