"""Listens for the other brokers, and replaces those that are silent for the session time-out.

It seals the log of the silent one. Then FenceBroker and AssignLeaders are one entry, and the partitions are
spread over the live brokers. If two brokers do so at once, the first entry counts and the other finds nothing
left to do.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from penstock.cluster.heartbeats import Heartbeats
from penstock.cluster.leases import LeaseTable, decode_lease, lease_key
from penstock.cluster.seat import Seat
from penstock.metadata.commands import AnyCommand, AssignLeaders, FenceBroker
from penstock.metadata.image import NO_LEADER, BrokerInfo, ClusterImage
from penstock.metadata.placement import leaderless_count, successors
from penstock.metadata.refusal import Refusal
from penstock.storage.stores.objects import StoreError

# A look at whether a process runs costs microseconds, and no request to the store.
PROCESS_LOOK_SECONDS = 0.2
# A pause of the watcher is never shorter: the clock and the loop's timers need not agree to the last digit.
WATCH_PAUSE_MIN_SECONDS = 0.005

logger = logging.getLogger(__name__)


class Watch:
    def __init__(self, seat: Seat, leases: LeaseTable, heartbeats: Heartbeats) -> None:
        self._seat = seat
        self._leases = leases
        self._heartbeats = heartbeats
        self._suspects: dict[tuple[int, int], asyncio.Task[None]] = {}

    def pause(self) -> float:
        """How long nobody has to be listened for."""
        watched = self._leases.watched(self._seat.log.image)
        pause = max(WATCH_PAUSE_MIN_SECONDS, self._leases.pause(watched, self._seat.clock.monotonic()))
        return pause if self._seat.processes is None else min(pause, PROCESS_LOOK_SECONDS)

    async def look_at_due(self) -> bool:
        return await self.look(only_due=True)

    async def look(self, *, only_due: bool = False) -> bool:
        """Listen once for the others, and act on those that are silent for too long. `only_due`: listen for
        those only that it is time to listen for. Whether there was anybody to listen for."""
        seat, times = self._seat, self._seat.times
        image = seat.log.image
        if not seat.is_taken(image):
            return False
        self._leases.forget(image.live_brokers)
        began = seat.clock.monotonic()
        if began - self._heartbeats.heard_at > times.session_timeout / 2:
            # Who cannot make itself heard is in no position to judge others.
            self._leases.excuse(began)
            return False
        watched = self._leases.watched(image)
        if seat.processes is not None:
            # Of everybody, also of those that others listen for: this costs nothing.
            for info in image.live_brokers:
                self._leases.note(info, seat.processes.is_gone(info.id, info.epoch), began)
        if only_due:
            watched = self._leases.due(watched, began)
        try:
            await asyncio.gather(*(self._listen(info) for info in watched))
        except StoreError:
            self._leases.excuse(seat.clock.monotonic())
            raise
        self._prepare(self._leases.late(image))
        stagger = max(times.heartbeat_interval, times.session_timeout / 4)
        for info in self._leases.overdue(image, stagger, began):
            await self._fence(info)
        if image.controller_id == seat.broker and leaderless_count(image):
            await self._adopt()
        return bool(watched)

    async def stop(self) -> None:
        """Read nothing ahead any more."""
        tasks = list(self._suspects.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _prepare(self, late: Sequence[BrokerInfo]) -> None:
        """Read what a takeover would wait for while the time-out runs: once for each silence."""
        suspects = {(info.id, info.epoch): None for info in late}
        for suspect in [one for one in self._suspects if one not in suspects]:
            self._suspects.pop(suspect).cancel()
        for suspect in [one for one in suspects if one not in self._suspects]:
            self._suspects[suspect] = asyncio.create_task(self._look_ahead(*suspect), name="read ahead")

    async def _look_ahead(self, broker: int, epoch: int) -> None:
        with suppress(StoreError):
            await self._seat.logs.read_ahead(broker, epoch)

    async def _listen(self, info: BrokerInfo) -> None:
        clock = self._seat.clock
        began = clock.monotonic()
        lease = decode_lease(await self._seat.store.get(lease_key(info.id)))
        if lease is not None and lease.epoch != info.epoch:
            lease = None
        self._leases.hear(info, lease, began, clock.monotonic())

    async def _fence(self, info: BrokerInfo) -> None:
        """Declare a silent broker dead and share out what it led."""
        seat = self._seat
        silence = self._leases.silence(info)
        flush_count = await seat.logs.seal(info.id, info.epoch)

        def decide(image: ClusterImage) -> list[AnyCommand]:
            if not (image.is_current(info.id, info.epoch) and seat.is_taken(image)):
                return []
            commands: list[AnyCommand] = [FenceBroker(info.id, info.epoch, flush_count)]
            moves = successors(image, info.id)
            if moves:
                commands.append(AssignLeaders(seat.broker, seat.epoch, moves))
            return commands

        result = await seat.log.propose(decide)
        if isinstance(result, Refusal):
            logger.warning("fencing was refused broker=%d reason=%s", info.id, result.message)
        else:
            logger.info("fenced broker=%d epoch=%d silent_seconds=%.1f", info.id, info.epoch, silence)
            if seat.processes is not None and seat.processes.is_gone(info.id, info.epoch):
                seat.processes.forget(info.id, info.epoch)

    async def _adopt(self) -> None:
        """Give partitions without a leader to those alive."""
        seat = self._seat

        def decide(image: ClusterImage) -> list[AnyCommand]:
            moves = successors(image, NO_LEADER) if seat.is_taken(image) else ()
            return [AssignLeaders(seat.broker, seat.epoch, moves)] if moves else []

        result = await seat.log.propose(decide)
        if isinstance(result, Refusal):
            logger.warning("partitions without a leader were not assigned reason=%s", result.message)
