"""The HTTP port of a broker: which address it has, and which page is where.

    /metrics        what `exposition` writes; in OpenMetrics' form for those who accept it. It may ask for a
                    token (`admission`)
    /health/live    200 as long as the broker's loop turns
    /health/ready   200 while the broker really serves (`health`), else 503 with the reasons

Every other path belongs to the console, which is a process of its own (`web/relay.py`), or is 404 where it is
switched off. What only /metrics needs is loaded by a thread when it is first asked for: the loop does not
wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from importlib import import_module
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.broker.metering import Meters
from penstock.monitor.admission import Tokens
from penstock.monitor.health import Health
from penstock.monitor.stalls import Stalls
from penstock.monitor.store_meter import StoreMeter
from penstock.settings.http import parse_http_address
from penstock.storage.ledger.flush_times import FlushTimes
from penstock.storage.partitions.traffic import TopicTraffic
from penstock.web.pages import Page, plain, send_page
from penstock.web.relay import Relay
from penstock.web.server import HttpServer

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable

    from penstock.certificates import Certificates
    from penstock.monitor.exposition import Exposition
    from penstock.monitor.subject import Subject
    from penstock.settings import Settings
    from penstock.storage.ledger.ledger import Ledger
    from penstock.storage.stores.objects import ObjectStore

FOR_PROBES = 8
"""Connections that pages of the console do not take."""
Headers = dict[bytes, bytes]


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

    def __init__(
        self,
        subject: Subject,
        settings: Settings,
        console: Callable[[], dict[str, Any]] | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        """`console`: what the console is told when it starts; None: there is none."""
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
        self._tokens = Tokens(settings.metrics_token_file) if settings.metrics_token_file else None
        self.pages: dict[str, Callable[[Headers], Awaitable[Page]]] = {
            "/metrics": self._metrics,
            "/health/live": self._live,
            "/health/ready": self._ready,
        }
        most = settings.http_max_connections
        self._console = None if console is None else Relay(console, max(1, most - FOR_PROBES))
        self.server = HttpServer(self, most, certificates)
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
        if self._console is not None:
            await self._console.close()
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

    async def __call__(self, scope: Any, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        page = self.pages.get(scope["path"])
        if page is None and self._console is not None:
            await self._console(scope, receive, send)
        elif page is None:
            await send_page(send, plain(HTTPStatus.NOT_FOUND))
        elif scope["method"] not in ("GET", "HEAD"):
            await send_page(send, plain(HTTPStatus.METHOD_NOT_ALLOWED))
        else:
            await send_page(send, await page(dict(scope["headers"])))

    async def _live(self, _headers: Headers) -> Page:
        return self.health.live()

    async def _ready(self, _headers: Headers) -> Page:
        return await self.health.ready()

    async def _metrics(self, headers: Headers) -> Page:
        if self._tokens is not None:
            refusal = await self._tokens.refusal(headers.get(b"authorization"))
            if refusal is not None:
                return refusal
        if self._exposition is None:
            self._exposition = asyncio.ensure_future(self._load())
        exposition = await asyncio.shield(self._exposition)
        return await exposition.page(headers.get(b"accept", b"").decode("latin-1"))

    async def _load(self) -> Exposition:
        module = await asyncio.to_thread(import_module, "penstock.monitor.exposition")
        made: Exposition = module.Exposition(self._subject, self.counted, self.server, self._settings)
        return made
