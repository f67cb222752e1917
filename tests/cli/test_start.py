"""`penstock start` as a process: the line it prints, its exit codes, its signals, its supervisor."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from penstock.admin.records import Sender
from penstock.cli.client import Client, ClientError
from penstock.cli.start import UsageError, settings
from penstock.cli.start_options import OPTIONS, parse
from penstock.settings import SettingsError
from penstock.testing.ports import consecutive
from penstock.wire.api.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from penstock.wire.batch import Record

PENSTOCK = [sys.executable, "-m", "penstock"]
READY = re.compile(
    r"^penstock broker (\d+) is serving on (\S+?:\d+) \(cluster \S+, store [^,]+(?:, (http://\S+:\d+))?\)$"
)


class Running:
    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*PENSTOCK, "start", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def ready(self) -> tuple[int, str]:
        """The broker id and the address in the next line that says so."""
        broker, address, _http = self.ready_with_http()
        return broker, address

    def ready_with_http(self) -> tuple[int, str, str | None]:
        output: IO[str] | None = self.process.stdout
        assert output is not None
        line = output.readline().rstrip("\n")
        found = READY.match(line)
        if found is None:
            self.process.kill()
            raise AssertionError(f"not a line that says so: {line!r}; {self.process.communicate()}")
        return int(found[1]), found[2], found[3]

    def finish(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Send a signal; exit code and what else was printed."""
        self.process.send_signal(number)
        output, problem = self.process.communicate(timeout=120)
        return self.process.returncode, output, problem


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def begin(*arguments: str) -> Running:
        started.append(Running(*arguments))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


def send(address: str, topic: str, *values: bytes) -> None:
    with Client(address) as client:
        sender = Sender(client, topic, client.partitions(topic, create=True), 0, -1)
        for value in values:
            sender.send(Record(value=value), 0)
        sender.flush()


def test_one_line_when_it_serves_and_an_orderly_end(start: Callable[..., Running], tmp_path: Path) -> None:
    running = start("--listen", "127.0.0.1:0", "--store", str(tmp_path / "store"))
    broker_id, address = running.ready()
    assert broker_id == 1
    send(address, "t", b"hello")
    code, output, problem = running.finish()
    assert (code, output, problem) == (0, "", "")
    again = start("--broker-id=7", "--listen=127.0.0.1:0", f"--store={tmp_path / 'store'}", "--rack=r1")
    broker_id, address = again.ready()
    with Client(address) as client:
        answer = client.metadata()
        assert [(one.node_id, one.rack) for one in answer.brokers] == [(7, "r1")]
        assert [topic.name for topic in answer.topics] == ["t"]
    assert again.finish(signal.SIGINT)[0] == 0


