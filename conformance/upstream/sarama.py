"""Sarama: its functional tests, which stop and start the brokers of a cluster behind proxies that break connections.

They are written for five brokers in containers. Here the brokers are processes, the proxies are the same program, and a
stand-in for the `docker` command does what the tests ask of it: stop a broker and start it again, show what it logged,
and run one of Kafka's own tools beside it.
"""

import contextlib
import json
import os
import shlex
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from conformance import parts
from conformance.cluster.processes import HOST, Cluster
from conformance.server import ServerFailed, free_port
from conformance.upstream.go import go_test, go_tests, pinned_version
from conformance.upstream.suite import Outcome, Suite
from penstock.testing.ports import consecutive
from penstock.testing.waiting import until

SARAMA = "github.com/IBM/sarama"
TOXIPROXY = "github.com/Shopify/toxiproxy/v2/cmd/server", "v2.12.0"
BROKERS = 5
TOOLS = {
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-verifiable-consumer.sh": "org.apache.kafka.tools.VerifiableConsumer",
}
READY_WITHIN_S = 30.0
STAND_IN = Path(__file__).with_name("docker.py")


class Sarama(Suite):
    """The tests of its module that are tagged functional."""

    name = "sarama"
    settings = {  # noqa: RUF012
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "default.replication.factor": "2",
    }
    reasons: dict[str, str] = {}  # noqa: RUF012

    def run_against(self, against: str) -> Outcome:
        if against != "penstock":
            raise parts.PartMissing(
                f"{self.name}'s tests stop and start {BROKERS} brokers, which are Penstock's own here."
            )
        module = parts.go_module(SARAMA, pinned_version("sarama", SARAMA))
        proxies = parts.go_tool("toxiproxy", *TOXIPROXY)
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="conformance-sarama-")))
            first = stack.enter_context(consecutive(BROKERS))
            where = folder / "source"
            shutil.copytree(module, where, copy_function=shutil.copyfile)
            tests = go_tests(where.glob("functional_*test.go"))
            chosen, left = self.split(tests)
            cluster = stack.enter_context(Cluster(BROKERS, self.settings, options=partial(_told, first)))
            cluster.start()
            for path in where.glob("functional_*test.go"):
                path.write_text(moved(path.read_text(), first, cluster[1].address, folder))
            _write_tools(folder / f"kafka-{parts.KAFKA_NEWEST}" / "bin")
            environment = os.environ | {
                "PATH": f"{_write_docker(folder / 'bin')}{os.pathsep}{os.environ['PATH']}",
                "TOXIPROXY_ADDR": stack.enter_context(proxied(proxies, cluster, first)),
                "KAFKA_VERSION": parts.KAFKA_NEWEST,
                "CONFORMANCE_CONTROL": str(stack.enter_context(controlled(cluster, folder))),
            }
            outcome = go_test(where, chosen, left, environment, tags="functional")
            for problem in cluster.tracebacks():
                outcome.failed[problem.partition(":")[0]] = problem
            return outcome


def _told(first: int, broker: int) -> list[str]:
    """Clients are sent through the proxies, and a broker's rack is called after it."""
    return ["--advertise", f"{HOST}:{first + broker - 1}", "--rack", str(broker)]


def moved(text: str, first: int, inside: str, folder: Path) -> str:
    """The source of tests with addresses and folders as they are here."""
    text = text.replace("29090", str(first - 1)).replace("kafka-1:9091", inside)
    # What needs a container is left out by the tests where they did not make the containers themselves.
    text = text.replace("env.UsingExisting = usingExisting", "env.UsingExisting = false")
    return text.replace("/opt/kafka-", f"{folder}/kafka-")


def _write_tools(folder: Path) -> None:
    folder.mkdir(parents=True)
    command = parts.java(parts.kafka_classpath(parts.KAFKA_NEWEST), heap_mb=128)
    for name, tool in TOOLS.items():
        # While the tests wait for a tool's end they still read its complaints, which Go's os/exec forbids: a tool
        # that ends before they have read them all has failed, then. So it has none.
        _write_program(folder / name, [*command, tool], more="2>/dev/null")


def _write_docker(folder: Path) -> Path:
    folder.mkdir()
    _write_program(folder / "docker", [sys.executable, str(STAND_IN)])
    return folder


def _write_program(path: Path, command: Sequence[str], more: str = "") -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@" {more}\n')
    path.chmod(0o755)


@contextlib.contextmanager
def proxied(program: Path, cluster: Cluster, first: int) -> Iterator[str]:
    """A proxy for each broker at the ports from this one on; where the proxies are told what to do."""
    port = free_port()
    server = subprocess.Popen(
        [str(program), "-host", HOST, "-port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://{HOST}:{port}"
    try:
        until(lambda: _answers(address), READY_WITHIN_S, "the proxies")
        for broker, member in cluster.members.items():
            wanted = {
                "name": f"kafka{broker}",
                "listen": f"{HOST}:{first + broker - 1}",
                "upstream": member.address,
                "enabled": True,
            }
            request = urllib.request.Request(f"{address}/proxies", json.dumps(wanted).encode())
            urllib.request.urlopen(request, timeout=READY_WITHIN_S).close()
        yield address
    finally:
        server.kill()
        server.wait()


def _answers(address: str) -> bool:
    with contextlib.suppress(urllib.error.URLError, ConnectionError):
        urllib.request.urlopen(f"{address}/version", timeout=1).close()
        return True
    return False


@contextlib.contextmanager
def controlled(cluster: Cluster, folder: Path) -> Iterator[Path]:
    """The socket at which the stand-in for `docker` asks for a broker to be stopped, started or quoted."""

    class Asked(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            verb, broker = self.rfile.readline().decode().split()
            member = cluster[int(broker)]
            try:
                if verb == "start" and not member.running:
                    member.start()
                elif verb == "stop" and member.running:
                    member.stop()
                said = member.log.read_text(errors="replace") if verb == "logs" else "ok"
            except ServerFailed as why:
                said = f"FAILED: {why}"
            self.wfile.write(said.encode())

    place = folder / "control"
    with socketserver.ThreadingUnixStreamServer(str(place), Asked) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield place
        finally:
            server.shutdown()
