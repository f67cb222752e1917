"""How a broker joins its cluster, stays in it, sees others die and leaves.

    register    seal the log of the incarnation before this one, then RegisterBroker
    heartbeat   overwrite live/<broker>; nothing is stored in the metadata log
    watch       a broker that is silent for the session time-out: seal its log, then FenceBroker and
                AssignLeaders in one entry, its partitions spread over those alive
    balance     hand partitions to the brokers they belong to, once those are back for a while, and at once
                those that an administrator wants elsewhere
    leave       settle and stop writing, seal the own log, then AssignLeaders and RemoveBroker in one entry
    unregister  the same for a broker that does not do it itself
    upgrade     raise the feature level, if all that are alive know it. A new cluster begins at the newest

No step waits for another broker. Sealing comes before the entry that names the number of flushes; if two
brokers do the same at once, the first entry counts and the other's wish finds nothing left to do.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Protocol

from penstock.clock import Clock
from penstock.cluster.handing_over import Leadership, departure, hand_over, surrender_all
from penstock.cluster.leases import Lease, LeaseTable, decode_lease, encode_lease, lease_key
from penstock.cluster.metadata_log import MetadataLog, MetadataUnavailableError
from penstock.metadata.commands import (
    AnyCommand,
    AssignLeaders,
    FenceBroker,
    RegisterBroker,
    RemoveBroker,
    SetLevel,
)
from penstock.metadata.image import NO_LEADER, BrokerInfo, ClusterImage, Listener, WalRef
from penstock.metadata.levels import LEVEL_MAX
from penstock.metadata.placement import (
    HandOver,
    asked_hand_overs,
    hand_overs,
    leaderless_count,
    successors,
)
from penstock.metadata.preconditions import check
from penstock.metadata.refusal import Refusal
from penstock.storage.stores.objects import ObjectStore, StoreError
from penstock.wire.errors import ErrorCode

Seal = Callable[[int, int], Awaitable[int]]
"""`seal(broker, epoch)`: after it returns, nobody can acknowledge a write to that incarnation's log. Returns
how many flushes the log holds. May be called again, and by several brokers at once."""

# How often a broker that is late is listened for, and whether everything has a leader is looked at.
WATCHES_PER_SESSION = 12
# A look at whether a process runs costs microseconds, and no request to the store.
PROCESS_LOOK_SECONDS = 0.2
# A pause of the watcher is never shorter: the clock and the loop's timers need not agree to the last digit.
WATCH_PAUSE_MIN_SECONDS = 0.005
# A hand-over settles records and stops writes to the partitions meanwhile, so it is done in bites.
HAND_OVERS_PER_ROUND_MAX = 200

logger = logging.getLogger(__name__)


class ProcessTable(Protocol):
    """Who of this machine runs. Only for speed."""

    def announce(self, broker: int, epoch: int) -> None:
        """From now on this incarnation can be seen to run, until it ends."""

    def withdraw(self) -> None:
        """It need not be seen any more."""

    def is_gone(self, broker: int, epoch: int) -> bool:
        """Whether an incarnation's process has ended. False also if that cannot be told."""

    def forget(self, broker: int, epoch: int) -> None:
        """That incarnation is known to be over."""


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
        self,
        log: MetadataLog,
        store: ObjectStore,
        clock: Clock,
        seal: Seal,
        *,
        broker: int,
        listeners: tuple[Listener, ...],
        rack: str | None = None,
        incarnation: str = "",
        session_timeout: float = 9.0,
        heartbeat_interval: float = 1.0,
        balance_interval: float | None = 5.0,
        on_lost: Callable[[Lost], None] | None = None,
        processes: ProcessTable | None = None,
        read_ahead: Callable[[int, int], Awaitable[None]] | None = None,
    ) -> None:
        """Times are in seconds. `balance_interval` None: leaders are not moved back. `processes`: where all
        brokers are processes of one machine. `read_ahead(broker, epoch)`: that one may soon be replaced."""
        self.broker = broker
        self.epoch = -1
        self._log = log
        self._store = store
        self._clock = clock
        self._seal = seal
        self._listeners = listeners
        self._rack = rack
        self._incarnation = incarnation
        self._session_timeout = session_timeout
        self._heartbeat_interval = heartbeat_interval
        self._balance_interval = balance_interval
        self._on_lost = on_lost
        self._processes = processes
        self._read_ahead = read_ahead
        self._suspects: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._leadership: Leadership | None = None
        look_interval = min(heartbeat_interval, session_timeout / WATCHES_PER_SESSION)
        self._leases = LeaseTable(broker, heartbeat_interval, session_timeout, look_interval)
        self._lost = False
        self._counter = 0
        self._heard_ourselves = 0.0
        self._probation_until = 0.0
        self.lease_until = 0.0
        """Until then, by this broker's own clock, nobody else can lead what it leads: the others wait for
        the session time-out after the last heartbeat, or for the end of its process. Only freshness of
        reads rests on it, never a write. Who was late with a heartbeat may be about to be fenced; it is
        sure of nothing until it was heard again for a whole session time-out."""
        self._leaving = False
        self._asked = asyncio.Event()
        self._handing_over = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._unsubscribe: Callable[[], None] | None = None
        self._stable_since = 0.0

    async def register(self) -> BrokerInfo:
        """Take the lease as a new incarnation. Its epoch is in what is returned.

        RegistrationError if the cluster refuses; MetadataUnavailableError or StoreError if the store fails.
        """
        while True:
            began = self._clock.monotonic()
            old = self._log.image.brokers.get(self.broker)
            sealed = None
            if old is not None and not old.fenced:
                sealed = await self._seal(self.broker, old.epoch)
            command = RegisterBroker(
                broker=self.broker,
                listeners=self._listeners,
                rack=self._rack,
                incarnation=self._incarnation,
                previous_epoch=-1 if old is None else old.epoch,
                sealed=sealed,
            )
            result = await self._log.propose(partial(_registration, command))
            if not isinstance(result, Refusal):
                break
            if result.code not in {ErrorCode.STALE_BROKER_EPOCH, ErrorCode.DUPLICATE_BROKER_REGISTRATION}:
                raise RegistrationError(result.message)
            # Fenced or registered meanwhile: the incarnation to replace is another one now.
            await self._log.catch_up()
        info = result.brokers[self.broker]
        self.epoch = info.epoch
        if self._processes is not None:
            self._processes.announce(self.broker, self.epoch)
        self._heard_ourselves = began
        self.lease_until = began + self._session_timeout
        logger.info("registered broker=%d epoch=%d", self.broker, self.epoch)
        return info

    async def start(self, leadership: Leadership | None = None) -> None:
        """Write the first heartbeat, and go on in the background until `stop` or `leave`."""
        self._leadership = leadership
        self._stable_since = self._clock.monotonic()
        self._unsubscribe = self._log.subscribe(self._on_image)
        # Recovery may have taken longer than the others wait for a heartbeat.
        self._check_lease(self._log.image)
        try:
            await self.heartbeat()
        except StoreError as error:
            logger.warning("the first heartbeat was not written error=%s", error)
        watching = self._every(self._watch_pause, self._watch_due)
        self._tasks = [
            asyncio.create_task(
                self._every(lambda: self._heartbeat_interval, self.heartbeat), name="heartbeat"
            ),
            asyncio.create_task(watching, name="watch brokers"),
        ]
        if leadership is not None:
            self._tasks.append(asyncio.create_task(self._obey(), name="hand over what is asked for"))
            interval = self._balance_interval
            if interval is not None:
                work = self._every(lambda: interval, self.balance)
                self._tasks.append(asyncio.create_task(work, name="balance leaders"))

    async def stop(self) -> None:
        """Stop heartbeats without a word: the others will fence this broker when its time is up."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        tasks, self._tasks = [*self._tasks, *self._suspects.values()], []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._processes is not None:
            self._processes.withdraw()

    async def leave(self) -> None:
        """Hand everything over and be forgotten, in one entry. Nothing is written here any more then.

        What was written is settled first, as far as the store lets it, so that the next leaders have little
        to read; what is not settled they find in the sealed log. StoreError or MetadataUnavailableError if
        the store fails: then the others fence this broker when its time is up.
        """
        self._leaving = True
        async with self._handing_over:
            settled = await surrender_all(self._leadership) if self._leadership is not None else {}
            flush_count = await self._seal(self.broker, self.epoch)
            await self.stop()

            def decide(image: ClusterImage) -> list[AnyCommand]:
                if not image.is_current(self.broker, self.epoch):
                    return []
                return departure(image, WalRef(self.broker, self.epoch), settled, flush_count)

            result = await self._log.propose(decide)
        if isinstance(result, Refusal):
            logger.warning("leaving was refused broker=%d reason=%s", self.broker, result.message)
            return
        logger.info("left the cluster broker=%d epoch=%d", self.broker, self.epoch)
        await self._store.delete(lease_key(self.broker))

    async def unregister(self, broker: int) -> Refusal | None:
        """Remove a broker, dead or alive, and share out what it led. Why not, if it cannot be.

        One that is alive learns of it and stops. MetadataUnavailableError or StoreError if the store fails.
        """
        if broker == self.broker:
            await self.leave()
            self._report(Lost.REMOVED)
            return None
        while True:
            info = (await self._log.catch_up()).brokers.get(broker)
            if info is None:
                message = f"Broker ID {broker} is not currently registered"
                return Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, message)
            flush_count = None if info.fenced else await self._seal(broker, info.epoch)
            result = await self._log.propose(partial(self._removal, info, flush_count))
            if not isinstance(result, Refusal):
                logger.info("removed a broker broker=%d epoch=%d", broker, info.epoch)
                await self._store.delete(lease_key(broker))
                if self._processes is not None:
                    self._processes.forget(broker, info.epoch)
                return None
            if result.code is not ErrorCode.STALE_BROKER_EPOCH:
                return result
            # It registered again, or was fenced, meanwhile.

    def _removal(
        self, info: BrokerInfo, flush_count: int | None, image: ClusterImage
    ) -> list[AnyCommand] | Refusal:
        if not image.is_current(self.broker, self.epoch):
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
        await self._log.catch_up()
        leases = await self.leases() | {self.broker: self.lease()}
        readers = tuple(
            WalRef(broker, lease.epoch) for broker, lease in leases.items() if lease.level >= level
        )

        def decide(image: ClusterImage) -> list[AnyCommand]:
            # A broker that registers meanwhile is not among the readers: then this is refused.
            return [SetLevel(level, readers)] if level != image.level else []

        if validate_only:
            image = self._log.image
            return next(filter(None, (check(image, command) for command in decide(image))), None)
        result = await self._log.propose(decide)
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
        """Say once that this incarnation is alive."""
        if self._lost:
            return
        self._counter += 1
        began = self._clock.monotonic()
        try:
            await self._store.put(lease_key(self.broker), encode_lease(self.lease()))
        except StoreError:
            self._leases.excuse(self._clock.monotonic())
            raise
        ended = self._clock.monotonic()
        if ended >= self._heard_ourselves + self._session_timeout:
            self._probation_until = ended + self._session_timeout
        self._heard_ourselves = began
        if began >= self._probation_until:
            self.lease_until = began + self._session_timeout

    def lease(self) -> Lease:
        """What this broker says of itself."""
        log = self._log
        return Lease(
            self.epoch,
            self._counter,
            log.image.version,
            self._clock.time_ms(),
            log.complete_as_of_ms,
            LEVEL_MAX,
        )

    async def leases(self) -> dict[int, Lease]:
        """What each other registered broker last said of itself; for people. StoreError if that cannot be
        read."""
        brokers = [info for info in self._log.image.brokers.values() if info.id != self.broker]
        answers = await asyncio.gather(*(self._store.get(lease_key(info.id)) for info in brokers))
        found = {}
        for info, data in zip(brokers, answers, strict=True):
            lease = decode_lease(data)
            if lease is not None and lease.epoch == info.epoch:
                found[info.id] = lease
        return found

    def _watch_pause(self) -> float:
        watched = self._leases.watched(self._log.image)
        pause = max(WATCH_PAUSE_MIN_SECONDS, self._leases.pause(watched, self._clock.monotonic()))
        return pause if self._processes is None else min(pause, PROCESS_LOOK_SECONDS)

    async def _watch_due(self) -> bool:
        return await self.watch(only_due=True)

    async def watch(self, *, only_due: bool = False) -> bool:
        """Listen once for the others, and act on those that are silent for too long. `only_due`: listen for
        those only that it is time to listen for. Whether there was anybody to listen for."""
        image = self._log.image
        if not image.is_current(self.broker, self.epoch):
            return False
        self._leases.forget(image.live_brokers)
        began = self._clock.monotonic()
        if began - self._heard_ourselves > self._session_timeout / 2:
            # Who cannot make itself heard is in no position to judge others.
            self._leases.excuse(began)
            return False
        watched = self._leases.watched(image)
        if self._processes is not None:
            # Of everybody, also of those that others listen for: this costs nothing.
            for info in image.live_brokers:
                self._leases.note(info, self._processes.is_gone(info.id, info.epoch), began)
        if only_due:
            watched = self._leases.due(watched, began)
        try:
            await asyncio.gather(*(self._listen(info) for info in watched))
        except StoreError:
            self._leases.excuse(self._clock.monotonic())
            raise
        self._prepare(self._leases.late(image))
        stagger = max(self._heartbeat_interval, self._session_timeout / 4)
        for info in self._leases.overdue(image, stagger, began):
            await self._fence(info)
        if image.controller_id == self.broker and leaderless_count(image):
            await self._adopt()
        return bool(watched)

    def _prepare(self, late: Sequence[BrokerInfo]) -> None:
        """Read what a takeover would wait for while the time-out runs: once for each silence."""
        suspects = {(info.id, info.epoch): None for info in late if self._read_ahead is not None}
        for suspect in [one for one in self._suspects if one not in suspects]:
            self._suspects.pop(suspect).cancel()
        for suspect in [one for one in suspects if one not in self._suspects]:
            self._suspects[suspect] = asyncio.create_task(self._look_ahead(*suspect), name="read ahead")

    async def _look_ahead(self, broker: int, epoch: int) -> None:
        if self._read_ahead is not None:
            with suppress(StoreError):
                await self._read_ahead(broker, epoch)

    async def _listen(self, info: BrokerInfo) -> None:
        began = self._clock.monotonic()
        lease = decode_lease(await self._store.get(lease_key(info.id)))
        if lease is not None and lease.epoch != info.epoch:
            lease = None
        self._leases.hear(info, lease, began, self._clock.monotonic())

    async def _fence(self, info: BrokerInfo) -> None:
        """Declare a silent broker dead and share out what it led."""
        silence = self._leases.silence(info)
        flush_count = await self._seal(info.id, info.epoch)

        def decide(image: ClusterImage) -> list[AnyCommand]:
            if not (image.is_current(info.id, info.epoch) and image.is_current(self.broker, self.epoch)):
                return []
            commands: list[AnyCommand] = [FenceBroker(info.id, info.epoch, flush_count)]
            moves = successors(image, info.id)
            if moves:
                commands.append(AssignLeaders(self.broker, self.epoch, moves))
            return commands

        result = await self._log.propose(decide)
        if isinstance(result, Refusal):
            logger.warning("fencing was refused broker=%d reason=%s", info.id, result.message)
        else:
            logger.info("fenced broker=%d epoch=%d silent_seconds=%.1f", info.id, info.epoch, silence)
            if self._processes is not None and self._processes.is_gone(info.id, info.epoch):
                self._processes.forget(info.id, info.epoch)

    async def _adopt(self) -> None:
        """Give partitions without a leader to those alive."""

        def decide(image: ClusterImage) -> list[AnyCommand]:
            moves = successors(image, NO_LEADER) if image.is_current(self.broker, self.epoch) else ()
            return [AssignLeaders(self.broker, self.epoch, moves)] if moves else []

        result = await self._log.propose(decide)
        if isinstance(result, Refusal):
            logger.warning("partitions without a leader were not assigned reason=%s", result.message)

    def _on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.live_brokers != new.live_brokers:
            self._stable_since = self._clock.monotonic()
        if new.moves is not old.moves or new.live_brokers is not old.live_brokers:
            self._asked.set()
        if old.is_current(self.broker, self.epoch):
            self._check_lease(new)

    def _check_lease(self, image: ClusterImage) -> None:
        if image.is_current(self.broker, self.epoch):
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

    # Balance.

    async def balance(self) -> None:
        """Hand partitions over, if who is alive has not changed for a while."""
        assert self._balance_interval is not None
        image = self._log.image
        if self._clock.monotonic() - self._stable_since < self._balance_interval:
            return
        if not image.is_current(self.broker, self.epoch) or len(image.live_brokers) < 2:
            return
        plans = hand_overs(image, self.broker)[:HAND_OVERS_PER_ROUND_MAX]
        if plans:
            await self.hand_over(plans)

    async def _obey(self) -> None:
        """Hand over what this broker is asked to, as soon as it is."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            try:
                done = await self.hand_over_asked()
            except Exception as error:
                logger.warning("what was asked for was not handed over yet error=%s", error)
                done = False
            if not done:
                await asyncio.sleep(self._heartbeat_interval)
                self._asked.set()

    async def hand_over_asked(self) -> bool:
        """Hand over what administrators asked for and can be had. False if some of it stays here for now."""
        while True:
            image = self._log.image
            if not image.moves or not image.is_current(self.broker, self.epoch):
                return True
            plans = asked_hand_overs(image, self.broker)[:HAND_OVERS_PER_ROUND_MAX]
            if not plans:
                return True
            if not await self.hand_over(plans):
                return False

    async def hand_over(self, plans: Sequence[HandOver]) -> int:
        """Give partitions that this broker leads to others. Returns how many went."""
        async with self._handing_over:
            if self._leaving:
                return 0
            assert self._leadership is not None
            own, pause = WalRef(self.broker, self.epoch), self._heartbeat_interval
            # While this waited, some of it may have gone already: what is not led any more is passed over.
            return await hand_over(self._log, self._leadership, own, plans, pause)


def _registration(command: RegisterBroker, image: ClusterImage) -> list[AnyCommand]:
    """The very first entry of a cluster also says at which level it begins: nobody has to follow."""
    return [command] if image.version else [SetLevel(LEVEL_MAX), command]
