"""Seals a write-ahead log at its end.

On an object store a log ends at the first number missing above its beginning. The image says where it begins:
flushes below are settled and may be deleted. The objects alone cannot tell. A store may carry out a write
long after its sender gave up and tried again. So a flush, or a seal, can appear once more below the
beginning, with nothing but deleted numbers above it; a log that is sealed there would lose all its records.

The image may be old, too: the log may have been settled further since. So the sealer looks up the beginning
once more *after* it made the seal. If the log had begun beyond the seal by then, the seal lies among deleted
numbers, where it means nothing, and the sealer looks for the true end again. If not, all from that beginning
to the seal was there, and the seal was the first number missing.

The end of a log may be gone: a file or an object was taken away, or cut short. The broker's last lease says
how many flushes were durable, and the log does not end before those. What is not there is unknown then: the
partitions that may have records in it wait for it, as for any object that is gone.

Where no lease says anything, the whole store may have been emptied, perhaps only until somebody brings its
objects back. Then it does not say any more which cluster it is of, or the log lacks the object with which it
begins. Nothing is sealed in such a store: the log would seem to end where it began.
"""

from penstock.cluster.home import IDENTITY_KEY
from penstock.cluster.leases import flushes_said
from penstock.cluster.metadata_log import MetadataLog
from penstock.metadata.image import WalRef
from penstock.storage.stores.objects import StoreUnavailableError
from penstock.storage.wal.port import LogMissingError, WalStore


async def seal_log(log: MetadataLog, wal_store: WalStore, wal: WalRef) -> int:
    """Let nobody write to this log any more; how many flushes it holds. StoreError or
    MetadataUnavailableError if the store fails."""
    said = await flushes_said(log.store, wal, wal_store.boot)
    if not said and await log.home.get(IDENTITY_KEY) is None:
        raise StoreUnavailableError(f"{IDENTITY_KEY} is not there: the store seems to be emptied")
    while True:
        start = log.image.wal_starts.get(wal, 0)
        try:
            count = await wal_store.seal(wal, start, said)
        except LogMissingError:
            if (await log.catch_up()).wal_starts.get(wal, 0) <= start:
                raise
            continue
        if not wal_store.writes_come_late:
            return count
        if (await log.catch_up()).wal_starts.get(wal, 0) <= max(start, count):
            return count


class SharedLogs:
    """The write-ahead logs in the store that all brokers share."""

    def __init__(self, log: MetadataLog, wal_store: WalStore) -> None:
        self._log = log
        self._wal_store = wal_store
        self.boot = "" if wal_store.survives_boot else wal_store.boot.hex()

    async def seal(self, broker: int, epoch: int) -> int:
        return await seal_log(self._log, self._wal_store, WalRef(broker, epoch))

    async def read_ahead(self, broker: int, epoch: int) -> None:
        wal = WalRef(broker, epoch)
        await self._wal_store.read_ahead(wal, self._log.image.wal_starts.get(wal, 0))
