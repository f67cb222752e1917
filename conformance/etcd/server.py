"""A real etcd for the runs that need one: three members on loopback, built once by Go."""

import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from conformance import parts
from conformance.server import free_port

VERSION = "v3.6.8"
START_TIMEOUT_S = 30.0


def etcd() -> Path:
    """The server, built once (about two minutes)."""
    return parts.go_tool("etcd", "go.etcd.io/etcd/server/v3", VERSION)


class Etcd:
    """An etcd cluster whose members can be killed, paused and started again."""

    def __init__(self, members: int = 3, *options: str) -> None:
        """`options`: more of them for each member."""
        self._program = etcd()
        self._options = options
        self._folder = tempfile.TemporaryDirectory(prefix="conformance-etcd-")
        self._ports = [(free_port(), free_port()) for _ in range(members)]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * members

    def __enter__(self) -> Self:
        try:
            for number in range(len(self._ports)):
                self.start(number)
            self.wait()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in range(len(self._ports)):
            self.kill(number)
        self._folder.cleanup()

    @property
    def url(self) -> str:
        return "etcd://" + ",".join(f"127.0.0.1:{client}" for client, _peer in self._ports)

    def start(self, number: int) -> None:
        names = [f"member{at}" for at in range(len(self._ports))]
        peers = ",".join(
            f"{name}=http://127.0.0.1:{peer}" for name, (_c, peer) in zip(names, self._ports, strict=True)
        )
        client, peer = (f"http://127.0.0.1:{port}" for port in self._ports[number])
        folder = os.path.join(self._folder.name, names[number])
        command = [
            str(self._program), "--name", names[number], "--data-dir", folder,
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", peers, "--log-level", "error", *self._options,
        ]  # fmt: skip
        with open(f"{folder}.log", "ab") as output:
            self._processes[number] = subprocess.Popen(command, stdout=output, stderr=output)

    def kill(self, number: int) -> None:
        process = self._processes[number]
        if process is not None:
            process.kill()
            process.wait()
            self._processes[number] = None

    def pause(self, number: int, paused: bool) -> None:
        process = self._processes[number]
        assert process is not None
        process.send_signal(signal.SIGSTOP if paused else signal.SIGCONT)

    def status(self, number: int) -> dict[str, Any] | None:
        """What a member says of itself; None if it does not answer."""
        if self._processes[number] is None:
            return None
        url = f"http://127.0.0.1:{self._ports[number][0]}/v3/maintenance/status"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, b"{}"), timeout=2) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (OSError, urllib.error.URLError):
            return None

    def leader(self) -> int | None:
        """The member that leads, as soon as one says so of itself."""
        for number in range(len(self._ports)):
            said = self.status(number)
            if said is not None and said.get("leader") and said["leader"] == said["header"]["member_id"]:
                return number
        return None

    def wait(self) -> int:
        """Until there is a leader: which."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            leader = self.leader()
            if leader is not None:
                return leader
            time.sleep(0.05)
        raise SystemExit(f"etcd had no leader within {START_TIMEOUT_S:.0f} s")
