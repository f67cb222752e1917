"""Where settings, a store, a clock and entropy become a running broker.

    bind        reserve the addresses, so that a used port is told before anything else happens
    store       open the directory or the object store
    metadata    read the metadata log to its end
    register    seal the log of the incarnation before, and take the lease: a command in the log
    ledger      recover what this broker leads; its cost is that of the unsettled records
    listen      accept; whoever can connect is answered

No step waits for another broker. A stopping broker first leaves the cluster: what it led has other leaders
then, and it tells clients so. Then it accepts no more, answers what is under way and closes the ledger.

A broker that is fenced, or whose write-ahead log ended, is a new incarnation afterwards: it drops its
connections and starts again from `metadata`, on the same addresses. One whose id was taken by another
process stops, and so does one that cannot read an entry of the metadata log.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.clock import SystemClock
from penstock.entropy import SYSTEM
from penstock.server.limits import Limits
from penstock.server.server import ListenError, Server
from penstock.settings import Settings, SettingsError, parse_listeners
from penstock.storage.stores.objects import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.context import Broker
    from penstock.clock import Clock
    from penstock.cluster.membership import Lost, Membership, ProcessTable
    from penstock.cluster.metadata_log import MetadataLog
    from penstock.entropy import Entropy
    from penstock.log.policy import LogPolicy
    from penstock.metadata.image import ClusterImage, Listener
    from penstock.server.server import Bound, Handle
    from penstock.storage.ledger.ledger import Ledger
    from penstock.storage.ledger.settings import CleanerSettings, LedgerSettings
    from penstock.storage.stores.objects import ObjectStore
    from penstock.storage.wal.port import WalStore

log = logging.getLogger(__name__)

REGISTER_AGAIN_SECONDS = 0.5
"""Pause before a fenced broker registers again, so that a flapping one does not fill the metadata log."""
START_PATIENCE_SECONDS = 30.0
"""A store that sheds load, or a service of keys that is replaced, is back by then."""


class StartError(Exception):
    """The broker cannot start. The message is one sentence for a person."""


class Node:
    """One broker process: its addresses, and the incarnations it goes through.

    `await start()`, then `await run()` until `stop()` is called or the broker cannot go on.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock | None = None,
        open_store: Callable[[Settings], ObjectStore] | None = None,
        make_server: Callable[[Handle, Limits], Server] = Server,
        entropy: Entropy = SYSTEM,
        open_elsewhere: Callable[[str], ObjectStore] | None = None,
    ) -> None:
        """`open_store`: instead of the store that the settings name, to count its requests or fail them;
        `open_elsewhere`: the same for a metadata log that is not there. `make_server`: instead of one that
        listens on sockets."""
        self.settings = settings
        self.entropy = entropy
        self._open_store = open_store or self._named_store
        self.open_elsewhere = open_elsewhere or self._named_elsewhere
        self._make_server = make_server
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.bound: tuple[Bound, ...] = ()
        self._store: ObjectStore | None = None
        self._incarnation: Incarnation | None = None
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()
        self._lost: str | None = None
        self._fatal: str | None = None
        self._removed = False

    async def start(self) -> None:
        """Return when the broker accepts and serves. StartError says why it cannot."""
        from penstock.cluster.home import HomeError
        from penstock.cluster.membership import RegistrationError
        from penstock.cluster.metadata_log import MetadataUnavailableError
        from penstock.metadata.codec import FormatError
        from penstock.storage.ledger.ledger import FencedError

        refused = (
            ListenError,
            StoreError,
            HomeError,
            RegistrationError,
            MetadataUnavailableError,
            SettingsError,
            FencedError,
        )
        try:
            server = self._bind()
            try:
                self._store = self._open_store(self.settings)
                _require_local(self._store, self.settings)
            except BaseException:
                await server.abort()
                raise
            try:
                await self._begin(server)
            except FencedError as error:
                # The others waited longer for its first heartbeat than its start took.
                log.warning("fenced while it started: %s; broker=%d", error, self.settings.broker_id)
                await self.begin_again()
            except (StoreUnavailableError, MetadataUnavailableError) as error:
                await self._begin_later(error)
        except refused as error:
            await self._abandon()
            raise StartError(str(error)) from error
        except FormatError as error:
            await self._abandon()
            raise StartError(f"The store {self.settings.store} cannot be used: {error}") from error
        except BaseException:
            await self._abandon()
            raise

    @property
    def addresses(self) -> tuple[str, ...]:
        """HOST:PORT of each listener."""
        return tuple(f"[{b.host}]:{b.port}" if ":" in b.host else f"{b.host}:{b.port}" for b in self.bound)

    @property
    def broker(self) -> Broker:
        assert self._incarnation is not None, "the broker has not started"
        return self._incarnation.broker

    def stop(self) -> None:
        """Ask the broker to drain and leave. May be called again, from the loop."""
        self._stop.set()

    async def run(self) -> str | None:
        """Serve until `stop`; then drain, leave and return None. Otherwise why the broker had to end."""
        from penstock.metadata.codec import FormatError

        while True:
            await _first_of(self._stop, self._ended)
            incarnation = self._incarnation
            assert incarnation is not None
            if self._stop.is_set() or self._removed:
                await incarnation.leave()
                await self._close_store()
                return self._lost if self._removed else None
            await incarnation.abandon()
            if self._fatal is not None:
                await self._close_store()
                return self._fatal
            log.warning("registering again: %s; broker=%d", self._lost, self.settings.broker_id)
            self._ended.clear()
            try:
                if await _register_again(self):
                    await self._abandon()
                    return None
            except FormatError as error:
                # While it was fenced, the others wrote what it cannot read.
                await self._abandon()
                return _cannot_follow(self.settings.broker_id, error)

    async def kill(self) -> None:
        """End as if the process had died: nothing is drained, nobody is told. For tests."""
        if self._incarnation is not None:
            await self._incarnation.abandon()
        await self._close_store()

    # -- inside ---------------------------------------------------------------------------------------

    def _named_store(self, settings: Settings) -> ObjectStore:
        from penstock.storage import open_store

        if settings.store.startswith(("etcd://", "etcds://")):
            raise SettingsError(
                "etcd holds metadata and no records: give it as --metadata, beside a --store."
            )
        return open_store(settings.store, sync=settings.durability == "fsync", entropy=self.entropy)

    def _named_elsewhere(self, location: str) -> ObjectStore:
        from penstock.cluster.home import open_elsewhere

        return open_elsewhere(location, entropy=self.entropy)

    def _bind(self) -> Server:
        server = self._make_server(_not_yet, limits_of(self.settings))
        wanted = parse_listeners(self.settings.listeners)
        if self.bound:
            ports = {bound.name: bound.port for bound in self.bound}
            bound = [server.bind(one.name, one.host, ports[one.name]) for one in wanted]
        else:
            bound = [server.bind(one.name, one.host, one.port) for one in wanted]
        self.bound = tuple(bound)
        return server

    async def _begin(self, server: Server) -> None:
        assert self._store is not None
        self._incarnation = incarnation = Incarnation(self, self._store, server)
        await incarnation.begin()

    async def _begin_later(self, error: Exception) -> None:
        """A store that gave the metadata log and then does not answer, or refuses, is asked again for a
        while. One that gave nothing may not be the right one, and that is told at once."""
        from penstock.cluster.metadata_log import MetadataUnavailableError

        if self._incarnation is None or not self._incarnation.found_cluster:
            raise error
        deadline = self.clock.monotonic() + START_PATIENCE_SECONDS
        while True:
            log.warning("could not start yet: %s; broker=%d", error, self.settings.broker_id)
            await asyncio.sleep(REGISTER_AGAIN_SECONDS)
            try:
                await self.begin_again()
                return
            except (StoreUnavailableError, MetadataUnavailableError) as again:
                if self.clock.monotonic() >= deadline:
                    raise
                error = again

    async def begin_again(self) -> None:
        """Another incarnation, on the same addresses. What an attempt before it left running is ended."""
        if self._incarnation is not None:
            await self._incarnation.abandon()
        await self._begin(self._bind())

    def end_incarnation(self, reason: str, *, fatal: bool, removed: bool = False) -> None:
        """Called by the incarnation: it can write no more, or holds no lease any more. `removed`: an
        administrator wants it gone, who may wait for an answer from this very broker."""
        self._lost = reason
        self._removed = self._removed or removed
        if fatal:
            self._fatal = reason
        self._ended.set()

    @property
    def stopping(self) -> asyncio.Event:
        return self._stop

    async def _abandon(self) -> None:
        if self._incarnation is not None:
            await self._incarnation.abandon()
        await self._close_store()

    async def _close_store(self) -> None:
        if self._store is not None:
            await self._store.close()
            self._store = None


