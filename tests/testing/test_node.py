"""A broker among others: fenced while it slept, replaced by another process, started where it left off."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import cast

import pytest

from penstock.cli.client import Client, ClientError
from penstock.cluster.membership import Membership
from penstock.metadata.commands import SetConfig
from penstock.metadata.image import BROKER_CONFIG, BrokerInfo
from penstock.node.node import Node, StartError
from penstock.node.settings import advertised
from penstock.server.server import Bound
from penstock.settings import Settings
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import StoreRefusedError
from penstock.storage.wal.directory import DirectoryWalStore
from penstock.testing import Broker
from penstock.testing.hosts import ProcessHost
from penstock.testing.waiting import until
from penstock.wire.buffers import Buffer

QUICK = {"broker.session.timeout.ms": 1000, "broker.heartbeat.interval.ms": 200}


def listed(address: str) -> list[int]:
    try:
        with Client(address, seconds=10) as client:
            return sorted(one.node_id for one in client.metadata([]).brokers)
    except ClientError:
        return []


def until_listed(address: str, *brokers: int) -> None:
    until(lambda: listed(address) == list(brokers), 60, f"{brokers} in the list")


def test_a_broker_that_slept_is_fenced_and_comes_back(tmp_path: Path) -> None:
    sleeper = Broker(store=tmp_path, broker_id=2, settings=QUICK, process=True)
    with Broker(store=tmp_path, settings=QUICK) as awake, sleeper:
        until_listed(awake.bootstrap_servers, 1, 2)
        pid = cast(ProcessHost, sleeper._host).pid
        os.kill(pid, signal.SIGSTOP)
        try:
            until_listed(awake.bootstrap_servers, 1)
        finally:
            os.kill(pid, signal.SIGCONT)
        until_listed(awake.bootstrap_servers, 1, 2)
        until_listed(sleeper.bootstrap_servers, 1, 2)


async def test_a_broker_whose_id_was_taken_stops(tmp_path: Path) -> None:
    def node() -> Node:
        values = {"listeners": "PLAINTEXT://127.0.0.1:0", "store": str(tmp_path)}
        return Node(Settings().with_values(values | {name: str(value) for name, value in QUICK.items()}))

    first, second = node(), node()
    await first.start()
    running = asyncio.ensure_future(first.run())
    await second.start()
    assert await asyncio.wait_for(running, 60) == "Another process registered as broker 1."
    second.stop()
    assert await second.run() is None


async def test_a_port_is_refused_before_the_cluster_hears_of_it(tmp_path: Path) -> None:
    values = {"store": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    first = Node(Settings().with_values(values))
    await first.start()
    values["listeners"] = f"PLAINTEXT://127.0.0.1:{first.bound[0].port}"
    second = Node(Settings().with_values({**values, "broker.id": "2"}))
    with pytest.raises(StartError, match="in use by another process"):
        await second.start()
    assert list(first.broker.image.brokers) == [1]
    first.stop()
    assert await first.run() is None


class Refusing(MemoryStore):
    """Refuses to begin a write-ahead log, or to say what lives here, so many times."""

    def __init__(self, prefix: str, times: int) -> None:
        super().__init__()
        self._prefix = prefix
        self._left = times

    def _require(self, key: str) -> None:
        if key.startswith(self._prefix) and self._left:
            self._left -= 1
            raise StoreRefusedError("refused for a while")

    async def create(self, key: str, *parts: Buffer) -> bool:
        self._require(key)
        return await super().create(key, *parts)

    async def get(self, key: str) -> bytes | None:
        self._require(key)
        return await super().get(key)


@pytest.mark.parametrize("prefix", ["meta/log/", "meta/snapshot/", "wal/"])
async def test_a_store_that_refuses_in_the_midst_of_a_start_is_asked_again(
    caplog: pytest.LogCaptureFixture, prefix: str
) -> None:
    settings = Settings().with_values({"listeners": "PLAINTEXT://127.0.0.1:0"})
    node = Node(settings, open_store=lambda settings: Refusing(prefix, 3))
    await node.start()
    assert node.broker.image.is_live(1)
    assert len([line for line in caplog.messages if "could not start yet" in line]) == 1, caplog.messages
    node.stop()
    assert await node.run() is None


async def test_a_store_that_refuses_from_the_first_is_told_at_once() -> None:
    settings = Settings().with_values({"listeners": "PLAINTEXT://127.0.0.1:0"})
    node = Node(settings, open_store=lambda settings: Refusing("meta/cluster", 1))
    with pytest.raises(StartError, match="refused for a while"):
        await node.start()


async def test_several_listeners(tmp_path: Path) -> None:
    values = {
        "store": str(tmp_path),
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "advertised.listeners": "OUTSIDE://broker.example:19092",
    }
    node = Node(Settings().with_values(values))
    await node.start()
    inside, outside = node.bound
    assert inside.port != outside.port

    def told(port: int) -> list[tuple[str, int]]:
        with Client(f"127.0.0.1:{port}") as client:
            return [(one.host, one.port) for one in client.metadata([]).brokers]

    assert await asyncio.to_thread(told, inside.port) == [("127.0.0.1", inside.port)]
    assert await asyncio.to_thread(told, outside.port) == [("broker.example", 19092)]
    node.stop()
    await node.run()


def test_an_address_that_means_all_is_told_as_this_machine() -> None:
    settings = Settings().with_values({"listeners": "PLAINTEXT://0.0.0.0:9092"})
    (listener,) = advertised(settings, (Bound("PLAINTEXT", "0.0.0.0", 9092),))
    assert (listener.host, listener.port) == (socket.gethostname(), 9092)


async def test_dynamic_settings_reach_the_server(tmp_path: Path) -> None:
    node = Node(Settings().with_values({"store": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}))
    await node.start()
    change = SetConfig(BROKER_CONFIG, "", {"max.connections": "123"})
    await node.broker.metadata.propose(lambda _: (change,))
    assert node.broker.settings.max_connections == 123
    node.stop()
    await node.run()


async def test_a_broker_that_is_fenced_while_it_starts_registers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others seal its log before it begins it, as they do when its start takes too long: twice here."""
    real = Membership.register
    epochs = []

    async def register(self: Membership) -> BrokerInfo:
        info = await real(self)
        epochs.append(info.epoch)
        if len(epochs) <= 2:
            store = DirectoryStore(str(tmp_path))
            await DirectoryWalStore(store).seal(info.wal)
            await store.close()
        return info

    monkeypatch.setattr(Membership, "register", register)
    values = {"listeners": "PLAINTEXT://127.0.0.1:0", "store": str(tmp_path)}
    node = Node(Settings().with_values(values))
    await node.start()
    try:
        assert node.broker.broker_epoch == epochs[2]
        assert node.broker.image.is_current(1, epochs[2])
    finally:
        node.stop()
        await node.run()
