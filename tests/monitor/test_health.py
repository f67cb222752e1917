"""/health/live and /health/ready follow what the broker really does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.monitor import health
from penstock.node.node import Node, StartError
from penstock.server.loop import new_event_loop
from penstock.settings import Settings, SettingsError
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.objects import StoreUnavailableError
from penstock.testing.ports import consecutive
from tests.cluster.nodes import QUICK, Nodes
from tests.monitor.asking import becomes, get

Start = Callable[[], Awaitable[Node]]


class Moody(DirectoryStore):
    """A store that fails, or hangs, when it is told to."""

    fails = False
    hangs = False

    async def size(self, key: str) -> int | None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails:
            raise StoreUnavailableError("the store is away")
        return await super().size(key)


async def test_a_broker_that_serves_is_ready(start: Start) -> None:
    node = await start()
    assert (await get(node.http_address, "/health/live")).json == {"status": "live"}
    ready = await get(node.http_address, "/health/ready")
    assert (ready.status, ready.json) == (200, {"status": "ready"})


async def test_other_paths_are_not_found_without_a_console(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path / "store", http_address="127.0.0.1:0", console_enable="false")
    await nodes.start(1)
    for path in ("/", "/health", "/health/ready/", "/etc/passwd", "//metrics"):
        assert (await get(nodes.nodes[1].http_address, path)).status == 404
    await nodes.close()


async def test_not_ready_while_it_starts(tmp_path: Path) -> None:
    opening, go = asyncio.Event(), asyncio.Event()

    class Slow(DirectoryStore):
        async def get(self, key: str) -> bytes | None:
            opening.set()
            await go.wait()
            return await super().get(key)

    values = QUICK | {
        "store": str(tmp_path),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "http.address": "127.0.0.1:0",
    }
    node = Node(Settings().with_values(values), open_store=lambda settings: Slow(settings.store))
    starting = asyncio.ensure_future(node.start())
    await opening.wait()
    assert (await get(node.http_address, "/health/live")).status == 200
    ready = await get(node.http_address, "/health/ready")
    assert (ready.status, ready.json["problems"]) == (503, ["the broker is starting"])
    go.set()
    await starting
    assert (await get(node.http_address, "/health/ready")).status == 200
    await node.kill()


async def test_not_ready_from_the_moment_it_is_told_to_stop(start: Start, nodes: Nodes) -> None:
    node = await start()
    node.stop()
    # Nothing else has run since: the listener still accepts.
    assert node.serving is not None
    assert await node._monitor.health.problems() == ["the broker is stopping"]  # type: ignore[union-attr]
    _reader, writer = await asyncio.open_connection("127.0.0.1", node.bound[0].port)
    writer.close()
    assert await nodes.stop(1) is None
    with pytest.raises(OSError):
        await get(node.http_address, "/health/live")


async def test_not_ready_while_the_store_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "STORE_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(health, "STORE_SECONDS", 0.05)
    store = Moody(str(tmp_path))
    values = QUICK | {
        "store": str(tmp_path),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "http.address": "127.0.0.1:0",
    }
    node = Node(Settings().with_values(values), open_store=lambda settings: store)
    await node.start()
    store.fails = True
    got = await get(node.http_address, "/health/ready")
    assert (got.status, got.json["problems"]) == (503, ["the store failed: the store is away"])
    store.fails, store.hangs = False, True
    assert "did not answer" in (await get(node.http_address, "/health/ready")).json["problems"][0]
    store.hangs = False
    assert (await get(node.http_address, "/health/ready")).status == 200
    await node.kill()


async def test_not_ready_without_a_lease_or_with_an_old_image(start: Start) -> None:
    node = await start()
    broker = node.broker
    assert broker.membership is not None
    await broker.membership.stop()
    broker.membership.heartbeats.lease_until = 0.0
    got = (await get(node.http_address, "/health/ready")).json
    assert got["problems"][0].startswith(
        "heartbeats are written again after a pause: until they were for the"
    )
    broker.membership.heartbeats.heard_at = float("-inf")
    got = (await get(node.http_address, "/health/ready")).json
    assert got["problems"] == ["no heartbeat was written for the session time-out: the lease may be over"]
    broker.membership.heartbeats.lease_until = float("inf")
    await broker.metadata.close()
    broker.metadata.complete_as_of_ms -= 60_000
    assert "metadata log" in (await get(node.http_address, "/health/ready")).json["problems"][0]


async def test_a_fenced_broker_is_not_ready_until_it_is_back(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await nodes.start(1, 2)
    node = nodes.nodes[1]
    first = node.broker
    assert first.membership is not None
    silent = asyncio.Event()

    async def no_heartbeat() -> None:
        silent.set()

    monkeypatch.setattr(first.membership.heartbeats, "beat", no_heartbeat)
    await silent.wait()
    await becomes(node.http_address, "/health/ready", 503)
    await becomes(node.http_address, "/health/ready", 200)
    assert node.broker is not first


def test_an_address_that_others_reach_is_refused() -> None:
    for address in ("0.0.0.0:8080", ":8080", "10.0.0.1:80", "broker.example:80", "[::]:80"):
        with pytest.raises(SettingsError, match="needs a certificate"):
            Settings().with_values({"http.address": address})
    for address in ("127.0.0.1:8080", "localhost:0", "[::1]:8080", "127.1.2.3:80"):
        Settings().with_values({"http.address": address})
        Settings().with_values({"http.address": address})
    Settings().with_values({"http.address": "0.0.0.0:8080", "insecure.listeners.enable": "true"})
    with pytest.raises(SettingsError, match="HOST:PORT"):
        Settings().with_values({"http.address": "8080"})


def test_one_address_for_clients_and_for_http_is_told(tmp_path: Path) -> None:
    async def start() -> None:
        with consecutive(1) as port:
            address = f"127.0.0.1:{port}"
            values = {"store": str(tmp_path), "listeners": f"PLAINTEXT://{address}", "http.address": address}
            with pytest.raises(StartError, match=f"{address} is in use"):
                await Node(Settings().with_values(values)).start()

    loop = new_event_loop()
    try:
        loop.run_until_complete(start())
    finally:
        loop.close()


async def test_an_address_in_use_is_told(start: Start, tmp_path: Path) -> None:
    node = await start()
    values = {
        "store": str(tmp_path / "x"),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "http.address": node.http_address,
    }
    with pytest.raises(StartError, match="in use by another process; choose another with --http"):
        await Node(Settings().with_values(values)).start()
