"""One registration of a broker, with all its parts: built in order, ended in the other order."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.broker.context import Broker
from penstock.broker.dispatch import make_handle
from penstock.cluster.membership import Lost, Membership
from penstock.cluster.metadata_log import MetadataLog
from penstock.cluster.sealing import SharedLogs
from penstock.cluster.seat import Seat, Times
from penstock.metadata.commands import RegisterBroker
from penstock.metadata.image import BrokerInfo
from penstock.node.first_users import add_first_users
from penstock.node.settings import Policies, advertised, ledger_settings, limits_of, rate_of_host
from penstock.storage.ledger.ledger import Ledger
from penstock.storage.partitions.holdings import Holdings
from penstock.storage.wal.opening import open_wal_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.broker.metering import Meters
    from penstock.clock import Clock
    from penstock.cluster.seat import ProcessTable
    from penstock.entropy import Entropy
    from penstock.metadata.image import ClusterImage
    from penstock.monitor.tracing import Tracing
    from penstock.server.server import Bound, Server
    from penstock.settings import Settings
    from penstock.storage.stores.objects import ObjectStore
    from penstock.storage.wal.port import WalStore

log = logging.getLogger(__name__)

DEFAULT_POLL_MS = 200
"""How often other brokers' changes are looked for: one small read of the store each."""


class Surroundings(NamedTuple):
    """The outside world of a broker, which it is handed."""

    clock: Clock
    entropy: Entropy
    store: ObjectStore
    open_elsewhere: Callable[[str], ObjectStore]
    """The place of a metadata log that is not in the store."""
    meters: Meters
    """What the process counts of requests."""
    watch: Callable[[Ledger], None]
    """Called with each ledger before it is opened."""
    tracing: Tracing | None = None


class End(NamedTuple):
    """Why an incarnation can write no more, or holds no lease any more."""

    reason: str
    fatal: bool = False
    """The broker must not begin again."""
    removed: bool = False
    """An administrator wants it gone, who may wait for an answer from this very broker."""