class Incarnation:
    """One registration of the broker, with everything that belongs to it."""

    def __init__(self, node: Node, store: ObjectStore, server: Server) -> None:
        self._node = node
        self._store = store
        self._server = server
        self._settings = node.settings
        self._wal_store: WalStore | None = None
        self._metadata: MetadataLog | None = None
        self._membership: Membership | None = None
        self._ledger: Ledger | None = None
        self.found_cluster = False
        """The metadata log was read."""
        self.broker: Broker

    async def begin(self) -> None:
        from penstock.broker.context import Broker
        from penstock.broker.dispatch import make_handle
        from penstock.storage import open_wal_store
        from penstock.storage.ledger.holdings import Holdings
        from penstock.storage.ledger.ledger import Ledger

        settings, clock, entropy = self._settings, self._node.clock, self._node.entropy
        self._wal_store = wal_store = open_wal_store(
            self._store, file_bytes=settings.wal_segment_bytes, entropy=entropy
        )
        self._metadata = metadata = _metadata_log(self._node, self._store, self._on_unreadable)
        await metadata.open()
        self.found_cluster = True
        self._membership = membership = self._new_membership(wal_store, metadata)
        info = await membership.register()
        self._ledger = ledger = Ledger(
            Holdings(info.wal, self._store, wal_store, _ledger_settings(settings), clock, metadata.propose),
            Policies(settings),
            on_end=lambda reason: self._node.end_incarnation(reason, fatal=False),
        )
        await ledger.open(metadata.image)
        metadata.subscribe(ledger.follow)
        ledger.follow(metadata.image, metadata.image)  # It may have changed while partitions were opened.
        self.broker = Broker(
            settings=settings.at(metadata.image),
            clock=clock,
            metadata=metadata,
            ledger=ledger,
            broker_id=settings.broker_id,
            broker_epoch=info.epoch,
            membership=membership,
            entropy=entropy,
        )
        metadata.subscribe(self._follow_settings)
        await membership.start(ledger)
        self._server.handle = make_handle(self.broker)
        await self._server.start()
        self.broker.services.start()

    def _new_membership(self, wal_store: WalStore, metadata: MetadataLog) -> Membership:
        from penstock.cluster.membership import Membership
        from penstock.cluster.sealing import seal_log
        from penstock.metadata.image import WalRef

        settings = self._settings

        async def seal(broker: int, epoch: int) -> int:
            return await seal_log(metadata, wal_store, WalRef(broker, epoch))

        async def read_ahead(broker: int, epoch: int) -> None:
            wal = WalRef(broker, epoch)
            await wal_store.read_ahead(wal, metadata.image.wal_starts.get(wal, 0))

        return Membership(
            metadata,
            metadata.store,
            self._node.clock,
            seal,
            broker=settings.broker_id,
            listeners=advertised(settings, self._node.bound),
            rack=settings.broker_rack or None,
            incarnation=self._node.entropy.token(8).hex(),
            session_timeout=settings.broker_session_timeout_ms / 1000,
            heartbeat_interval=settings.broker_heartbeat_interval_ms / 1000,
            balance_interval=(
                float(settings.leader_imbalance_check_interval_seconds)
                if settings.auto_leader_rebalance_enable
                else None
            ),
            on_lost=self._on_lost,
            processes=_processes(self._store),
            read_ahead=read_ahead,
        )

    def _on_lost(self, lost: Lost) -> None:
        from penstock.cluster.membership import Lost

        reasons = {
            Lost.FENCED: "The others fenced this broker, because it was silent for too long.",
            Lost.REPLACED: f"Another process registered as broker {self._settings.broker_id}.",
            Lost.REMOVED: f"Broker {self._settings.broker_id} was removed from the cluster.",
        }
        self._node.end_incarnation(reasons[lost], fatal=lost is not Lost.FENCED, removed=lost is Lost.REMOVED)

    def _on_unreadable(self, reason: str) -> None:
        """The others go on from an entry that this broker cannot read, so it must not go on without it. It
        ends like one whose id was taken, and is not started again: the others fence it."""
        self._node.end_incarnation(_cannot_follow(self._settings.broker_id, reason), fatal=True)

    def _follow_settings(self, old: ClusterImage, new: ClusterImage) -> None:
        """Dynamic settings of brokers take effect as soon as the image has them."""
        if old.configs is not new.configs:
            self.broker.settings = self._settings.at(new)
            self._server.limits = limits_of(self.broker.settings)

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
        await self._server.drain(seconds)
        await self._end_work()
        await self._membership.stop()
        await self._close()

    async def abandon(self) -> None:
        """The end without ceremony: of an incarnation that lost its lease, or that did not get so far."""
        await self._server.abort()
        await self._end_work()
        if self._membership is not None:
            await self._membership.stop()
        await self._close()

    async def _end_work(self) -> None:
        if hasattr(self, "broker"):
            await self.broker.stop()
        if self._ledger is not None:
            await self._ledger.close()

    async def _close(self) -> None:
        if self._metadata is not None:
            await self._metadata.close()
        if self._wal_store is not None:
            await self._wal_store.close()