@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_a_line_is_one_write(tmp_path: Path, unbuffered: str) -> None:
    """Several brokers share an output, and their lines must not run together. Each write is one message
    here."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    command = [*PENSTOCK, "start", "--listen", "127.0.0.1:0", "--store", str(tmp_path)]
    with ours, theirs:
        ours.settimeout(120)
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        with subprocess.Popen(command, stdout=theirs.fileno(), env=environment) as process:
            try:
                line = ours.recv(4096).decode()
            finally:
                process.kill()
    assert line.endswith("\n") and READY.match(line)


def test_what_was_acknowledged_survives_a_kill(start: Callable[..., Running], tmp_path: Path) -> None:
    arguments = ("--listen", "127.0.0.1:0", "--store", str(tmp_path))
    for number in range(3):
        running = start(*arguments)
        _id, address = running.ready()
        send(address, "t", b"%d" % number)
        running.finish(signal.SIGKILL)
    running = start(*arguments)
    _id, address = running.ready()
    done = subprocess.run(
        [*PENSTOCK, "consume", "t", "--bootstrap", address], capture_output=True, check=True, timeout=120
    )
    assert done.stdout == b"0\n1\n2\n"


def failing(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [*PENSTOCK, "start", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == ""
    return done.returncode, done.stderr.strip()


def test_a_used_port_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, problem = failing("--listen", f"127.0.0.1:{port}", "--store", str(tmp_path))
    assert code == 1
    assert problem == (
        f"penstock: The address 127.0.0.1:{port} is in use by another process; choose another with --listen."
    )


def test_a_store_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a directory")
    code, problem = failing("--listen", "127.0.0.1:0", "--store", str(file))
    assert code == 1
    assert problem.startswith("penstock: ")
    assert "Traceback" not in problem
    assert len(problem.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--set", "no.such=1"), "no.such is not a setting."),
        (("--set", "num.partitions=lots"), "num.partitions"),
        (("--set", "nothing"), "--set takes NAME=VALUE"),
        (("--listen", "nowhere"), "--listen takes HOST:PORT"),
        (("--listen", "127.0.0.1:80000"), "with a port up to 65535, not '127.0.0.1:80000'."),
        (("--brokers", "many"), "--brokers takes a number"),
        (("--brokers", "0"), "--brokers takes a number from 1 to 1000, not '0'."),
        (("--brokers", "3", "--broker-id", "1"), "--broker-id is for one broker alone"),
        (("--store", "a", "--set", "store=b"), "--store is the setting store: give one of the two."),
        (("--brokers=2", "--set=listeners=PLAINTEXT://localhost:1"), "gives each broker its own listeners"),
        (("--brokers=2", "--set=broker.id=2"), "gives each broker its own broker.id"),
        (("--config", "/no/such/file"), "cannot be read"),
        (("--config", "a", "--config=b"), "--config is given more than once: a and b."),
        (("--listen", "127.0.0.1:0", "--listen", "127.0.0.1:1"), "--listen is given more than once"),
        (("--log-level", "loud"), "--log-level is one of"),
    ],
)
def test_mistakes_are_told_in_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    code, problem = failing(*arguments)
    assert code == 2
    assert sentence in problem
    assert len(problem.splitlines()) == 1


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        ("etcd://127.0.0.1:1", "etcd at 127.0.0.1:1 is not available"),
        ("etcd://user:secret@127.0.0.1:1", "PENSTOCK_ETCD_PASSWORD"),
    ],
)
def test_metadata_elsewhere_that_cannot_be_had(tmp_path: Path, metadata: str, sentence: str) -> None:
    code, problem = failing("--store", str(tmp_path), "--listen=127.0.0.1:0", f"--metadata={metadata}")
    assert code == 1
    assert sentence in problem
    assert len(problem.splitlines()) == 1


def test_etcd_is_no_place_for_records() -> None:
    code, problem = failing("--store", "etcd://127.0.0.1:1", "--listen=127.0.0.1:0")
    assert code == 2
    assert "--metadata" in problem


def test_metadata_are_nowhere_else() -> None:
    code, problem = failing("--metadata", "zookeeper://127.0.0.1:1", "--listen=127.0.0.1:0")
    assert code == 2
    assert "in the store, or in etcd at etcd://" in problem


@pytest.fixture
def port() -> Iterator[int]:
    """The first of three free ports in a row."""
    with consecutive(3) as first:
        yield first


def test_several_supervised_brokers_are_one_cluster(
    start: Callable[..., Running], tmp_path: Path, port: int
) -> None:
    running = start(
        "--brokers", "3", "--listen", f"127.0.0.1:{port}", "--store", str(tmp_path),
        "--set", "broker.session.timeout.ms=3000",
    )  # fmt: skip
    ready = {running.ready() for _ in range(3)}
    assert ready == {(number, f"127.0.0.1:{port + number - 1}") for number in (1, 2, 3)}
    with Client(f"127.0.0.1:{port + 2}") as client:
        assert _until(lambda: [one.node_id for one in client.metadata().brokers], [1, 2, 3])
    # A broker that dies is started again.
    (child,) = _children_with(running.process.pid, "--broker-id=2")
    os.kill(child, signal.SIGKILL)
    assert running.ready() == (2, f"127.0.0.1:{port + 1}")
    send(f"127.0.0.1:{port + 1}", "t", b"after")
    code, _output, problem = running.finish()
    assert code == 0
    assert re.search(
        r"broker 2 ended \(killed by SIGKILL\) after [\d.]+ s; starting it again in 0.2 s", problem
    )
    assert not _children_with(running.process.pid, "--broker-id")


def test_several_brokers_cannot_share_the_memory_of_one() -> None:
    code, problem = failing("--brokers=2", "--store=memory://")
    assert code == 2
    assert problem.startswith("penstock: --brokers cannot share memory://")


def test_brokers_do_not_outlive_their_supervisor(
    start: Callable[..., Running], tmp_path: Path, port: int
) -> None:
    running = start("--brokers=2", f"--listen=127.0.0.1:{port}", f"--store={tmp_path}")
    ready = [running.ready() for _ in range(2)]
    children = _children_with(running.process.pid, "--broker-id")
    assert len(children) == 2
    running.finish(signal.SIGKILL)  # returns when the brokers have closed the output they share with it
    for _id, address in ready:
        host, _colon, number = address.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(number)))


def test_a_port_that_is_used_stops_the_supervisor_with_one_sentence(tmp_path: Path, port: int) -> None:
    with socket.create_server(("127.0.0.1", port + 2)):
        code, problem = failing("--brokers=3", f"--listen=127.0.0.1:{port}", f"--store={tmp_path}")
    assert code == 1
    assert problem == (
        f"penstock: The address 127.0.0.1:{port + 2} is in use by another process; choose another with "
        "--listen."
    )
    code, problem = failing("--brokers=3", "--listen=127.0.0.1:65534", f"--store={tmp_path}")
    assert (code, problem) == (1, "penstock: There is no port 65536; choose a lower one with --listen.")


def test_a_cluster_that_cannot_start_is_not_tried_for_ever(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a directory")
    code, problem = failing("--brokers=2", "--listen=127.0.0.1:0", f"--store={file}")
    assert code == 1
    assert "Traceback" not in problem
    assert "and is not started again" in problem


def test_a_removed_broker_is_not_started_again(
    start: Callable[..., Running], tmp_path: Path, port: int
) -> None:
    running = start("--brokers=2", f"--listen=127.0.0.1:{port}", f"--store={tmp_path}")
    assert len({running.ready() for _ in range(2)}) == 2
    with Client(f"127.0.0.1:{port}") as client:
        assert _until(lambda: [one.node_id for one in client.metadata().brokers], [1, 2])
        answer = client.any().ask(UnregisterBrokerRequest(broker_id=2), UnregisterBrokerResponse)
        assert answer.error_code == 0
        assert _until(lambda: [one.node_id for one in client.metadata().brokers], [1])
    assert running.process.stderr is not None
    said = iter(running.process.stderr.readline, "")
    assert "penstock: broker 2 ended (exit code 3) and is not started again.\n" in said
    assert not _children_with(running.process.pid, "--broker-id=2")
    assert running.finish()[0] == 0


def test_the_quick_parser_and_the_library_agree(tmp_path: Path) -> None:
    every = [
        text for option in OPTIONS for text in ((option.flag,) if option.is_flag else (option.flag, "1"))
    ]
    assert parse(every) == {option.name: ["true" if option.is_flag else "1"] for option in OPTIONS}
    assert parse(["--set=a=b", "--set", "c=d"]) == {"set": ["a=b", "c=d"]}
    for odd in (["--help"], ["--unknown", "1"], ["--listen"], ["--listen", "--store"], ["positional"]):
        assert parse(odd) is None
    done = subprocess.run(
        [*PENSTOCK, "start", "--help"], capture_output=True, text=True, check=True, timeout=120
    )
    for option in OPTIONS:
        assert option.flag in done.stdout


def test_settings_from_options(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('"num.partitions" = 3\n[log]\nretention.hours = 5\n')
    made = settings(
        {"config": [str(file)], "set": ["num.partitions=4"], "listen": ["0.0.0.0:0"], "store": ["x"]}
    )
    assert (made.num_partitions, made.given["log.retention.hours"]) == (4, "5")
    assert (made.listeners, made.store, made.broker_id) == ("PLAINTEXT://0.0.0.0:0", "x", 1)
    one = settings({"broker_id": ["3"], "listen": ["h:1"], "advertise": ["a:2"], "store": ["y"]})
    assert (one.broker_id, one.listeners, one.store) == (3, "PLAINTEXT://h:1", "y")
    assert one.advertised_listeners == "PLAINTEXT://a:2"
    with pytest.raises(UsageError):
        settings({"listen": ["x"]})
    assert settings({"set": ["broker.id=5"]}).broker_id == 5
    assert settings({}).given == {"broker.id": "1"}
    with pytest.raises(SettingsError):
        settings({"set": ["listeners=oops"]})


def test_version_and_help() -> None:
    done = subprocess.run([*PENSTOCK, "--version"], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.startswith("penstock, version ")
    done = subprocess.run([*PENSTOCK, "--help"], capture_output=True, text=True, check=True, timeout=120)
    for command in ("start", "topics", "produce", "consume", "cluster"):
        assert command in done.stdout


def test_the_command_line_says_who_does_not_answer() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        done = subprocess.run(
            [*PENSTOCK, "topics", "list", "--bootstrap", address],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr == f"Error: No broker answers at {address} (Connection refused).\n"
        with pytest.raises(ClientError):
            Client(address)


def _children_with(pid: int, text: str) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                status = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
                command = Path("/proc", entry, "cmdline").read_text()
            except OSError:
                continue
            if int(status[1]) == pid and text in command and status[0] != "Z":
                found.append(int(entry))
    return found


def _until(look: Callable[[], object], wanted: object, seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while look() != wanted:
        if time.monotonic() > deadline:
            return False
    return True


def test_the_http_port_is_printed_and_consecutive(
    start: Callable[..., Running], tmp_path: Path, port: int
) -> None:
    running = start(
        "--brokers", "2", "--listen", "127.0.0.1:0", "--http", f"127.0.0.1:{port}", "--store", str(tmp_path)
    )
    ports = {running.ready_with_http()[2] for _ in range(2)}
    assert ports == {f"http://127.0.0.1:{number}" for number in (port, port + 1)}
    for number in (port, port + 1):
        with urllib.request.urlopen(f"http://127.0.0.1:{number}/health/ready", timeout=30) as answer:
            assert answer.status == 200
    code, _output, _problem = running.finish()
    assert code == 0


def test_nothing_of_the_http_port_is_loaded_without_it(tmp_path: Path) -> None:
    program = (
        "import sys, asyncio\n"
        "from penstock.cli import lean; lean.prepare()\n"
        "from penstock.cli.start import settings\n"
        "from penstock.node.node import Node\n"
        f"values = {{'listen': ['127.0.0.1:0'], 'store': [{str(tmp_path)!r}]}}\n"
        "async def run():\n"
        "    node = Node(settings(values))\n"
        "    await node.start()\n"
        "    await node.kill()\n"
        "asyncio.run(run())\n"
        "ours = ('penstock.monitor', 'penstock.web', 'penstock.console', 'uvicorn', 'prometheus', 'http.')\n"
        "print([name for name in sys.modules if name.startswith(ours)])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