class Incarnation:
    """One registration of the broker, with everything that belongs to it."""

    def __init__(
        self,
        settings: Settings,
        surroundings: Surroundings,
        server: Server,
        bound: tuple[Bound, ...],
        on_end: Callable[[End], None],
        first_users: Mapping[str, str] | None = None,
    ) -> None:
        """`server` is bound to the addresses `bound`. `on_end` is called when this incarnation is over."""
        self._settings = settings
        self._surroundings = surroundings
        self.server = server
        self._bound = bound
        self._on_end = on_end
        self._first_users = first_users or {}
        self._wal_store: WalStore | None = None
        self._metadata: MetadataLog | None = None
        self._membership: Membership | None = None
        self._ledger: Ledger | None = None
        self._broker: Broker | None = None
        self.serves = False
        """It accepts, and has not begun to end."""

    @property
    def broker(self) -> Broker:
        assert self._broker is not None, "the broker has not started"
        return self._broker

    @property
    def found_cluster(self) -> bool:
        """The store gave a cluster to this incarnation, whatever came then."""
        return self._metadata is not None and self._metadata.found

    # -- start ---------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Return when the broker accepts and serves."""
        self._wal_store = wal_store = open_wal_store(
            self._surroundings.store,
            file_bytes=self._settings.wal_segment_bytes,
            entropy=self._surroundings.entropy,
        )
        self._metadata = metadata = self._new_metadata_log()
        await metadata.open()
        self._membership = membership = self._new_membership(wal_store, metadata)
        info = await membership.register()
        self._ledger = ledger = self._new_ledger(wal_store, metadata, info)
        self._surroundings.watch(ledger)
        await ledger.open(metadata.image)
        metadata.subscribe(ledger.follow)
        ledger.follow(metadata.image, metadata.image)  # It may have changed while partitions were opened.
        self._broker = broker = Broker(
            settings=self._settings.at(metadata.image),
            clock=self._surroundings.clock,
            metadata=metadata,
            ledger=ledger,
            broker_id=info.id,
            broker_epoch=info.epoch,
            membership=membership,
            entropy=self._surroundings.entropy,
            meters=self._surroundings.meters,
        )
        metadata.subscribe(self._follow_settings)
        self._rate_hosts(metadata.image)
        await membership.start(ledger)
        if self._first_users:
            await add_first_users(metadata, self._first_users, self._surroundings.entropy)
        tracing = self._surroundings.tracing
        self.server.handle = make_handle(broker, None if tracing is None else tracing.hook)
        await self.server.start()
        broker.services.start()
        self.serves = True

    def _new_metadata_log(self) -> MetadataLog:
        settings, entropy = self._settings, self._surroundings.entropy
        return MetadataLog(
            self._surroundings.store,
            self._surroundings.clock,
            metadata=settings.metadata,
            poll_interval=(settings.metadata_poll_interval_ms or DEFAULT_POLL_MS) / 1000,
            snapshot_entries=settings.metadata_snapshot_entries,
            jitter=entropy.fraction,
            token=lambda: entropy.token(16),
            elsewhere=self._surroundings.open_elsewhere,
            on_unreadable=self._on_unreadable,
        )

    def _new_membership(self, wal_store: WalStore, metadata: MetadataLog) -> Membership:
        settings = self._settings

        times = Times(
            session_timeout=settings.broker_session_timeout_ms / 1000,
            heartbeat_interval=settings.broker_heartbeat_interval_ms / 1000,
            balance_interval=(
                float(settings.leader_imbalance_check_interval_seconds)
                if settings.auto_leader_rebalance_enable
                else None
            ),
        )
        logs = SharedLogs(metadata, wal_store)
        clock, processes = self._surroundings.clock, _processes(self._surroundings.store)
        applicant = RegisterBroker(
            settings.broker_id,
            listeners=advertised(settings, self._bound),
            rack=settings.broker_rack or None,
            incarnation=self._surroundings.entropy.token(8).hex(),
        )
        seat = Seat(settings.broker_id, metadata, metadata.store, clock, logs, times, processes)
        return Membership(seat, applicant, self._on_lost)

    def _new_ledger(self, wal_store: WalStore, metadata: MetadataLog, info: BrokerInfo) -> Ledger:
        store, clock = self._surroundings.store, self._surroundings.clock
        settings = ledger_settings(self._settings)
        tracing = self._surroundings.tracing
        propose = metadata.propose if tracing is None else tracing.proposing(metadata.propose)
        return Ledger(
            Holdings(info.wal, store, wal_store, settings, clock, propose),
            Policies(self._settings),
            on_end=lambda reason: self._on_end(End(reason)),
        )

    # -- while it serves -----------------------------------------------------------------------------

    def _on_lost(self, lost: Lost) -> None:
        reasons = {
            Lost.FENCED: "The others fenced this broker, because it was silent for too long.",
            Lost.REPLACED: f"Another process registered as broker {self._settings.broker_id}.",
            Lost.REMOVED: f"Broker {self._settings.broker_id} was removed from the cluster.",
        }
        self._on_end(End(reasons[lost], fatal=lost is not Lost.FENCED, removed=lost is Lost.REMOVED))

    def _on_unreadable(self, reason: str) -> None:
        """The others go on from an entry that this broker cannot read, so it must not go on without it. It
        ends like one whose id was taken, and is not started again: the others fence it."""
        self._on_end(End(cannot_follow(self._settings.broker_id, reason), fatal=True))

    def _follow_settings(self, old: ClusterImage, new: ClusterImage) -> None:
        """Dynamic settings of brokers take effect as soon as the image has them."""
        if old.configs is not new.configs:
            self.broker.settings = self._settings.at(new)
            self.server.limits = limits_of(self.broker.settings)
        if old.quotas is not new.quotas:
            self._rate_hosts(new)
        if _lacks(new.credentials, old.credentials) or _lacks(new.tokens, old.tokens):
            self.server.review_logins()

    def _rate_hosts(self, image: ClusterImage) -> None:
        """Quotas of addresses take effect for the next connection."""
        self.server.rate_of_host = rate_of_host(image)

    # -- end -----------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """A controlled stop: hand over and leave the cluster, then drain and finish."""
        assert self._membership is not None
        seconds = self._settings.shutdown_drain_ms / 1000
        try:
            async with asyncio.timeout(seconds):
                await self._membership.leave()
        except Exception as error:
            # The others find out when the lease runs out; nothing that was acknowledged depends on it.
            log.warning("did not leave in order: %s", str(error) or type(error).__name__)
        await self.server.drain(seconds)
        await self._end_work()
        await self._membership.stop()
        await self._close()

    async def abandon(self) -> None:
        """The end without ceremony: of an incarnation that lost its lease, or that did not get so far."""
        self.serves = False
        await self.server.abort()
        await self._end_work()
        if self._membership is not None:
            await self._membership.stop()
        await self._close()

    async def _end_work(self) -> None:
        if self._broker is not None:
            await self._broker.stop()
        if self._ledger is not None:
            await self._ledger.close()

    async def _close(self) -> None:
        if self._metadata is not None:
            await self._metadata.close()
        if self._wal_store is not None:
            await self._wal_store.close()


def cannot_follow(broker: int, reason: object) -> str:
    return f"Broker {broker} cannot follow the cluster any more: {reason}."


def _lacks(new: Mapping[Any, object], old: Mapping[Any, object]) -> bool:
    """Is something of the old gone?"""
    return new is not old and any(key not in new for key in old)


def _processes(store: ObjectStore) -> ProcessTable | None:
    """Where all brokers of a cluster are processes of one machine, that machine knows which of them run."""
    return store.local.presence() if store.local is not None else None
