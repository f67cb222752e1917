"""The page of metrics: collected and written in steps, so that no step holds up the broker's loop.

A family is collected and written at once, a large one in pieces of so many lines. After about a millisecond
of work all others on the loop have their turn. Pages are made one after the other: whoever asks while one is
being made gets the next. The number of series is bounded by the settings, so the page is too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING

from prometheus_client import exposition as text_form
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics_form

from penstock.monitor import collecting
from penstock.monitor.lag import GroupLags
from penstock.web.pages import Page

if TYPE_CHECKING:
    from penstock.monitor.monitor import Counted
    from penstock.monitor.subject import Serving, Subject
    from penstock.settings import Settings
    from penstock.web.server import HttpServer

STEP_SECONDS = 0.001
PIECE_SAMPLES = 100
_END = b"# EOF\n"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Exposition:
    def __init__(self, subject: Subject, counted: Counted, http: HttpServer, settings: Settings) -> None:
        self._subject = subject
        self._counted = counted
        self._http = http
        self._settings = settings
        self._lags = GroupLags()
        self._turn = asyncio.Lock()
        self._seconds = 0.0

    async def page(self, accept: str) -> Page:
        """What a collector gets that accepts these types."""
        is_openmetrics = "application/openmetrics-text" in accept
        async with self._turn:
            began = perf_counter()
            body = await self._body(is_openmetrics=is_openmetrics)
            self._seconds = perf_counter() - began
        return Page(body, OPENMETRICS if is_openmetrics else TEXT)

    async def stop(self) -> None:
        await self._lags.stop()

    async def _body(self, *, is_openmetrics: bool) -> bytes:
        parts: list[bytes] = []
        step_began = perf_counter()
        for metric in await self._metrics():
            for piece in _pieces(metric):
                parts.append(written(piece, is_openmetrics=is_openmetrics, again=piece is not metric))
                if perf_counter() - step_began > STEP_SECONDS:
                    await asyncio.sleep(0)
                    step_began = perf_counter()
        if is_openmetrics:
            parts.append(_END)
        return b"".join(parts)

    async def _metrics(self) -> Iterable[Metric]:
        files = await asyncio.to_thread(collecting.open_files)
        serving = self._subject.serving
        census = await self._lags.of(serving.broker) if serving is not None else None
        found: list[Iterator[Metric]] = [
            iter([files] if files is not None else []),
            collecting.of_process(self._counted, self._http.refused, self._seconds),
            collecting.of_requests(self._counted.meters),
            collecting.of_flushes(self._counted.flushes),
            collecting.of_stores((self._counted.records, self._counted.metadata)),
        ]
        if serving is not None:
            found += self._of(serving)
            if census is not None:
                found.append(collecting.of_groups(census, self._settings.metrics_groups_max))
        return (metric for part in found for metric in part)

    def _of(self, serving: Serving) -> list[Iterator[Metric]]:
        broker = serving.broker
        ready = not self._subject.stopping and broker.leads_surely
        return [
            collecting.of_broker(broker, ready),
            collecting.of_ledger(broker.ledger, self._counted.meters.tail_reads),
            collecting.of_topics(broker),
            collecting.of_server(serving.server),
        ]


class _Alone:
    """A registry of one family, as the writers want it."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)


def _pieces(metric: Metric) -> Iterator[Metric]:
    """The family itself, or parts of it with some of its samples; only the first is the family."""
    samples = metric.samples
    if len(samples) <= PIECE_SAMPLES:
        yield metric
        return
    metric.samples = samples[:PIECE_SAMPLES]
    yield metric
    for start in range(PIECE_SAMPLES, len(samples), PIECE_SAMPLES):
        piece = Metric(metric.name, metric.documentation, metric.type)
        piece.samples = samples[start : start + PIECE_SAMPLES]
        yield piece


def written(metric: Metric, *, is_openmetrics: bool, again: bool) -> bytes:
    """One family as text. `again`: its head was written before."""
    if is_openmetrics:
        whole: bytes = openmetrics_form.generate_latest(_Alone(metric))  # type: ignore[no-untyped-call]
        text = whole.removesuffix(_END)
    else:
        text = text_form.generate_latest(_Alone(metric))
    if again:
        text = b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"#"))
    return text
