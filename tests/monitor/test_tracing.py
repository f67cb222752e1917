"""Spans of produce, fetch and settle: in memory, at a collector that speaks OTLP, and where there is none."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from penstock.broker.observing import Seen
from penstock.broker.registry import APIS
from penstock.clock import SystemClock
from penstock.metadata.commands import AnyCommand, Settled, SettlePartitions
from penstock.metadata.image import ClusterImage
from penstock.metadata.proposing import Decide
from penstock.metadata.refusal import Refusal
from penstock.monitor.tracing import Tracing
from penstock.settings import Settings, SettingsError
from penstock.testing import Broker, BrokerError
from penstock.wire.errors import ErrorCode
from penstock.wire.exchange import Session

PRODUCE, FETCH, METADATA = 0, 1, 3


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(spans: InMemorySpanExporter) -> Tracing:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return Tracing(provider, SystemClock())


def test_requests_with_records_have_spans(tracing: Tracing, spans: InMemorySpanExporter) -> None:
    session = Session(peer_host="10.0.0.7")
    assert tracing.hook(session, Seen(APIS[PRODUCE], 12, None, 700, 80, 0.25, 0.01, "shop")) == 0
    assert tracing.hook(session, Seen(APIS[METADATA], 12, None, 70, 800, 0.25, 0.01, "shop")) == 0
    refused = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert tracing.hook(session, Seen(APIS[FETCH], 17, refused, 70, 80, 0.5, 0.01, "shop")) == 0
    produce, fetch = spans.get_finished_spans()
    assert (produce.name, fetch.name) == ("Produce", "Fetch")
    assert produce.end_time is not None and produce.start_time is not None
    assert produce.end_time - produce.start_time == 250_000_000
    attributes = produce.attributes or {}
    assert attributes["messaging.client.id"] == "shop"
    assert attributes["client.address"] == "10.0.0.7"
    assert attributes["penstock.request.bytes"] == 700
    assert produce.status.status_code is StatusCode.UNSET
    assert (fetch.status.status_code, fetch.status.description) == (StatusCode.ERROR, refused.name)


SETTLE = SettlePartitions(1, 2, (Settled(bytes(16), 0, 1), Settled(bytes(16), 1, 1)))


@pytest.mark.parametrize(
    ("commands", "answer", "status"),
    [
        ((SETTLE,), ClusterImage(), StatusCode.UNSET),
        ((SETTLE,), Refusal(ErrorCode.FENCED_LEADER_EPOCH, "no"), StatusCode.ERROR),
        ((), ClusterImage(), None),
    ],
)
async def test_settling_has_a_span(
    tracing: Tracing,
    spans: InMemorySpanExporter,
    commands: Sequence[AnyCommand],
    answer: ClusterImage | Refusal,
    status: StatusCode | None,
) -> None:
    async def propose(decide: Decide) -> ClusterImage | Refusal:
        assert decide(ClusterImage()) == commands
        return answer

    assert await tracing.proposing(propose)(lambda _image: commands) is answer
    found = spans.get_finished_spans()
    if status is None:
        assert not found
    else:
        (span,) = found
        assert (span.name, dict(span.attributes or {})) == ("settle", {"penstock.settle.partitions": 2})
        assert span.status.status_code is status


class Collector(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.names: list[str] = []
        self.services: set[str] = set()
        self.paths: set[str] = set()


class _Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.paths.add(self.path)
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            told = {one.key: one.value.string_value for one in resource.resource.attributes}
            self.server.services.add(f"{told['service.name']} {told['service.instance.id']}")
            self.server.names += [span.name for scope in resource.scope_spans for span in scope.spans]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Tests are quiet."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_collector_is_sent_the_spans_of_a_broker(collector: Collector, tmp_path: Path) -> None:
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    with Broker(settings={"otel.exporter.otlp.endpoint": endpoint}, store=str(tmp_path)) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(10):
            producer.produce("orders", str(number))
            producer.flush(30)
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
        consumer.assign([TopicPartition("orders", 0, 0)])
        assert len(consumer.consume(10, 30)) == 10
        consumer.close()
    assert collector.paths == {"/v1/traces"}
    assert collector.services == {"penstock 1"}
    assert collector.names.count("Produce") == 10  # also those on the fast way
    assert collector.names.count("Fetch") >= 1
    assert collector.names.count("settle") >= 1
    assert set(collector.names) == {"Produce", "Fetch", "settle"}


def test_without_the_extra_a_broker_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BrokerError, match=r"pip install 'penstock\[otel\]'"):
        Broker(settings={"otel.exporter.otlp.endpoint": "http://127.0.0.1:4318"}).start()


def test_an_endpoint_is_a_url() -> None:
    with pytest.raises(SettingsError, match=r"otel\.exporter\.otlp\.endpoint"):
        Settings().with_values({"otel.exporter.otlp.endpoint": "collector:4318"})


def test_nothing_is_loaded_while_it_is_off() -> None:
    program = (
        "import sys\nfrom penstock.testing import Broker\nwith Broker(): pass\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)\n"
        "assert 'penstock.monitor.tracing' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
