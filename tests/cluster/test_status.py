"""`penstock cluster status` against three brokers: leases, leaders, positions, and who lags."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import cluster
from penstock.client import Client
from penstock.metadata.commands import CreateTopic, RegisterBroker
from penstock.metadata.image import Listener
from penstock.metadata.refusal import Refusal

from .nodes import Nodes

SESSION_SECONDS = 6.0
"""Long enough that nobody is fenced before a test has looked, however slow the machine is."""


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    made = Nodes(tmp_path / "store", broker_session_timeout_ms=f"{SESSION_SECONDS * 1000:.0f}")
    await made.start(1, 2, 3)
    yield made
    await made.close()


async def status(nodes: Nodes, through: int) -> dict[str, Any]:
    (address,) = nodes.nodes[through].addresses

    def ask() -> dict[str, Any]:
        with Client(address) as client:
            return cluster.describe(client)

    return await asyncio.to_thread(ask)


async def create(nodes: Nodes, through: int, name: str, *orders: tuple[int, ...]) -> None:
    command = CreateTopic(name.encode().ljust(16), name, orders)
    done = await nodes.nodes[through].broker.metadata.propose(lambda _: [command])
    assert not isinstance(done, Refusal)


async def test_everything_is_well(nodes: Nodes) -> None:
    await create(nodes, 1, "t", (1,), (2,), (2,))
    found = await status(nodes, 3)
    assert found["problems"] == []
    assert (found["controller"], found["topics"], found["partitions_without_leader"]) == (1, 1, 0)
    rows = {row["broker"]: row for row in found["brokers"]}
    assert {broker: row["leads"] for broker, row in rows.items()} == {1: 1, 2: 2, 3: 0}
    assert {row["state"] for row in rows.values()} == {"live"}
    assert {row["rack"] for row in rows.values()} == {"rack-1", "rack-2", "rack-3"}
    assert all(0 <= row["lease_seconds"] < SESSION_SECONDS for row in rows.values())
    assert found["log_end"] == nodes.image(1).version
    assert rows[1]["position"] == found["log_end"]


async def test_a_broker_that_lags_is_named(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "LAG_SECONDS", 60.0)
    metadata = nodes.nodes[2].broker.metadata
    assert metadata._tail is not None
    metadata._tail.cancel()
    await asyncio.gather(metadata._tail, return_exceptions=True)
    position = metadata.image.version
    metadata.complete_as_of_ms -= 100_000  # as if it had not looked for so long
    await create(nodes, 1, "t", (1,))
    found = await status(nodes, 1)
    (problem,) = found["problems"]
    end = found["log_end"]
    assert end > position
    assert problem.startswith(f"Broker 2 lags: it is at entry {position} of {end} and has not read")
    rows = {row["broker"]: row for row in found["brokers"]}
    assert (rows[2]["position"], rows[2]["behind"]) == (position, end - position)
    assert rows[1]["behind"] == 0


async def test_a_dead_broker_does_not_answer_and_is_fenced(nodes: Nodes) -> None:
    await create(nodes, 1, "t", (3, 1))
    await nodes.kill(3)
    found = await status(nodes, 2)
    (problem,) = found["problems"]
    assert problem.startswith("Broker 3 is in the list and does not answer: No broker answers at ")
    assert "It last renewed its lease " in problem
    fenced = asyncio.Event()
    metadata = nodes.nodes[1].broker.metadata
    metadata.subscribe(lambda old, new: fenced.set() if not new.is_live(3) else None)
    if metadata.image.is_live(3):
        await asyncio.wait_for(fenced.wait(), 60)
    found = await status(nodes, 1)
    assert found["problems"] == [
        "Broker 3 is fenced: it was silent for too long, and others lead what it led."
    ]
    rows = {row["broker"]: row for row in found["brokers"]}
    assert (rows[3]["state"], rows[3]["leads"], rows[1]["leads"]) == ("fenced", 0, 1)
    assert rows[3]["lease_seconds"] > 0.5


async def test_one_that_is_silent_does_not_make_the_others_look_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paused process still accepts connections, and says nothing."""
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 4.0)
    nodes = Nodes(tmp_path / "store", broker_session_timeout_ms="60000")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        await nodes.start(1, 3)
        listener = Listener("PLAINTEXT", "127.0.0.1", silent.getsockname()[1])
        asleep = RegisterBroker(2, (listener,), incarnation="asleep")
        done = await nodes.nodes[1].broker.metadata.propose(lambda _: [asleep])
        assert not isinstance(done, Refusal)
        found = await status(nodes, 1)
        await nodes.close()
    rows = {row["broker"]: row for row in found["brokers"]}
    assert {broker: row["state"] for broker, row in rows.items()} == {1: "live", 2: "no answer", 3: "live"}
    assert all(rows[broker]["lease_seconds"] < 3.0 for broker in (1, 3))
