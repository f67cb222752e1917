"""The tail of the metadata log: entries applied as far as they can be read, and what to do with one that
cannot.

    a newer version wrote it      nobody here can go on: FormatError
    damaged, a snapshot beyond    the snapshot holds what it did
    torn, and the last            on a directory, what was never synced when the power went. A broker that
                                  starts heals it (`storage.healing`); a reader takes the log to end before
    damaged otherwise             FormatError that names the object

On an object store nothing is ever torn: an object is there whole or not at all.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from penstock.cluster.snapshots import entry_key
from penstock.metadata.apply import apply_to
from penstock.metadata.codec import DamagedError, FormatError, decode_entry
from penstock.metadata.draft import Draft
from penstock.metadata.image import ClusterImage
from penstock.storage.stores.objects import ObjectStore


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
