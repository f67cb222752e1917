"""Flushes that are gone from sealed logs: what takes their place when nobody can bring them back.

A flush that is not there is unknown, and brokers do not open the partitions that it may have held records of:
it may come back. A placeholder says that it does not. It is no flush, so whoever reads the log takes it for a
damaged one: the partitions open, and say which records are lost.
"""

import contextlib
from collections.abc import Iterable
from typing import Final

from penstock.cluster.health.mending import CUT
from penstock.cluster.health.repair_report import Step
from penstock.log.flush import FILE_HEADER_SIZE
from penstock.metadata.image import ClusterImage, WalRef
from penstock.storage.stores.objects import ObjectMissingError, ObjectStore
from penstock.storage.wal.file_tail import file_key
from penstock.storage.wal.following import follow_log

PLACEHOLDER: Final = b"Flushes are gone. `penstock store repair --cut` put this in their place.".ljust(
    128, b"\n"
)
"""Longer than a seal, and than the header of a file."""


async def fill_gaps(
    store: ObjectStore, image: ClusterImage, logs: Iterable[WalRef], *, apply: bool
) -> list[Step]:
    """Put placeholders into sealed logs. Without `apply`, say where the first of each log would be."""
    steps: list[Step] = []
    for wal in sorted(logs):
        while (missing := await _first_missing(store, image, wal)) is not None:
            # On an object store object 0 begins the log, so flush n is object n + 1.
            key = file_key(wal, missing if store.local is not None else missing + 1)
            if apply and not await store.create(key, PLACEHOLDER):
                stored = await store.get(key) or b""
                if len(stored) >= FILE_HEADER_SIZE and any(stored[:FILE_HEADER_SIZE]):
                    break  # Brought back just now.
                await store.put(key, PLACEHOLDER)
            steps.append(Step(CUT, key, f"flush {missing} is not there, and brokers wait for it no more"))
            if not apply:
                break
    return steps


async def _first_missing(store: ObjectStore, image: ClusterImage, wal: WalRef) -> int | None:
    end = image.sealed.get(wal)
    if end is None or wal not in image.wal_uses:
        return None
    tail = follow_log(store, wal, image.wal_starts.get(wal, 0))
    with contextlib.suppress(ObjectMissingError):  # Between two files.
        await tail.read_on(end)
    return tail.next_flush if tail.next_flush < end else None