class Policies:
    """The settings that the log obeys, as of an image, for the ledger."""

    def __init__(self, settings: Settings) -> None:
        from penstock.metadata.configs import TopicConfigs

        self._configs = TopicConfigs(settings.broker_id, settings.given)
        self._settings = settings

    def of(self, image: ClusterImage, topic: str) -> LogPolicy:
        from penstock.log.policy import LogPolicy

        config = self._configs.get(image, topic)
        return LogPolicy(
            retention_ms=config.retention_ms,
            retention_bytes=config.retention_bytes,
            segment_bytes=config.segment_bytes,
            segment_ms=config.segment_ms,
            delete=config.delete,
            compact=config.compact,
            min_cleanable_ratio=config.min_cleanable_dirty_ratio,
            min_compaction_lag_ms=config.min_compaction_lag_ms,
            max_compaction_lag_ms=config.max_compaction_lag_ms,
            delete_retention_ms=config.delete_retention_ms,
            log_append_time=config.log_append_time,
            file_delete_delay_ms=config.file_delete_delay_ms,
        )

    def cleaner(self, image: ClusterImage) -> CleanerSettings:
        from penstock.storage.ledger.settings import CleanerSettings

        settings = self._settings.at(image)
        return CleanerSettings(
            enable=settings.log_cleaner_enable,
            backoff_ms=settings.log_cleaner_backoff_ms,
            dedupe_buffer_bytes=settings.log_cleaner_dedupe_buffer_size,
            io_bytes_per_second=settings.log_cleaner_io_max_bytes_per_second,
        )


