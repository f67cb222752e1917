"""The background work of the ledger, and its times.

    settle    when unsettled bytes or extents exceed their bounds, when records have waited for the settle
              interval, and soon after a start for records that earlier incarnations left
    merge     after settling, while there is something to merge
    retain    every retention check interval
    move      when enough of the store is dead, in objects that something living keeps
    sweep     some time after the start, and then every hour
    collect   when a doomed object is due
    let go    of open files that other brokers deleted, now and then

Settling has one task, the chores that rewrite segments have another, and those that delete a third. So a
store that is slow to delete does not hold up settling, nor the memory or the start of a broker. Each chore
does a bounded amount at a time. A chore that fails is logged and tried again later, by itself. Nothing here
can fail an append or a read.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from penstock.storage.ledger.flusher import Flusher
from penstock.storage.partitions.holdings import Holdings
from penstock.storage.settling.garbage import Garbage
from penstock.storage.settling.moving import Mover
from penstock.storage.settling.settler import Settler
from penstock.storage.wal.port import WalWriter

logger = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_FIRST_SETTLE_SECONDS = 0.5
_SWEEP_AFTER_SECONDS = 30.0
_SWEEP_EVERY_SECONDS = 3600.0
"""A sweep lists objects, which object stores charge for, and finds only what brokers left that died."""
_LET_GO_EVERY_SECONDS = 30.0
_RETRY_SECONDS = 5.0


class _Chore:
    """Something to be done now and then."""

    __slots__ = ("name", "not_before", "work")

    def __init__(self, name: str, work: Callable[[], Awaitable[bool]]) -> None:
        self.name = name
        self.work = work
        """Does what is due, if anything is. True if there is more to do at once."""
        self.not_before = 0.0


class Upkeep:
    def __init__(
        self,
        holdings: Holdings,
        settler: Settler,
        mover: Mover,
        garbage: Garbage,
        flusher: Flusher,
        writer: WalWriter,
    ) -> None:
        self._holdings = holdings
        self._settings = holdings.settings
        self._clock = holdings.clock
        self._partitions = holdings.partitions
        self._settler = settler
        self._mover = mover
        self._garbage = garbage
        self._flusher = flusher
        self._writer = writer
        now = self._clock.monotonic()
        self._retain_at = now + self._settings.retention_check_interval_ms / 1000
        self._sweep_at = now + _SWEEP_AFTER_SECONDS
        self._let_go_at = now + _LET_GO_EVERY_SECONDS
        self._earlier_settle_at = now + _FIRST_SETTLE_SECONDS
        self._unsettled_since: float | None = None
        self._settled_bytes = 0
        self._settled_flushes = 0
        flusher.full_at = self._settings.settle_bytes
        self._merging = False
        self._merging_since = 0.0
        self._wakes = [asyncio.Event() for _ in range(3)]
        self._settling: Sequence[_Chore] = (_Chore("settling", self._settle_if_due),)
        self._rewriting: Sequence[_Chore] = (
            _Chore("merging", self._merge),
            _Chore("retention", self._retain),
            _Chore("moving", self._move),
        )
        self._deleting: Sequence[_Chore] = (
            _Chore("sweeping", self._sweep),
            _Chore("deleting", self._collect),
            _Chore("letting go", self._let_go),
        )

    def wake(self) -> None:
        """Something may be due: a bound was exceeded, or partitions were opened."""
        for event in self._wakes:
            event.set()

    @property
    def unsettled_bytes(self) -> int:
        return self._flusher.bytes_written - self._settled_bytes

    def settle_lag_seconds(self) -> float:
        since = self._unsettled_since
        return self._clock.monotonic() - since if since is not None else 0.0

    def merge_lag_seconds(self) -> float:
        return self._clock.monotonic() - self._merging_since if self._merging else 0.0

    # The loops.

    async def run(self) -> None:
        """Until cancelled."""
        groups = (self._settling, self._rewriting, self._deleting)
        await asyncio.gather(*map(self._repeat, groups, self._wakes))

    async def _repeat(self, chores: Sequence[_Chore], wake: asyncio.Event) -> None:
        while True:
            wake.clear()
            # A chore that finds all done waits for nothing: others have their turn all the same.
            await asyncio.sleep(0)
            if not await self._step(chores):
                await self._rest(chores, wake)

    async def _rest(self, chores: Sequence[_Chore], wake: asyncio.Event) -> None:
        if any(self._clock.monotonic() < chore.not_before for chore in chores):
            await asyncio.sleep(_TICK_SECONDS)
            return
        timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, wake.set)
        try:
            await wake.wait()
        finally:
            timer.cancel()

    async def step(self) -> None:
        """Do what is due, without waiting for the background to come to it."""
        for chores in (self._settling, self._rewriting, self._deleting):
            await self._step(chores)

    async def _step(self, chores: Sequence[_Chore]) -> bool:
        """Do what is due. Whether there is more to do at once."""
        more = False
        for chore in chores:
            if self._flusher.ended:
                return False
            if self._clock.monotonic() < chore.not_before:
                continue
            try:
                more = await chore.work() or more
            except Exception as error:
                # The store or the metadata log may be out of reach, or full.
                logger.warning(
                    "%s failed and will be tried again: %s: %s", chore.name, type(error).__name__, error
                )
                chore.not_before = self._clock.monotonic() + _RETRY_SECONDS
        return more

    # The chores.

    async def _settle_if_due(self) -> bool:
        if self._should_settle(self._clock.monotonic()) and await self.settle():
            # There is more to rewrite and to delete now. Settling itself rests, whatever it could not settle.
            for event in self._wakes[1:]:
                event.set()
        return False

    async def _merge(self) -> bool:
        if self._merging:
            self._merging = await self._settler.merge()
        return self._merging

    async def _retain(self) -> bool:
        now = self._clock.monotonic()
        if now >= self._retain_at:
            self._retain_at = now + self._settings.retention_check_interval_ms / 1000
            await self._settler.retain()
        return False

    async def _move(self) -> bool:
        moved = await self._mover.move()
        return await self._mover.move_manifests() or moved

    async def _sweep(self) -> bool:
        now = self._clock.monotonic()
        if now >= self._sweep_at:
            self._sweep_at = now + _SWEEP_EVERY_SECONDS
            await self._garbage.sweep(self._holdings.image, self._settings.delete_delay_ms)
        return False

    async def _let_go(self) -> bool:
        now = self._clock.monotonic()
        if now >= self._let_go_at:
            self._let_go_at = now + _LET_GO_EVERY_SECONDS
            self._garbage.let_go()
        return False

    async def _collect(self) -> bool:
        return self._garbage.waiting and await self._garbage.collect(self._holdings.image)

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
        # A partition that is being given to another leader is settled by that.
        led = [partition for partition in self._partitions.values() if not partition.closed]
        if sum(len(partition.unsettled) for partition in led) >= self._settings.settle_extents:
            return True
        # What earlier incarnations left: soon, so that the next start finds little.
        return now >= self._earlier_settle_at and any(len(partition.wals) > 1 for partition in led)

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
        if not self._merging:
            self._merging = True
            self._merging_since = self._clock.monotonic()
        return True
