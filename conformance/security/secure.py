"""A cluster as `penstock start --secure` makes it, on loopback, with the files that it writes."""

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.settings.properties import parse_properties
from penstock.testing.ports import consecutive

START_S = 60.0
STOP_S = 60.0
PROGRAM = str(Path(sys.executable).with_name("penstock"))


@dataclass(frozen=True, slots=True)
class Cluster:
    """What runs: its first address, its store, and what clients are given."""

    bootstrap: str
    store: Path
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def folder(self) -> Path:
        return self.store / "security"

    @property
    def client_properties(self) -> Path:
        return self.folder / "client.properties"

    @property
    def librdkafka_properties(self) -> Path:
        return self.folder / "librdkafka.properties"

    def librdkafka(self) -> dict[str, str]:
        return parse_properties(self.librdkafka_properties.read_text())

    def penstock(self, *arguments: str, given: bytes = b"") -> str:
        """What one of Penstock's commands prints as the administrator."""
        shared = ["--bootstrap", self.bootstrap, "--command-config", str(self.client_properties)]
        done = subprocess.run(
            [PROGRAM, *arguments, *shared], input=given, capture_output=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"penstock {' '.join(arguments)}: {done.stderr.decode()}"
        return done.stdout.decode()


@contextlib.contextmanager
def secure_cluster(brokers: int = 1, settings: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="secure-"))
    log = folder / "output.log"
    options = [text for name, value in (settings or {}).items() for text in ("--set", f"{name}={value}")]
    with consecutive(brokers) as port, log.open("wb") as output:
        address = f"127.0.0.1:{port}"
        command = [
            PROGRAM,
            "start",
            "--secure",
            "--listen",
            address,
            "--store",
            str(folder / "store"),
            *options,
        ]
        if brokers > 1:
            command += ["--brokers", str(brokers)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, cwd=folder)
        try:
            _await(process, brokers, log)
            yield Cluster(address, folder / "store", process, log)
        finally:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
            process.kill()
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)


def _await(process: "subprocess.Popen[bytes]", brokers: int, log: Path) -> None:
    """Until all of them have said that they serve; what they say later is read and left alone."""
    said: list[bytes] = []

    def listen() -> None:
        assert process.stdout is not None
        said.extend(process.stdout)

    threading.Thread(target=listen, daemon=True).start()
    deadline = time.monotonic() + START_S
    while b"".join(said).count(b"is serving") < brokers:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the cluster did not start: {log.read_text()}")
        time.sleep(0.05)
