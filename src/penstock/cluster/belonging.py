"""Whether this is the bucket in which the brokers of the cluster write, or a copy of it.

A bucket names the etcd in which its cluster keeps the metadata log. So whoever starts a broker on a copy of
the bucket, as to try a backup, joins the cluster. That broker would seal logs in the copy, where those who
write them do not see it: they go on, and what they acknowledge then is lost.

A broker says in its lease how many flushes of its log are durable. If the newest of them is not here, and the
broker says so once more, it has it elsewhere. A broker that says nothing more may be dead, and its flush
lost: that is no reason not to start (`sealing`). So nobody waits unless a flush is missing. A copy that has
all that was written until now is not told from the original.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from penstock.cluster.home import HomeError
from penstock.cluster.leases import Lease, lease_key, whole_leases
from penstock.metadata.image import ClusterImage, WalRef
from penstock.storage.stores.objects import ObjectStore
from penstock.storage.wal.objects import flush_key

ALIVE_SECONDS: Final = 5.0
"""A broker that lives says so more often."""
LOOK_SECONDS: Final = 0.5


async def require_own_bucket(
    store: ObjectStore,
    leases_in: ObjectStore,
    leases: Mapping[str, Lease],
    image: Callable[[], ClusterImage],
    read_on: Callable[[], Awaitable[None]],
) -> None:
    """HomeError if a broker that lives writes its log to another bucket than `store`. `leases`: what brokers
    said; more of it is found in `leases_in`. `read_on` brings the image up to date. StoreError."""
    missing = await _missing(store, leases, image, read_on)
    loop = asyncio.get_running_loop()
    until = loop.time() + ALIVE_SECONDS
    while missing and loop.time() < until:
        await asyncio.sleep(LOOK_SECONDS)
        said = await whole_leases(leases_in)
        alive = {key: said[key] for key, lease in missing.items() if _goes_on(lease, said.get(key))}
        for key, lease in (await _missing(store, alive, image, read_on)).items():
            raise HomeError(
                f"This is a copy of the store of cluster {image().cluster_id}: a broker writes its log to "
                f"another one, and flush {lease.flushes - 1} of it is not here ({key}, epoch {lease.epoch}). "
                "A copy cannot share the metadata log of its original."
            )


async def _missing(
    store: ObjectStore,
    leases: Mapping[str, Lease],
    image: Callable[[], ClusterImage],
    read_on: Callable[[], Awaitable[None]],
) -> dict[str, Lease]:
    """The leases of present incarnations whose newest durable flush is not in the store."""

    def needed() -> dict[str, WalRef]:
        """Those whose newest flush must be there, by the image."""
        logs = {lease_key(info.id): info.wal for info in image().live_brokers}
        return {
            key: wal
            for key, wal in logs.items()
            if key in leases
            and leases[key].epoch == wal.epoch
            and leases[key].flushes > image().wal_starts.get(wal, 0)
        }

    gone = [
        key
        for key, wal in needed().items()
        if await store.size(flush_key(wal, leases[key].flushes - 1)) is None
    ]
    if not gone:
        return {}
    # A flush is deleted only after an entry said that it is settled.
    await read_on()
    still = needed()
    return {key: leases[key] for key in gone if key in still}


def _goes_on(before: Lease, now: Lease | None) -> bool:
    return now is not None and now.epoch == before.epoch and now.counter > before.counter
