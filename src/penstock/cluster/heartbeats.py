"""A broker's own lease. Heartbeats keep it: they overwrite live/<broker>, and change no metadata."""

import asyncio
from collections.abc import Callable

from penstock.cluster.leases import Lease, LeaseTable, decode_lease, encode_lease, lease_key
from penstock.cluster.seat import Seat
from penstock.metadata.levels import LEVEL_MAX
from penstock.storage.stores.objects import StoreError


class Heartbeats:
    def __init__(self, seat: Seat, leases: LeaseTable) -> None:
        """`leases`: what is known of the others. Nobody is blamed for a store that was out."""
        self._seat = seat
        self._leases = leases
        self._counter = 0
        self.durable_flushes: Callable[[], int] = lambda: 0
        """How many flushes of this incarnation's log are durable."""
        self._probation_until = 0.0
        self.heard_at = 0.0
        """When the last heartbeat that was written began."""
        self.lease_until = 0.0
        """Until then, by this broker's own clock, nobody else can lead what it leads: the others wait for
        the session time-out after the last heartbeat, or for the end of its process. Only freshness of
        reads rests on it, never a write. Who was late with a heartbeat may be about to be fenced. It is sure
        of nothing until it was heard again for a whole session time-out, and has read the metadata log to its
        end after that: it may have been fenced meanwhile. A store may take heartbeats and answer nothing."""

    def registered(self, began: float) -> None:
        """The registration that was begun then is as good as a heartbeat."""
        self.heard_at = began
        self.lease_until = began + self._seat.times.session_timeout

    async def beat(self) -> None:
        """Say once that this incarnation is alive."""
        seat = self._seat
        self._counter += 1
        began = seat.clock.monotonic()
        try:
            await seat.store.put(lease_key(seat.broker), encode_lease(self.lease()))
        except StoreError:
            self._leases.excuse(seat.clock.monotonic())
            raise
        ended = seat.clock.monotonic()
        if ended >= self.heard_at + seat.times.session_timeout:
            self._probation_until = ended + seat.times.session_timeout
        self.heard_at = began
        if min(began, seat.log.complete_as_of) >= self._probation_until:
            self.lease_until = began + seat.times.session_timeout

    def lease(self) -> Lease:
        """What this broker says of itself."""
        log = self._seat.log
        return Lease(
            self._seat.epoch,
            self._counter,
            log.image.version,
            self._seat.clock.time_ms(),
            log.complete_as_of_ms,
            LEVEL_MAX,
            self.durable_flushes(),
            self._seat.logs.boot,
        )

    async def others(self) -> dict[int, Lease]:
        """What each other registered broker last said of itself; for people. StoreError if that cannot be
        read."""
        seat = self._seat
        brokers = [info for info in seat.log.image.brokers.values() if info.id != seat.broker]
        answers = await asyncio.gather(*(seat.store.get(lease_key(info.id)) for info in brokers))
        found = {}
        for info, data in zip(brokers, answers, strict=True):
            lease = decode_lease(data)
            if lease is not None and lease.epoch == info.epoch:
                found[info.id] = lease
        return found
