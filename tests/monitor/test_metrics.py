"""/metrics: what it says is true, its form is the one that collectors read, and its size is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from penstock.admin.records import Sender
from penstock.cli.client import Client
from penstock.monitor import exposition, lag
from penstock.monitor.families import FAMILIES
from penstock.monitor.store_meter import StoreMeter
from penstock.node.node import Node
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import StoreUnavailableError
from penstock.storage.stores.opening import open_store
from penstock.wire.api.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from penstock.wire.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.wire.batch import Record
from tests.cluster.nodes import Nodes
from tests.monitor.asking import becomes, get

Start = Callable[[], Awaitable[Node]]
Labels = frozenset[tuple[str, str]]


class Scrape:
    def __init__(self, text: str) -> None:
        self.samples: dict[str, dict[Labels, float]] = {}
        for family in parse_text(text):
            for sample in family.samples:
                by_labels = self.samples.setdefault(sample.name, {})
                labels = frozenset(sample.labels.items())
                assert labels not in by_labels, f"{sample.name} has two samples {dict(labels)}"
                by_labels[labels] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples[name][frozenset(labels.items())]

    def by(self, name: str, label: str) -> Mapping[str, float]:
        return {dict(labels)[label]: value for labels, value in self.samples[name].items()}


async def scraped(node: Node) -> Scrape:
    got = await get(node.http_address, "/metrics")
    assert (got.status, got.headers["content-type"]) == (200, exposition.TEXT)
    return Scrape(got.body.decode())


def send(address: str, topic: str, count: int) -> None:
    with Client(address) as client:
        sender = Sender(client, topic, client.partitions(topic, create=True), 0, -1)
        for number in range(count):
            sender.send(Record(value=b"%d" % number), 0)
        sender.flush()


async def sent(node: Node, topic: str, count: int) -> None:
    await asyncio.to_thread(send, node.addresses[0], topic, count)


async def test_each_family_of_the_table_is_on_the_page_and_no_other(start: Start) -> None:
    node = await start()
    await sent(node, "t", 3)
    text = (await get(node.http_address, "/metrics")).body.decode()
    found = {family.name: family for family in parse_text(text)}
    assert set(found) == {name.removesuffix("_total") for name in FAMILIES}
    for row in FAMILIES.values():
        family = found[row.name.removesuffix("_total")]
        assert family.type == row.kind
        assert family.documentation == row.help
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(row.labels), row.name


async def test_both_forms_say_the_same(start: Start) -> None:
    node = await start()
    await sent(node, "t", 3)
    accept = "application/openmetrics-text; version=1.0.0, text/plain;version=0.0.4;q=0.5, */*;q=0.1"
    got = await get(node.http_address, "/metrics", Accept=accept)
    assert got.headers["content-type"] == exposition.OPENMETRICS
    assert got.body.endswith(b"# EOF\n")
    parsed: Iterable[Metric] = parse_openmetrics(got.body.decode())  # type: ignore[no-untyped-call]
    families = {family.name: family for family in parsed}
    assert set(families) == {name.removesuffix("_total") for name in FAMILIES}
    received = families["penstock_topic_received_records"].samples
    records = {sample.labels["topic"]: sample.value for sample in received}
    assert records == (await scraped(node)).by("penstock_topic_received_records_total", "topic")


async def test_metrics_before_the_broker_serves(tmp_path: Path, start: Start, nodes: Nodes) -> None:
    node = await start()
    node._ended.set()
    scrape = await scraped(node)
    node._ended.clear()
    assert "penstock_image_version" not in scrape.samples
    assert scrape("process_resident_memory_bytes") > 1_000_000


async def test_topics_beyond_the_limit_are_counted_together(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path / "store", http_address="127.0.0.1:0", metrics_topics_max="2")
    try:
        await nodes.start(1)
        node = nodes.nodes[1]
        for number, topic in enumerate(("a", "b", "c", "d", "other"), 1):
            await sent(node, topic, number)
        found = (await scraped(node)).by("penstock_topic_received_records_total", "topic")
        assert found == {"a": 1, "b": 2, "other": 3 + 4 + 5}
        await nodes.ask(1, DeleteTopicsRequest(topic_names=["a"], timeout_ms=30_000), DeleteTopicsResponse, 5)
        await sent(node, "e", 6)
        await scraped(node)  # It forgets topics that are gone.
        await sent(node, "f", 7)
        found = (await scraped(node)).by("penstock_topic_received_records_total", "topic")
        assert found == {"b": 2, "f": 7, "other": 3 + 4 + 5 + 6}
    finally:
        await nodes.close()


async def commit(nodes: Nodes, broker: int, group: str, topic: str, offsets: Mapping[int, int]) -> int:
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        for index, offset in offsets.items()
    ]
    request = OffsetCommitRequest(
        group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    )
    answer = await nodes.ask(broker, request, OffsetCommitResponse, 7)
    return max(one.error_code for one in answer.topics[0].partitions)


async def committed(nodes: Nodes, group: str, topic: str, offsets: Mapping[int, int]) -> Node:
    """Commit at whichever broker coordinates the group."""
    await nodes.ask(1, FindCoordinatorRequest(key=group), FindCoordinatorResponse, 3)
    async with asyncio.timeout(60):
        while True:
            for broker, node in nodes.nodes.items():
                if await commit(nodes, broker, group, topic, offsets) == 0:
                    return node
            await asyncio.sleep(0.01)


async def test_the_lag_of_groups_over_all_leaders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "REFRESH_SECONDS", 0.0)
    nodes = Nodes(
        tmp_path / "store", http_address="127.0.0.1:0", num_partitions="4", metrics_groups_max="2",
        offsets_topic_num_partitions="1",
    )  # fmt: skip
    try:
        await nodes.start(1, 2)
        for broker in (1, 2):
            await sent(nodes.nodes[broker], "t", 1)  # All of them to partition 0.
        node = await committed(nodes, "g1", "t", {0: 1, 1: 0, 2: 0, 3: 0})
        assert {p.leader for p in node.broker.image.topics["t"].partitions} == {1, 2}
        await committed(nodes, "g2", "t", {0: 0})
        await committed(nodes, "g3", "t", {0: 2})
        async with asyncio.timeout(60):
            while True:
                scrape = await scraped(node)
                found = scrape.by("penstock_group_lag_records", "group")
                if len(found) == 3:
                    break
        assert found == {"g2": 2, "g1": 1, "other": 0}
        assert scrape.by("penstock_groups", "state") == {"Empty": 3}
    finally:
        await nodes.close()


async def test_counts_outlive_an_incarnation(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    await nodes.start(1, 2)
    node = nodes.nodes[1]
    await sent(node, "t", 5)
    leader = next(one for one in nodes.nodes.values() if one.broker.ledger.led())
    before = await scraped(leader)
    first = leader.broker
    assert first.membership is not None

    async def no_heartbeat() -> None:
        pass

    monkeypatch.setattr(first.membership.heartbeats, "beat", no_heartbeat)
    await becomes(leader.http_address, "/health/ready", 503)
    await becomes(leader.http_address, "/health/ready", 200)
    assert leader.broker is not first
    after = await scraped(leader)
    for name in ("penstock_topic_received_records_total", "penstock_flush_seconds_count"):
        assert all(after.samples[name][labels] >= value for labels, value in before.samples[name].items())
    assert after("penstock_topic_received_records_total", topic="t") == 5


async def test_a_page_lets_others_have_their_turn(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(exposition, "PIECE_SAMPLES", 3)
    node = await start()
    await sent(node, "t", 3)
    assert (await scraped(node))("penstock_topic_received_records_total", topic="t") == 3
    made = await node._monitor._exposition  # type: ignore[union-attr, misc]
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    page = await made.page("")
    counting.cancel()
    assert turns >= page.body.count(b"# TYPE")


async def test_a_store_is_counted_by_kind(tmp_path: Path) -> None:
    meter = StoreMeter("records")
    store = open_store(str(tmp_path))
    assert meter.watch(store) is store
    await store.create("a/b", b"12", b"345")
    await store.put("a/c", b"678")
    assert await store.get("a/b") == b"12345"
    assert await store.get("none") is None
    assert bytes(await store.get_range("a/b", 1, 3)) == b"234"
    assert [one.key async for one in store.list("a/")] == ["a/b", "a/c"]
    await store.delete("a/c")
    assert {kind: times.count for kind, times in meter.times.items() if times.count} == {
        "create": 1, "put": 1, "get": 2, "get_range": 1, "list": 1, "delete": 1,
    }  # fmt: skip
    assert (meter.bytes_read, meter.bytes_written) == (8, 8)
    await store.close()


async def test_errors_of_a_store_are_counted() -> None:
    class Broken(MemoryStore):
        async def get(self, key: str) -> bytes | None:
            raise StoreUnavailableError("away")

    meter = StoreMeter("records")
    store = meter.watch(Broken())
    with pytest.raises(StoreUnavailableError):
        await store.get("x")
    assert (meter.errors["get"], meter.times["get"].count) == (1, 1)


async def test_transactions_are_counted_by_state(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "REFRESH_SECONDS", 0.0)
    await nodes.start(1)
    node = nodes.nodes[1]

    def transact() -> None:
        producer = Producer({"bootstrap.servers": node.addresses[0], "transactional.id": "x"})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce("t", b"1")
        producer.commit_transaction(60)
        producer.begin_transaction()
        producer.produce("t", b"2")
        producer.flush(60)

    await asyncio.to_thread(transact)
    async with asyncio.timeout(60):
        while True:
            scrape = await scraped(node)
            if scrape("penstock_open_transactions"):
                break
    assert scrape.by("penstock_transactions", "state") == {"Ongoing": 1}
    assert scrape("penstock_open_transactions") == 1
