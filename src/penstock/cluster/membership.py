"""How a broker joins its cluster, stays in it, sees others die and leaves.

    register    seal the log of the incarnation before this one, then RegisterBroker
    heartbeat   overwrite live/<broker> (`heartbeats`)
    watch       a broker that is silent for the session time-out: seal its log, then FenceBroker and
                AssignLeaders in one entry, its partitions spread over those alive (`watching`)
    balance     hand partitions to the brokers they belong to, once those are back for a while, and at once
                those that an administrator wants elsewhere (`balancing`)
    leave       settle and stop writing, seal the own log, then AssignLeaders and RemoveBroker in one entry
    unregister  the same for a broker that does not do it itself
    upgrade     raise the feature level, if all that are alive know it. A new cluster begins at the newest

No step waits for another broker. Sealing comes before the entry that names the number of flushes; if two
brokers do the same at once, the first entry counts and the other's wish finds nothing left to do.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from functools import partial

import msgspec

from penstock.cluster.balancing import Balance
from penstock.cluster.handing_over import Leadership, departure
from penstock.cluster.heartbeats import Heartbeats
from penstock.cluster.leases import LeaseTable, lease_key
from penstock.cluster.metadata_log import MetadataUnavailableError
from penstock.cluster.seat import Seat
from penstock.cluster.watching import Watch
from penstock.metadata.commands import AnyCommand, AssignLeaders, RegisterBroker, RemoveBroker, SetLevel
from penstock.metadata.image import BrokerInfo, ClusterImage, WalRef
from penstock.metadata.levels import LEVEL_MAX
from penstock.metadata.placement import successors
from penstock.metadata.preconditions import check
from penstock.metadata.refusal import Refusal
from penstock.storage.stores.objects import StoreError
from penstock.wire.errors import ErrorCode

# How often a broker that is late is listened for, and whether everything has a leader is looked at.
WATCHES_PER_SESSION = 12

logger = logging.getLogger(__name__)


class Lost(Enum):
    """Why a broker no longer holds its lease."""

    FENCED = "fenced"
    """The others thought it dead. It may register again, as a new incarnation."""
    REPLACED = "replaced"
    """Another process registered with its id. It must stop."""
    REMOVED = "removed"
    """It was unregistered by an administrator."""


class RegistrationError(Exception):
    """The cluster refuses this broker. The message is one sentence for a person."""


class Membership:
    """One incarnation's place in the cluster."""

    def __init__(
        self, seat: Seat, applicant: RegisterBroker, on_lost: Callable[[Lost], None] | None = None
    ) -> None:
        """`applicant`: who registers, and where clients reach it."""
        self._seat = seat
        self._applicant = applicant
        self._on_lost = on_lost
        times = seat.times
        look_interval = min(times.heartbeat_interval, times.session_timeout / WATCHES_PER_SESSION)
        leases = LeaseTable(seat.broker, times.heartbeat_interval, times.session_timeout, look_interval)
        self.heartbeats = Heartbeats(seat, leases)
        self.watch = Watch(seat, leases, self.heartbeats)
        self.balance = Balance(seat)
        self._lost = False
        self._tasks: list[asyncio.Task[None]] = []
        self._unsubscribe: Callable[[], None] | None = None

    @property
    def broker(self) -> int:
        return self._seat.broker

    @property
    def epoch(self) -> int:
        return self._seat.epoch

    async def register(self) -> BrokerInfo:
        """Take the lease as a new incarnation. Its epoch is in what is returned.

        RegistrationError if the cluster refuses; MetadataUnavailableError or StoreError if the store fails.
        """
        while True:
            began = self._seat.clock.monotonic()
            old = self._seat.log.image.brokers.get(self.broker)
            sealed = None
            if old is not None and not old.fenced:
                sealed = await self._seat.logs.seal(self.broker, old.epoch)
            previous = -1 if old is None else old.epoch
            command = msgspec.structs.replace(self._applicant, previous_epoch=previous, sealed=sealed)
            result = await self._seat.log.propose(partial(_registration, command))
            if not isinstance(result, Refusal):
                break
            if result.code not in {ErrorCode.STALE_BROKER_EPOCH, ErrorCode.DUPLICATE_BROKER_REGISTRATION}:
                raise RegistrationError(result.message)
            # Fenced or registered meanwhile: the incarnation to replace is another one now.
            await self._seat.log.catch_up()
        info = result.brokers[self.broker]
        self._seat.epoch = info.epoch
        if self._seat.processes is not None:
            self._seat.processes.announce(self.broker, self.epoch)
        self.heartbeats.registered(began)
        logger.info("registered broker=%d epoch=%d", self.broker, self.epoch)
        return info

    async def start(self, leadership: Leadership | None = None) -> None:
        """Write the first heartbeat, and go on in the background until `stop` or `leave`."""
        self.balance.start(leadership)
        if leadership is not None:
            self.heartbeats.durable_flushes = lambda: leadership.durable_flushes
        self._unsubscribe = self._seat.log.subscribe(self._on_image)
        # Recovery may have taken longer than the others wait for a heartbeat.
        self._check_lease(self._seat.log.image)
        try:
            await self.heartbeat()
        except StoreError as error:
            logger.warning("the first heartbeat was not written error=%s", error)
        times = self._seat.times
        self._begin("heartbeat", self._every(lambda: times.heartbeat_interval, self.heartbeat))
        self._begin("watch brokers", self._every(self.watch.pause, self.watch.look_at_due))
        if leadership is not None:
            self._begin("hand over what is asked for", self.balance.obey())
            interval = times.balance_interval
            if interval is not None:
                self._begin("balance leaders", self._every(lambda: interval, self.balance.balance))

    def _begin(self, name: str, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def stop(self) -> None:
        """Stop heartbeats without a word: the others will fence this broker when its time is up."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.watch.stop()
        if self._seat.processes is not None:
            self._seat.processes.withdraw()

    async def leave(self) -> None:
        """Hand everything over and be forgotten, in one entry. Nothing is written here any more then.

        What was written is settled first, as far as the store lets it, so that the next leaders have little
        to read; what is not settled they find in the sealed log. StoreError or MetadataUnavailableError if
        the store fails: then the others fence this broker when its time is up.
        """
        async with self.balance.leaving() as settled:
            flush_count = await self._seat.logs.seal(self.broker, self.epoch)
            await self.stop()

            def decide(image: ClusterImage) -> list[AnyCommand]:
                if not self._seat.is_taken(image):
                    return []
                return departure(image, self._seat.own, settled, flush_count)

            result = await self._seat.log.propose(decide)
        if isinstance(result, Refusal):
            logger.warning("leaving was refused broker=%d reason=%s", self.broker, result.message)
            return
        logger.info("left the cluster broker=%d epoch=%d", self.broker, self.epoch)
        await self._seat.store.delete(lease_key(self.broker))

    async def unregister(self, broker: int) -> Refusal | None:
        """Remove a broker, dead or alive, and share out what it led. Why not, if it cannot be.

        One that is alive learns of it and stops. MetadataUnavailableError or StoreError if the store fails.
        """
        if broker == self.broker:
            await self.leave()
            self._report(Lost.REMOVED)
            return None
        while True:
            info = (await self._seat.log.catch_up()).brokers.get(broker)
            if info is None:
                message = f"Broker ID {broker} is not currently registered"
                return Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, message)
            flush_count = None if info.fenced else await self._seat.logs.seal(broker, info.epoch)
            result = await self._seat.log.propose(partial(self._removal, info, flush_count))
            if not isinstance(result, Refusal):
                logger.info("removed a broker broker=%d epoch=%d", broker, info.epoch)
                await self._seat.store.delete(lease_key(broker))
                if self._seat.processes is not None:
                    self._seat.processes.forget(broker, info.epoch)
                return None
            if result.code is not ErrorCode.STALE_BROKER_EPOCH:
                return result
            # It registered again, or was fenced, meanwhile.

    def _removal(
        self, info: BrokerInfo, flush_count: int | None, image: ClusterImage
    ) -> list[AnyCommand] | Refusal:
        if not self._seat.is_taken(image):
            return Refusal(ErrorCode.NOT_CONTROLLER, "This broker lost its lease.")
        commands: list[AnyCommand] = [RemoveBroker(info.id, info.epoch, flush_count)]
        moves = successors(image, info.id)
        if moves:
            commands.append(AssignLeaders(self.broker, self.epoch, moves))
        return commands

    async def upgrade(self, level: int, *, validate_only: bool = False) -> Refusal | None:
        """Raise the feature level. Why not, if it cannot be. `validate_only`: nothing is changed.

        MetadataUnavailableError or StoreError if the store fails.
        """
        await self._seat.log.catch_up()
        leases = await self.heartbeats.others() | {self.broker: self.heartbeats.lease()}
        readers = tuple(
            WalRef(broker, lease.epoch) for broker, lease in leases.items() if lease.level >= level
        )

        def decide(image: ClusterImage) -> list[AnyCommand]:
            # A broker that registers meanwhile is not among the readers: then this is refused.
            return [SetLevel(level, readers)] if level != image.level else []

        if validate_only:
            image = self._seat.log.image
            return next(filter(None, (check(image, command) for command in decide(image))), None)
        result = await self._seat.log.propose(decide)
        if isinstance(result, Refusal):
            return result
        logger.info("raised the feature level level=%d version=%d", level, result.version)
        return None

    # In the background.

    async def _every(self, pause: Callable[[], float], work: Callable[[], Awaitable[bool | None]]) -> None:
        """Work that fails is told of once, until it is done again. False says that there was none to do."""
        failing = False
        while True:
            await asyncio.sleep(pause())
            try:
                done = await work()
            except (StoreError, MetadataUnavailableError) as error:
                if not failing:
                    logger.warning("cluster work failed work=%s error=%s", work.__name__, error)
                failing = True
            except Exception:
                logger.exception("cluster work failed work=%s", work.__name__)
            else:
                failing = failing and done is False

    async def heartbeat(self) -> None:
        """Say once that this incarnation is alive, unless it is over."""
        if not self._lost:
            await self.heartbeats.beat()

    def _on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        self.balance.follow(old, new)
        if self._seat.is_taken(old):
            self._check_lease(new)

    def _check_lease(self, image: ClusterImage) -> None:
        if self._seat.is_taken(image):
            return
        info = image.brokers.get(self.broker)
        lost = Lost.REMOVED
        if info is not None:
            lost = Lost.FENCED if info.epoch == self.epoch else Lost.REPLACED
        self._report(lost)

    def _report(self, lost: Lost) -> None:
        self._lost = True
        logger.warning("lost the lease broker=%d epoch=%d how=%s", self.broker, self.epoch, lost.value)
        if self._on_lost is not None:
            self._on_lost(lost)


def _registration(command: RegisterBroker, image: ClusterImage) -> list[AnyCommand]:
    """The very first entry of a cluster also says at which level it begins: nobody has to follow."""
    return [command] if image.version else [SetLevel(LEVEL_MAX), command]
