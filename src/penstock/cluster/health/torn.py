"""What a loss of power took of a log that nobody synced, as recovery sees it.

With durability=os nobody was promised that it is there: readers pass over it, and it is not hurt.
"""

import contextlib
import itertools
from collections.abc import Mapping

from penstock.log.flush import iter_blocks
from penstock.metadata.image import WalRef
from penstock.storage.stores.files import store_error
from penstock.storage.stores.lanes import Lane
from penstock.storage.stores.local import LocalDirectory
from penstock.storage.wal.file_tail import LogFiles, log_directory

TornFlushes = Mapping[int, frozenset[int]]
"""By number, where the batches lie that are left of a torn flush."""
_LOOKS_MAX = 5


async def torn_flushes(store: LocalDirectory, wal: WalRef, end: int | None) -> TornFlushes:
    """The torn flushes of a log. `end`: its agreed number of flushes; None while it is open."""
    try:
        return await store.run(_torn_flushes, store, wal, end, lane=Lane.READ)
    except OSError as error:
        raise store_error(error, f"could not read {store.root}/{log_directory(wal)}") from error


def _torn_flushes(store: LocalDirectory, wal: WalRef, end: int | None) -> TornFlushes:
    for _ in range(_LOOKS_MAX):
        # Files that are not needed any more are deleted meanwhile, and nothing in those is torn.
        with contextlib.suppress(FileNotFoundError):
            return _look(store, wal, end)
    return {}


def _look(store: LocalDirectory, wal: WalRef, end: int | None) -> TornFlushes:
    found: dict[int, frozenset[int]] = {}
    files = LogFiles(store, wal, store.files.boot_id())
    firsts = files.first_flushes()
    for first, following in itertools.zip_longest(firsts, firsts[1:]):
        file = files.open(first, firsts)
        try:
            if file.is_empty and end is not None and files.was_durable():
                continue  # Gone, and missed.
            stop = min((one for one in (following, end) if one is not None), default=None)
            for flush in file.flushes(stop=stop, sealed=end is not None) if file.may_be_torn else ():
                if flush.damage is not None and flush.damage.torn:
                    blocks = iter_blocks(flush.blocks)
                    found[flush.number] = frozenset(one.position for b in blocks for one in b.batches())
        finally:
            file.close()
    return found
