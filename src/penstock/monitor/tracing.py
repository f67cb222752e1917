"""Spans of produce, fetch and settle for OpenTelemetry, sent by OTLP over HTTP.

There is none of it unless the setting `otel.exporter.otlp.endpoint` names a collector, and the packages of
`penstock[otel]` are installed. Everything else about it is said by OpenTelemetry's own environment variables
(OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS, ...).

    Produce, Fetch   from when a handler has the request until it is answered, long polls included
    settle           from the proposal of settled partitions until the metadata log holds it: the segments
                     are written before that

Spans are exported by a thread, in batches. If the collector is slow, or gone, the newest are dropped: a
broker waits for no collector, except for a few seconds when it ends.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.metadata.commands import SettlePartitions
from penstock.metadata.refusal import Refusal
from penstock.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

    from penstock.broker.observing import Seen
    from penstock.clock import Clock
    from penstock.metadata.commands import AnyCommand
    from penstock.metadata.image import ClusterImage
    from penstock.metadata.proposing import Decide, Propose
    from penstock.settings import Settings
    from penstock.wire.exchange import Session

TRACED = frozenset((0, 1))
"""Produce and Fetch."""
EXPORT_SECONDS = 5
_NANOSECONDS = 1_000_000_000


def open_tracing(settings: Settings, clock: Clock) -> Tracing:
    """Spans for the collector that the settings name. SettingsError if OpenTelemetry is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise SettingsError(
            "otel.exporter.otlp.endpoint needs OpenTelemetry, which is not installed here: "
            f"pip install 'penstock[otel]' ({error})."
        ) from error
    own = Resource({SERVICE_NAME: "penstock", "service.instance.id": str(settings.broker_id)})
    provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    endpoint = f"{settings.otel_exporter_otlp_endpoint.rstrip('/')}/v1/traces"
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider, clock)


class Tracing:
    """One for each broker process."""

    def __init__(self, provider: TracerProvider, clock: Clock) -> None:
        from opentelemetry.trace import SpanKind

        self._provider = provider
        self._clock = clock
        self._tracer = provider.get_tracer("penstock")
        self._server, self._internal = SpanKind.SERVER, SpanKind.INTERNAL

    def hook(self, session: Session, seen: Seen) -> int:
        """The hook of `broker/observing`; it makes nobody wait."""
        if seen.api.key not in TRACED:
            return 0
        end = self._now()
        span = self._tracer.start_span(
            seen.api.name,
            kind=self._server,
            start_time=end - round(seen.seconds * _NANOSECONDS),
            attributes={
                "rpc.system": "kafka",
                "rpc.method": seen.api.name,
                "messaging.system": "kafka",
                "messaging.client.id": seen.client_id,
                "client.address": session.peer_host,
                "penstock.api.version": seen.version,
                "penstock.request.bytes": seen.request_bytes,
                "penstock.answer.bytes": seen.answer_bytes,
                "penstock.busy.seconds": seen.busy_seconds,
            },
        )
        if seen.error is not None:
            _fail(span, seen.error.name)
        span.end(end)
        return 0

    def proposing(self, propose: Propose) -> Propose:
        """`propose`, with a span for each proposal of settled partitions."""

        async def traced(decide: Decide) -> ClusterImage | Refusal:
            settled = 0

            def noted(image: ClusterImage) -> Sequence[AnyCommand] | Refusal:
                nonlocal settled
                decided = decide(image)
                settled = 0 if isinstance(decided, Refusal) else sum(map(_partitions, decided))
                return decided

            began = self._now()
            answer: ClusterImage | Refusal | None = None
            try:
                answer = await propose(noted)
                return answer
            finally:
                if settled:
                    self._settled(began, settled, answer)

        return traced

    def _settled(self, began: int, partitions: int, answer: ClusterImage | Refusal | None) -> None:
        """`answer`: None if the store did not take the proposal in time."""
        span = self._tracer.start_span(
            "settle",
            kind=self._internal,
            start_time=began,
            attributes={"penstock.settle.partitions": partitions},
        )
        if answer is None or isinstance(answer, Refusal):
            _fail(span, "unavailable" if answer is None else str(answer))
        span.end(self._now())

    async def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        await asyncio.to_thread(self._provider.shutdown)

    def _now(self) -> int:
        return self._clock.time_ms() * 1_000_000


def _fail(span: Span, why: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, why))


def _partitions(command: AnyCommand) -> int:
    return len(command.partitions) if isinstance(command, SettlePartitions) else 0
