"""`penstock.testing.Broker`: a real broker, quickly, that can be stopped, killed and started again."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.admin.offsets import EARLIEST, LATEST, list_offset
from penstock.admin.records import ReaderPositions, Sender
from penstock.cli.client import Client
from penstock.testing import Broker, BrokerError
from penstock.testing.ports import HOST, consecutive, hold
from penstock.testing.waiting import until
from penstock.wire.batch import Record


def send(bootstrap: str, topic: str, *values: bytes) -> None:
    with Client(bootstrap) as client:
        sender = Sender(client, topic, client.partitions(topic, create=True), 0, -1)
        for value in values:
            sender.send(Record(value=value, timestamp=time.time_ns() // 1_000_000), 0)
        sender.flush()


def read(bootstrap: str, topic: str) -> list[bytes | None]:
    with Client(bootstrap) as client:
        reader = ReaderPositions(client, topic, client.partitions(topic), "beginning", False)
        return [found[1].value for found in reader.records(follow=False) if found]


def test_a_broker_for_a_block() -> None:
    with Broker() as broker:
        store = Path(broker.store)
        assert store.is_dir()
        send(broker.bootstrap_servers, "t", b"one", b"two")
        assert read(broker.bootstrap_servers, "t") == [b"one", b"two"]
    assert not store.exists()
    assert not broker.running


async def test_an_asynchronous_block() -> None:
    async with Broker() as broker:
        assert broker.port > 0
        assert broker.running


def test_it_is_quick() -> None:
    took: list[float] = []
    # The first imports. Half a second is the promise, twenty times what it takes on a quiet machine. A busy
    # one leaves one of many alone.
    while len(took) < 30 and not any(one < 0.5 for one in took[1:]):
        began = time.perf_counter()
        with Broker():
            pass
        took.append(time.perf_counter() - began)
    assert min(took[1:]) < 0.5, took


def test_a_given_store_stays(tmp_path: Path) -> None:
    with Broker(store=tmp_path / "here") as broker:
        send(broker.bootstrap_servers, "t", b"kept")
    with Broker(store=tmp_path / "here") as broker:
        assert read(broker.bootstrap_servers, "t") == [b"kept"]


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_stop_kill_and_start_again(process: bool) -> None:
    with Broker(process=process) as broker:
        address = broker.bootstrap_servers
        send(address, "t", b"one")
        broker.restart()
        assert broker.bootstrap_servers == address
        send(address, "t", b"two")
        broker.kill()
        assert not broker.running
        broker.start()
        send(address, "t", b"three")
        assert read(address, "t") == [b"one", b"two", b"three"]


FORGOTTEN = """
import os, signal, socket, sys
from penstock.testing import Broker

def start():
    broker = Broker(process=True).start()
    return broker.port, broker.store

port, store = start()
with socket.create_connection(("127.0.0.1", port)):
    print(port, store, flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["killed", "done"])
def test_a_process_ends_with_that_of_the_test(how: str) -> None:
    """Killed, as by the time limit of a CI job, or done without a close. The store goes, too."""
    said = subprocess.run(
        [sys.executable, "-c", FORGOTTEN, how], capture_output=True, text=True, timeout=60, check=False
    )
    port, store = said.stdout.split()
    assert os.path.basename(store).startswith("penstock-test-")
    until(lambda: not os.path.exists(store), 60, "the end of the broker")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)))


def test_settings_have_their_effect() -> None:
    settings = {"num.partitions": 7, "auto.create.topics.enable": True}
    with Broker(settings=settings) as broker, Client(broker.bootstrap_servers) as client:
        assert client.partitions("t", create=True) == list(range(7))
        assert list_offset(client, "t", 6, EARLIEST) == list_offset(client, "t", 6, LATEST) == 0


def test_mistakes_are_told() -> None:
    with pytest.raises(BrokerError, match=r"no\.such\.setting is not a setting"):
        Broker(settings={"no.such.setting": 1}).start()
    broker = Broker()
    with pytest.raises(BrokerError, match="has not started"):
        _ = broker.bootstrap_servers
    with Broker() as first, pytest.raises(BrokerError, match="in use by another process"):
        Broker(port=first.port).start()
    with Broker() as first, pytest.raises(BrokerError, match="in use by another process"):
        Broker(port=first.port, process=True).start()


def test_several_brokers_share_a_store(tmp_path: Path) -> None:
    settings = {"broker.session.timeout.ms": 2000, "default.replication.factor": 2}
    with Broker(store=tmp_path, settings=settings) as first:
        second = Broker(store=tmp_path, broker_id=2, settings=settings)
        with second, Client(second.bootstrap_servers) as client:
            answer = client.metadata([])
            assert sorted(one.node_id for one in answer.brokers) == [1, 2]
            assert answer.controller_id == 1
        with Client(first.bootstrap_servers) as client:
            answer = client.retry(lambda: client.metadata([]))
            assert [one.node_id for one in answer.brokers] == [1]
    assert os.listdir(tmp_path)


def test_a_port_is_held_for_the_broker_that_is_to_come_back() -> None:
    with Broker() as broker:
        port = broker.port
        broker.kill()
        with socket.socket() as another, pytest.raises(OSError, match="in use"):
            another.bind((broker.host, port))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((broker.host, port))
        broker.start()
        assert broker.port == port
        send(broker.bootstrap_servers, "t", b"x")
    with socket.socket() as another:
        another.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        another.bind((broker.host, port))


def test_ports_in_a_row_are_nobody_elses_meanwhile() -> None:
    with consecutive(3) as first:
        for port in range(first, first + 3):
            with pytest.raises(OSError, match="in use"):
                hold(port)
            with socket.create_server((HOST, port)):
                pass
