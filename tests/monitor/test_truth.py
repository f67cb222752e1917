"""What /metrics says of a run is what its clients counted in the same run."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.broker.metering import SAMPLE
from penstock.testing import Broker
from penstock.testing.ports import consecutive
from penstock.testing.waiting import until
from tests.monitor.test_metrics import Scrape

RECORDS = 20_000
VALUE_BYTES = 4000
"""Large beside what frames a record."""
WITHIN = 0.01


class Stats:
    """The requests that a client of librdkafka counted, by API."""

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}

    def __call__(self, text: str) -> None:
        stats: dict[str, Any] = json.loads(text)
        self.requests = {}
        for broker in stats["brokers"].values():
            for api, count in broker.get("req", {}).items():
                self.requests[api] = self.requests.get(api, 0) + count


def produce(bootstrap: str, topic: str) -> Stats:
    stats = Stats()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap, "linger.ms": 2, "batch.num.messages": 20,
            "statistics.interval.ms": 50, "stats_cb": stats, "queue.buffering.max.kbytes": 200_000,
        }
    )  # fmt: skip
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number * (VALUE_BYTES // len(b"%d" % number)), partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0
    settled = [-1]

    def unchanged() -> bool:
        producer.poll(0.2)
        before, settled[0] = settled[0], stats.requests.get("Produce", 0)
        return settled[0] > 0 and settled[0] == before

    until(unchanged, 30, "the last statistics of the producer")
    return stats


def consume(bootstrap: str, topic: str) -> tuple[int, int, Stats]:
    """Records, bytes of their values, and requests."""
    stats = Stats()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "truth", "enable.auto.commit": False,
            "statistics.interval.ms": 50, "stats_cb": stats,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    records = size = 0
    while records < RECORDS:
        for message in consumer.consume(1000, 30):
            assert message.error() is None, message.error()
            records += 1
            size += len(message.value() or b"")
    consumer.close()
    return records, size, stats


def scrape(address: str) -> Scrape:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        return Scrape(answer.read().decode())


def test_records_bytes_and_requests_are_those_that_clients_counted() -> None:
    with consecutive(1) as port, Broker(settings={"http.address": f"127.0.0.1:{port}"}) as broker:
        sent = produce(broker.bootstrap_servers, "t")
        records, size, _fetched = consume(broker.bootstrap_servers, "t")
        found = scrape(f"127.0.0.1:{port}")
    assert found("penstock_topic_received_records_total", topic="t") == RECORDS
    assert found("penstock_topic_sent_records_total", topic="t") == pytest.approx(records, rel=WITHIN)
    for name in ("penstock_topic_received_bytes_total", "penstock_topic_sent_bytes_total"):
        assert found(name, topic="t") == pytest.approx(size, rel=WITHIN)
    produced = {
        dict(labels)["version"]: count
        for labels, count in found.samples["penstock_requests_total"].items()
        if dict(labels)["api"] == "Produce"
    }
    assert sum(produced.values()) == pytest.approx(sent.requests["Produce"], rel=WITHIN)
    assert found("penstock_flush_batches_total") == pytest.approx(sent.requests["Produce"], rel=WITHIN)
    # Those that are timed stand for the others, but for the last ones.
    timed = found("penstock_request_seconds_count", api="Produce")
    assert sent.requests["Produce"] - SAMPLE <= timed <= sent.requests["Produce"]
