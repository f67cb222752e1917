"""The HTTP port of a broker: which address it has, and which page is where.

    /metrics        what `exposition` renders; in OpenMetrics' form for those who accept it
    /health/live    200 as long as the broker's loop turns
    /health/ready   200 while the broker really serves (`health`), else 503 with the reasons

Every other path is 404. A console would be one more entry in `Monitor.pages`, with prefixes after the exact
paths. What only /metrics needs is loaded by a thread when the port opens: the loop does not wait for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from penstock.monitor.health import Health
from penstock.monitor.http import Asked, HttpServer, Page, plain
from penstock.settings.http import parse_http_address

if TYPE_CHECKING:
    from penstock.monitor.subject import Subject
    from penstock.settings import Settings


class Monitor:
    """One for each broker process: it outlives incarnations."""

    def __init__(self, subject: Subject, settings: Settings) -> None:
        self.health = Health(subject)
        self.pages: dict[str, Callable[[Asked], Awaitable[Page]]] = {
            "/health/live": self._live,
            "/health/ready": self._ready,
        }
        self._server = HttpServer(self._answer, settings.http_max_connections)
        host, port = parse_http_address(settings.http_address)
        port = self._server.bind(host, port)
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        """HOST:PORT, with the real port."""

    async def start(self) -> None:
        await self._server.start()

    async def close(self) -> None:
        await self._server.close()

    async def _answer(self, asked: Asked) -> Page:
        page = self.pages.get(asked.path)
        return await page(asked) if page is not None else plain(HTTPStatus.NOT_FOUND)

    async def _live(self, _asked: Asked) -> Page:
        return self.health.live()

    async def _ready(self, _asked: Asked) -> Page:
        return await self.health.ready()
