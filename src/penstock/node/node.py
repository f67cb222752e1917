"""Makes a running broker process out of settings, a store, a clock and entropy.

    doors       load certificates and keys; refuse addresses that others can reach and nobody secured
    bind        reserve the addresses, so that a used port is told before anything else happens
    store       open the directory or the object store
    metadata    read the metadata log to its end
    register    seal the log of the incarnation before, and take the lease: a command in the log
    ledger      recover the partitions that this broker leads; the cost is that of the unsettled records
    listen      accept; every client that can connect is answered

No step waits for another broker. A stopping broker first leaves the cluster: its partitions have other
leaders then, and it tells clients so. Then it accepts no more, answers pending requests and closes the
ledger.

A broker that is fenced, or whose write-ahead log ended, is a new incarnation afterwards: it drops its
connections and starts again from `metadata`, on the same addresses. One whose id was taken by another process
stops, and so does one that cannot read an entry of the metadata log.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.metering import Meters
from penstock.clock import SystemClock
from penstock.cluster.home import HomeError, open_elsewhere
from penstock.cluster.membership import RegistrationError
from penstock.cluster.metadata_log import MetadataUnavailableError
from penstock.entropy import SYSTEM
from penstock.metadata.codec import DamagedError, FormatError
from penstock.node.entrances import Entrances
from penstock.node.incarnation import End, Incarnation, Surroundings, cannot_follow
from penstock.node.settings import limits_of
from penstock.server.limits import Limits
from penstock.server.server import ListenError, Server
from penstock.settings import Settings, SettingsError, parse_listeners
from penstock.settings.doors import refuse_open_doors
from penstock.storage.ledger.ledger import FencedError
from penstock.storage.stores.objects import StoreError, StoreUnavailableError
from penstock.storage.stores.opening import open_store as open_named_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.broker.context import Broker
    from penstock.clock import Clock
    from penstock.entropy import Entropy
    from penstock.monitor.monitor import Monitor
    from penstock.monitor.subject import Serving
    from penstock.monitor.tracing import Tracing
    from penstock.server.server import Bound, Handle
    from penstock.storage.stores.objects import ObjectStore

log = logging.getLogger(__name__)

REGISTER_AGAIN_SECONDS = 0.5
"""Pause before a fenced broker registers again, so that a flapping one does not fill the metadata log."""
START_PATIENCE_SECONDS = 30.0
"""A store that sheds load, or a service of keys that is replaced, is back by then."""


_REFUSED = (
    ListenError,
    StoreError,
    HomeError,
    RegistrationError,
    MetadataUnavailableError,
    SettingsError,
    FencedError,
)
"""What a start ends with when the world is not as it should be. Each message is a sentence for a person."""


_PASSING = (FencedError, MetadataUnavailableError, StoreUnavailableError)
"""What may be over a moment later: the store does not answer or refuses, or the others waited longer for the
first heartbeat than the start took."""


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
        first_users: Mapping[str, str] | None = None,
    ) -> None:
        """`open_store`: instead of the store that the settings name, to count its requests or fail them;
        `open_elsewhere`: the same for a metadata log that is not there. `make_server`: instead of one that
        listens on sockets. `first_users`: passwords of those who must be able to log in from the first start
        on."""
        self._first_users = first_users or {}
        self.settings = settings
        self.entropy = entropy
        self._open_store = open_store or self._named_store
        self.open_elsewhere = open_elsewhere or self._named_elsewhere
        self._make_server = make_server
        self.clock: Clock = clock if clock is not None else SystemClock()
        self._entrances = Entrances(settings, self.clock, entropy, lambda: self.broker.image)
        self.bound: tuple[Bound, ...] = ()
        self._store: ObjectStore | None = None
        self._incarnation: Incarnation | None = None
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()
        self._monitor: Monitor | None = None
        self._tracing: Tracing | None = None
        self._meters = Meters()
        self._lost: str | None = None
        self._fatal: str | None = None
        self._removed = False

    async def start(self) -> None:
        """Return when the broker accepts and serves. StartError says why it cannot."""
        try:
            refuse_open_doors(self.settings, self.settings.given)
            await self._entrances.open()
            server = self._bind()
            try:
                await self._open_http()
                self._store = self._open_store(self.settings)
                if self._monitor is not None:
                    self._monitor.watch_store(self._store)
                _require_local(self._store, self.settings)
            except BaseException:
                await server.abort()
                raise
            try:
                await self._begin(server)
            except _PASSING as error:
                await self._begin_later(error)
        except _REFUSED as error:
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
    def http_address(self) -> str:
        """HOST:PORT of the HTTP port; empty if there is none."""
        return self._monitor.address if self._monitor is not None else ""

    @property
    def broker(self) -> Broker:
        assert self._incarnation is not None, "the broker has not started"
        return self._incarnation.broker

    @property
    def serving(self) -> Serving | None:
        """The parts of the incarnation that serves; None while there is none."""
        incarnation, store = self._incarnation, self._store
        if incarnation is None or store is None or not incarnation.serves or self._ended.is_set():
            return None
        from penstock.monitor.subject import Serving

        return Serving(incarnation.broker, incarnation.server, store)

    @property
    def stopping(self) -> bool:
        return self._stop.is_set() or self._removed

    def stop(self) -> None:
        """Ask the broker to drain and leave. May be called again, from the loop."""
        self._stop.set()

    async def run(self) -> str | None:
        """Serve until `stop`; then drain, leave and return None. Otherwise why the broker had to end."""
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
                if await self._register_again():
                    await self._abandon()
                    return None
            except FormatError as error:
                # While it was fenced, the others wrote what it cannot read.
                await self._abandon()
                return cannot_follow(self.settings.broker_id, error)

    async def kill(self) -> None:
        """End as if the process had died: nothing is drained, nobody is told. For tests."""
        if self._incarnation is not None:
            await self._incarnation.abandon()
        await self._close_store()

    # -- inside ---------------------------------------------------------------------------------------

    def _named_store(self, settings: Settings) -> ObjectStore:
        if settings.store.startswith(("etcd://", "etcds://")):
            raise SettingsError(
                "etcd holds metadata and no records: give it as --metadata, beside a --store."
            )
        return open_named_store(settings.store, sync=settings.durability == "fsync", entropy=self.entropy)

    def _named_elsewhere(self, location: str) -> ObjectStore:
        return open_elsewhere(location, entropy=self.entropy)

    def _bind(self) -> Server:
        server = self._make_server(_not_yet, limits_of(self.settings))
        wanted = parse_listeners(self.settings.listeners)
        if self.bound:
            ports = {bound.name: bound.port for bound in self.bound}
            wanted = tuple(one._replace(port=ports[one.name]) for one in wanted)
        self.bound = tuple(
            server.bind(one.name, one.host, one.port, self._entrances.of(one.name)) for one in wanted
        )
        return server

    async def _begin(self, server: Server) -> None:
        assert self._store is not None
        monitor = self._monitor
        surroundings = Surroundings(
            self.clock,
            self.entropy,
            self._store,
            self.open_elsewhere if monitor is None else monitor.opener(self.open_elsewhere),
            self._meters if monitor is None else monitor.counted.meters,
            _unwatched if monitor is None else monitor.watch_ledger,
            self._tracing,
        )
        self._incarnation = incarnation = Incarnation(
            self.settings, surroundings, server, self.bound, self._on_end, self._first_users
        )
        await incarnation.begin()

    async def _begin_later(self, error: Exception) -> None:
        """Begin again for a while. A store that gave nothing at all may not be the right one: that is told at
        once."""
        deadline = self.clock.monotonic() + START_PATIENCE_SECONDS
        found_cluster = self._incarnation is not None and self._incarnation.found_cluster
        told = ""
        while found_cluster and self.clock.monotonic() < deadline:
            if str(error) != told:
                told = str(error)
                log.warning("could not start yet: %s; broker=%d", told, self.settings.broker_id)
            if not isinstance(error, FencedError):
                await asyncio.sleep(REGISTER_AGAIN_SECONDS)
            try:
                await self._begin_again()
                return
            except _PASSING as again:
                error = again
        raise error

    async def _begin_again(self) -> None:
        """Another incarnation, on the same addresses. What an attempt before it left running is ended."""
        if self._incarnation is not None:
            await self._incarnation.abandon()
        await self._begin(self._bind())

    async def _register_again(self) -> bool:
        """Bring a new incarnation up, however long the store takes. True if the broker was stopped meanwhile.
        FormatError if it cannot read the metadata log."""
        pause = REGISTER_AGAIN_SECONDS
        deadline = self.clock.monotonic() + START_PATIENCE_SECONDS
        while True:
            try:
                async with asyncio.timeout(pause):
                    await self._stop.wait()
                return True
            except TimeoutError:
                pass
            try:
                await self._begin_again()
                return False
            except Exception as error:
                # Damage may have come about on the way here.
                passes = isinstance(error, DamagedError) and self.clock.monotonic() < deadline
                if isinstance(error, FormatError) and not passes:
                    raise
                log.warning("could not register again yet: %s", error)
                pause = min(pause * 2, 5.0)

    def _on_end(self, end: End) -> None:
        self._lost = end.reason
        self._removed = self._removed or end.removed
        if end.fatal:
            self._fatal = end.reason
        self._ended.set()

    async def _abandon(self) -> None:
        if self._incarnation is not None:
            await self._incarnation.abandon()
        await self._close_store()

    async def _open_http(self) -> None:
        """Health can be asked for while the broker starts, and until it has ended."""
        if self.settings.http_address:
            from penstock.monitor.monitor import Monitor
            from penstock.node.console import console_options, https, may_read_metrics

            await may_read_metrics(self.settings)
            options = partial(console_options, self.settings, self.bound)
            self._monitor = Monitor(
                self,
                self.settings,
                options if self.settings.console_enable else None,
                await https(self.settings),
            )
            await self._monitor.start()
        if self.settings.otel_exporter_otlp_endpoint:
            from penstock.monitor.tracing import open_tracing

            self._tracing = open_tracing(self.settings, self.clock)

    async def _close_store(self) -> None:
        """The last step of an end: nothing of the broker is left but its HTTP port."""
        await self._entrances.close()
        if self._monitor is not None:
            await self._monitor.close()
        if self._tracing is not None:
            await self._tracing.close()
            self._tracing = None
        if self._store is not None:
            await self._store.close()
            self._store = None


async def _first_of(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _not_yet(request: object) -> None:
    raise AssertionError("nothing is accepted before the broker is ready")


def _unwatched(ledger: object) -> None:
    """Nobody asks for metrics."""


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
