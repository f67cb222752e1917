"""The one interface of a server under test, Penstock or Apache Kafka: start, stop, kill, start again.

`oracle.ApacheKafka` and `target.Penstock` are its two implementations. Both keep their data in a temporary
folder that is removed on exit, listen on loopback, and are ready when they answer a Metadata request that
lists a broker.
"""

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.testing.ports import consecutive

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 90.0
# ApiKey 3 version 0, correlation 1, client id "ready", no topics named.
METADATA_V0 = struct.pack(">hhih5si", 3, 0, 1, 5, b"ready", 0)


class ServerFailed(Exception):
    """The broker did not come up, or did not go down."""


class Server(ABC):
    """A broker process on a loopback port, with its data in a temporary folder."""

    name: str

    def __init__(self) -> None:
        self.host = "127.0.0.1"
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="conformance-"))
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "the broker is not running"
        return self.process.pid

    @property
    def log(self) -> Path:
        return self.folder / "output.log"

    @abstractmethod
    def command(self) -> list[str]:
        """The command that runs the broker on its data, new or old."""

    def prepare(self) -> None:  # noqa: B027 (most servers need nothing)
        """Whatever must be done once before the first start."""

    def launch(self) -> "subprocess.Popen[bytes]":
        """Start and wait for nothing."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command(), stdout=output, stderr=subprocess.STDOUT, cwd=self.folder
            )
        return self.process

    def start(self) -> float:
        """Start and wait until it serves; seconds that took."""
        began = time.monotonic()
        self.process = self.launch()
        while not serves(self.host, self.port):
            if self.process.poll() is not None:
                raise ServerFailed(
                    f"{self.name} ended with {self.process.returncode} before it served:\n{self.tail()}"
                )
            if time.monotonic() - began > START_TIMEOUT_S:
                self.kill()
                raise ServerFailed(
                    f"{self.name} did not serve within {START_TIMEOUT_S:.0f} s:\n{self.tail()}"
                )
            time.sleep(0.02)
        return time.monotonic() - began

    def stop(self) -> None:
        """Ask it to leave, and wait until it has."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(
                f"{self.name} did not leave within {STOP_TIMEOUT_S:.0f} s of SIGTERM:\n{self.tail()}"
            ) from None
        self.process = None

    def kill(self) -> None:
        """kill -9, now."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def tail(self, lines: int = 30) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def rss_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def __enter__(self) -> Self:
        try:
            self.prepare()
            self.start()
        except BaseException:
            self.kill()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Running(Server):
    """A server that was started elsewhere and is not stopped here, named by its address."""

    name = "the running broker"

    def __init__(self, bootstrap: str) -> None:
        self.host, _, port = bootstrap.rpartition(":")
        self.port = int(port)
        self.process = None

    def command(self) -> list[str]:
        raise ServerFailed("a broker named by its address is not ours to start")

    def __enter__(self) -> Self:
        if not serves(self.host, self.port):
            raise ServerFailed(f"nothing that speaks Kafka serves at {self.bootstrap}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


_held = contextlib.ExitStack()


def free_port() -> int:
    """A port that nobody else is given before this process ends."""
    return _held.enter_context(consecutive(1))


def serves(host: str, port: int, timeout_s: float = 5.0) -> bool:
    """True once Metadata names at least one broker."""
    with (
        contextlib.suppress(OSError, struct.error),
        socket.create_connection((host, port), timeout_s) as connection,
    ):
        connection.sendall(struct.pack(">i", len(METADATA_V0)) + METADATA_V0)
        answer = _exactly(connection, struct.unpack(">i", _exactly(connection, 4))[0])
        return bool(struct.unpack_from(">i", answer, 4)[0] > 0)
    return False


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0:
        part = connection.recv(size)
        if not part:
            raise ConnectionResetError("closed")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


@contextlib.contextmanager
def interrupted_cleanly() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C does, so that brokers we started are killed."""

    def leave(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