def _cannot_follow(broker: int, reason: object) -> str:
    return f"Broker {broker} cannot follow the cluster any more: {reason}."


async def _register_again(node: Node) -> bool:
    """Bring a new incarnation up, however long the store takes. True if the broker was stopped meanwhile.
    FormatError if it cannot read the metadata log."""
    from penstock.metadata.codec import FormatError

    pause = REGISTER_AGAIN_SECONDS
    while True:
        try:
            async with asyncio.timeout(pause):
                await node.stopping.wait()
            return True
        except TimeoutError:
            pass
        try:
            await node.begin_again()
            return False
        except FormatError:
            raise
        except Exception as error:
            log.warning("could not register again yet: %s", error)
            pause = min(pause * 2, 5.0)


async def _first_of(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _not_yet(request: object) -> None:
    raise AssertionError("nothing is accepted before the broker is ready")


def _require_local(store: ObjectStore, settings: Settings) -> None:
    """Brokers on several machines are not kept apart by a network file system (`storage/mounts`)."""
    kind = store.local.network_filesystem() if store.local is not None else ""
    if not kind:
        return
    if not settings.store_network_enable:
        raise StoreError(
            f"The store {settings.store} lies on a network file system ({kind}), where brokers on several "
            "machines lose records: use a local disk or s3://..., or set store.network.enable=true if all "
            "brokers of the cluster run on this machine."
        )
    log.warning(
        "the store was found on a network file system type=%s: no broker may run on another machine, and "
        "what a loss of power leaves is up to its server",
        kind,
    )


def _processes(store: ObjectStore) -> ProcessTable | None:
    """Where all brokers of a cluster are processes of one machine, that machine knows which of them run."""
    return store.local.presence() if store.local is not None else None


def _metadata_log(node: Node, store: ObjectStore, on_unreadable: Callable[[str], None]) -> MetadataLog:
    from penstock.cluster.metadata_log import MetadataLog

    settings, entropy = node.settings, node.entropy
    return MetadataLog(
        store,
        node.clock,
        metadata=settings.metadata,
        poll_interval=(settings.metadata_poll_interval_ms or DEFAULT_POLL_MS) / 1000,
        snapshot_entries=settings.metadata_snapshot_entries,
        jitter=entropy.fraction,
        token=lambda: entropy.token(16),
        elsewhere=node.open_elsewhere,
        on_unreadable=on_unreadable,
    )


DEFAULT_POLL_MS = 200
"""How often other brokers' changes are looked for: one small read of the store each."""


def _ledger_settings(settings: Settings) -> LedgerSettings:
    from penstock.storage.ledger.settings import LedgerSettings

    return LedgerSettings(
        tail_cache_bytes=settings.tail_cache_bytes,
        index_cache_bytes=settings.segment_cache_bytes,
        settle_bytes=settings.wal_settle_bytes,
        settle_interval_ms=settings.wal_settle_interval_ms,
        retention_check_interval_ms=settings.log_retention_check_interval_ms,
        producer_expiration_ms=settings.producer_id_expiration_ms,
        delete_delay_ms=settings.log_segment_delete_delay_ms,
    )


def limits_of(settings: Settings) -> Limits:
    return Limits(
        frame_bytes_max=settings.socket_request_max_bytes,
        connections_max=settings.max_connections,
        connections_per_host_max=settings.max_connections_per_ip,
        idle_timeout_ms=settings.connections_max_idle_ms,
        requests_in_flight_max=settings.queued_max_requests,
        memory_bytes_max=settings.queued_max_request_bytes,
        accept_queue=settings.socket_listen_backlog_size,
        send_buffer_bytes=settings.socket_send_buffer_bytes,
        receive_buffer_bytes=settings.socket_receive_buffer_bytes,
    )


def advertised(settings: Settings, bound: tuple[Bound, ...]) -> tuple[Listener, ...]:
    """What clients are told: the advertised address of each listener, else the one it listens on.

    A port of 0 stands for the one that the system chose; an address that means "all of them" is told as
    the name of this machine, because clients cannot connect to it.
    """
    import msgspec

    told = {}
    if settings.advertised_listeners:
        told = {one.name: one for one in parse_listeners(settings.advertised_listeners)}
    listeners = []
    for listener, actual in zip(parse_listeners(settings.listeners), bound, strict=True):
        given = told.get(listener.name, listener)
        host = given.host
        if host in ("", "0.0.0.0", "::"):
            import socket

            host = socket.gethostname()
        listeners.append(msgspec.structs.replace(given, host=host, port=given.port or actual.port))
    return tuple(listeners)
