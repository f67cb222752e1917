"""The HTTP port of a broker: which address it has, and which page is where.

    /metrics        what `exposition` writes; in OpenMetrics' form for those who accept it
    /health/live    200 as long as the broker's loop turns
    /health/ready   200 while the broker really serves (`health`), else 503 with the reasons

Every other path is 404. A console would be one more entry in `Monitor.pages`, with prefixes after the exact
paths. What only /metrics needs is loaded by a thread when it is first asked for: the loop does not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from importlib import import_module
from time import time
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.metering import Meters
from penstock.monitor.health import Health
from penstock.monitor.http import Asked, HttpServer, Page, plain
from penstock.monitor.stalls import Stalls
from penstock.monitor.store_meter import StoreMeter
from penstock.settings.http import parse_http_address
from penstock.storage.ledger.flush_times import FlushTimes
from penstock.storage.partitions.traffic import TopicTraffic

if TYPE_CHECKING:
    from penstock.monitor.exposition import Exposition
    from penstock.monitor.subject import Subject
    from penstock.settings import Settings
    from penstock.storage.ledger.ledger import Ledger
    from penstock.storage.stores.objects import ObjectStore


class Counted(NamedTuple):
    """What the process counts from its first moment to its last, whatever its incarnations."""

    meters: Meters
    flushes: FlushTimes
    traffic: TopicTraffic
    records: StoreMeter
    """Requests to the store."""
    metadata: StoreMeter
    """Requests to where the metadata log is, if that is not the store."""
    stalls: Stalls
    started_at: float
    """Seconds since the epoch."""


class Monitor:
    """One for each broker process."""

    def __init__(self, subject: Subject, settings: Settings) -> None:
        self._subject = subject
        self._settings = settings
        self.counted = Counted(
            Meters(timed=True),
            FlushTimes(),
            TopicTraffic(settings.metrics_topics_max),
            StoreMeter("records"),
            StoreMeter("metadata"),
            Stalls(self._ring),
            time(),
        )
        self.health = Health(subject)
        self.pages: dict[str, Callable[[Asked], Awaitable[Page]]] = {
            "/metrics": self._metrics,
            "/health/live": self._live,
            "/health/ready": self._ready,
        }
        self.server = HttpServer(self._answer, settings.http_max_connections)
        host, port = parse_http_address(settings.http_address)
        port = self.server.bind(host, port)
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        """HOST:PORT, with the real port."""
        self._exposition: asyncio.Task[Exposition] | None = None

    async def start(self) -> None:
        await self.server.start()
        self.counted.stalls.start()

    async def close(self) -> None:
        self.counted.stalls.stop()
        await self.server.close()
        if self._exposition is not None:
            await (await self._exposition).stop()

    # -- what is counted ------------------------------------------------------------------------------

    def watch_store(self, store: ObjectStore) -> None:
        """Count the requests to the store."""
        self.counted.records.watch(store)

    def opener(self, open_store: Callable[[str], ObjectStore]) -> Callable[[str], ObjectStore]:
        """`open_store`, for the place of the metadata log: requests to what it opens are counted."""
        return lambda location: self.counted.metadata.watch(open_store(location))

    def watch_ledger(self, ledger: Ledger) -> None:
        """Count what a new incarnation appends and reads, beyond what those before it did."""
        ledger.traffic = self.counted.traffic
        ledger.flush_times = self.counted.flushes

    def _ring(self) -> None:
        self.counted.meters.ring()
        self.counted.flushes.ring()

    # -- pages ----------------------------------------------------------------------------------------

    async def _answer(self, asked: Asked) -> Page:
        page = self.pages.get(asked.path)
        return await page(asked) if page is not None else plain(HTTPStatus.NOT_FOUND)

    async def _live(self, _asked: Asked) -> Page:
        return self.health.live()

    async def _ready(self, _asked: Asked) -> Page:
        return await self.health.ready()

    async def _metrics(self, asked: Asked) -> Page:
        if self._exposition is None:
            self._exposition = asyncio.ensure_future(self._load())
        exposition = await asyncio.shield(self._exposition)
        return await exposition.page(asked.headers.get("accept", ""))

    async def _load(self) -> Exposition:
        module = await asyncio.to_thread(import_module, "penstock.monitor.exposition")
        made: Exposition = module.Exposition(self._subject, self.counted, self.server, self._settings)
        return made
