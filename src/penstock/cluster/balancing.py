"""Which partitions a broker hands to others, and when.

A partition that belongs to another broker goes once that broker is back for a while. A partition that an
administrator wants elsewhere goes at once.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from penstock.cluster.handing_over import Leadership, hand_over, surrender_all
from penstock.cluster.seat import Seat
from penstock.metadata.image import ClusterImage, PartitionKey
from penstock.metadata.placement import HandOver, asked_hand_overs, hand_overs
from penstock.storage.partitions.answers import Surrendered

# A hand-over settles records and stops writes to the partitions meanwhile, so it is done in bites.
HAND_OVERS_PER_ROUND_MAX = 200

logger = logging.getLogger(__name__)


class Balance:
    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self.leadership: Leadership | None = None
        """Who writes the partitions that are led here. Given when the broker starts."""
        self._leaving = False
        self._asked = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._stable_since = 0.0

    def start(self, leadership: Leadership | None) -> None:
        self.leadership = leadership
        self._stable_since = self._seat.clock.monotonic()

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.live_brokers != new.live_brokers:
            self._stable_since = self._seat.clock.monotonic()
        if new.moves is not old.moves or new.live_brokers is not old.live_brokers:
            self._asked.set()

    async def balance(self) -> None:
        """Hand partitions over, if who is alive has not changed for a while."""
        seat, interval = self._seat, self._seat.times.balance_interval
        assert interval is not None
        image = seat.log.image
        if seat.clock.monotonic() - self._stable_since < interval:
            return
        if not seat.is_taken(image) or len(image.live_brokers) < 2:
            return
        plans = hand_overs(image, seat.broker)[:HAND_OVERS_PER_ROUND_MAX]
        if plans:
            await self.hand_over(plans)

    async def obey(self) -> None:
        """Hand over what this broker is asked to, as soon as it is. Until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            try:
                done = await self.hand_over_asked()
            except Exception as error:
                logger.warning("what was asked for was not handed over yet error=%s", error)
                done = False
            if not done:
                await asyncio.sleep(self._seat.times.heartbeat_interval)
                self._asked.set()

    async def hand_over_asked(self) -> bool:
        """Hand over what administrators asked for and can be had. False if some of it stays here for now."""
        while True:
            image = self._seat.log.image
            if not image.moves or not self._seat.is_taken(image):
                return True
            plans = asked_hand_overs(image, self._seat.broker)[:HAND_OVERS_PER_ROUND_MAX]
            if not plans:
                return True
            if not await self.hand_over(plans):
                return False

    async def hand_over(self, plans: Sequence[HandOver]) -> int:
        """Give partitions that this broker leads to others. Returns how many went."""
        async with self._one_at_a_time:
            if self._leaving:
                return 0
            assert self.leadership is not None
            seat = self._seat
            # While this waited, some of it may have gone already: what is not led any more is passed over.
            return await hand_over(seat.log, self.leadership, seat.own, plans, seat.times.heartbeat_interval)

    @asynccontextmanager
    async def leaving(self) -> AsyncIterator[Mapping[PartitionKey, Surrendered]]:
        """Hand nothing over any more. Gives what is settled of all that is led here; it accepts no more
        writes."""
        self._leaving = True
        async with self._one_at_a_time:
            yield await surrender_all(self.leadership) if self.leadership is not None else {}
