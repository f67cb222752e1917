"""What the ledger does in the background, and when.

    settle    when unsettled bytes or extents exceed their bounds, when records have waited for the settle
              interval, and soon after a start for what earlier incarnations left
    merge     after settling, while there is something to merge
    retain    every retention check interval
    collect   when something doomed is due
    sweep     some time after the start, and then every hour

One task does one of these at a time. What fails is logged and tried again later; nothing here can fail an
append or a read.
"""

import asyncio
import logging
from collections.abc import Callable

from penstock.clock import Clock
from penstock.metadata.image import ClusterImage, WalRef
from penstock.storage.flusher import Flusher
from penstock.storage.garbage import Garbage
from penstock.storage.ledger_settings import LedgerSettings
from penstock.storage.objects import StoreFullError
from penstock.storage.partition import Partition
from penstock.storage.settler import PartitionKey, Settler
from penstock.storage.wal import WalWriter

logger = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_FIRST_SETTLE_SECONDS = 0.5
_SWEEP_AFTER_SECONDS = 30.0
_SWEEP_EVERY_SECONDS = 3600.0
"""A sweep lists objects, which object stores charge for, and finds only what brokers left that died."""
_RETRY_SECONDS = 5.0


class Upkeep:
    def __init__(
        self,
        *,
        own: WalRef,
        settings: LedgerSettings,
        clock: Clock,
        settler: Settler,
        garbage: Garbage,
        flusher: Flusher,
        writer: WalWriter,
        partitions: dict[PartitionKey, Partition],
        image: Callable[[], ClusterImage],
    ) -> None:
        self._own = own
        self._settings = settings
        self._clock = clock
        self._settler = settler
        self._garbage = garbage
        self._flusher = flusher
        self._writer = writer
        self._partitions = partitions
        self._image = image
        self._wake = asyncio.Event()
        now = clock.monotonic()
        self._not_before = now
        self._retain_at = now + settings.retention_check_interval_ms / 1000
        self._sweep_at = now + _SWEEP_AFTER_SECONDS
        self._earlier_settle_at = now + _FIRST_SETTLE_SECONDS
        self._unsettled_since: float | None = None
        self._settled_bytes = 0
        self._settled_flushes = 0
        flusher.full_at = settings.settle_bytes
        self._merging = False

    def wake(self) -> None:
        """Something may be due: a bound was exceeded, or partitions were opened."""
        self._wake.set()

    @property
    def unsettled_bytes(self) -> int:
        return self._flusher.bytes_written - self._settled_bytes

    # The loop.

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            more = False
            try:
                more = await self.step()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                # The store or the metadata log may be out of reach, or full.
                logger.warning("upkeep failed and will be tried again: %s: %s", type(error).__name__, error)
                self._not_before = self._clock.monotonic() + _RETRY_SECONDS
            if not more:
                await self._rest()

    async def _rest(self) -> None:
        self._wake.clear()
        if self._clock.monotonic() < self._not_before:
            await asyncio.sleep(_TICK_SECONDS)
            return
        timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    async def step(self) -> bool:
        """Do what is due. Whether there is more to do at once."""
        now = self._clock.monotonic()
        if now < self._not_before or self._flusher.ended:
            return False
        full: StoreFullError | None = None
        try:
            if self._should_settle(now):
                await self.settle()
            if self._merging:
                self._merging = await self._settler.merge()
        except StoreFullError as error:
            # What follows needs no space to speak of, and frees some.
            self._merging = False
            full = error
        if now >= self._retain_at:
            self._retain_at = now + self._settings.retention_check_interval_ms / 1000
            await self._settler.retain()
        if now >= self._sweep_at:
            self._sweep_at = now + _SWEEP_EVERY_SECONDS
            await self._garbage.sweep(self._image(), self._settings.delete_delay_ms)
        if self._garbage.waiting:
            await self._garbage.collect(self._image())
        if full is not None:
            raise full
        return self._merging

    def _should_settle(self, now: float) -> bool:
        if self.unsettled_bytes >= self._settings.settle_bytes:
            return True
        if self._flusher.flushes - self._settled_flushes >= self._writer.flushes_max:
            return True
        if self._unsettled_since is None and self._flusher.flushes > self._settled_flushes:
            self._unsettled_since = now
        since = self._unsettled_since
        if since is not None and now - since >= self._settings.settle_interval_ms / 1000:
            return True
        if sum(len(p.unsettled) for p in self._partitions.values()) >= self._settings.settle_extents:
            return True
        # What earlier incarnations left: soon, so that the next start finds little.
        return now >= self._earlier_settle_at and any(len(p.wals) > 1 for p in self._partitions.values())

    async def settle(self) -> bool:
        """Settle everything that is durable now."""
        flusher = self._flusher
        written, flushes = flusher.bytes_written, flusher.flushes
        # Not again for the same bytes while this is under way, nor at once if it fails.
        flusher.full_at = written + self._settings.settle_bytes
        if not await self._settler.settle(flusher, self._writer):
            return False
        self._settled_bytes, self._settled_flushes = written, flushes
        self._unsettled_since = None
        self._merging = True
        return True
