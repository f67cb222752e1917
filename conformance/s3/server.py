"""A real S3 server on loopback, which can be killed, started again and made to hang.

It is versitygw (Apache-2.0), built by `go install`. It keeps each object as a file, so one that is killed and
started again has everything it answered for.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from conformance import parts
from conformance.server import ServerFailed, free_port
from penstock.testing.waiting import until

VERSION = "v1.8.0"
HOST = "127.0.0.1"
BUCKET = "penstock"
KEY, SECRET = "conformance", "conformance-secret"
START_TIMEOUT_S = 10.0


def versitygw() -> Path:
    """The server's program, built once."""
    program = parts.PARTS / "bin" / "versitygw"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        os.environ["GOBIN"] = str(program.parent)
        parts.fetch(
            f"versitygw {VERSION}",
            ["go", "install", f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"],
            parts.ROOT,
        )
    return program


class S3Server:
    """A server of one bucket. `environment` points S3 clients at it."""

    url = f"s3://{BUCKET}/cluster"
    """Where a cluster keeps its store."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="conformance-s3-"))
        self.objects = self._folder / BUCKET / "cluster"
        """Where the server keeps the objects of `url`, each as a file."""
        self.objects.mkdir(parents=True)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://{HOST}:{self.port}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def start(self) -> None:
        command = [str(versitygw()), "--port", f"{HOST}:{self.port}", "posix", str(self._folder)]
        self._process = process = subprocess.Popen(
            command,
            env={**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(lambda: self._accepts() or process.poll() is not None, START_TIMEOUT_S, "the S3 server")
        if process.poll() is not None:
            raise ServerFailed("the S3 server ended before it served")

    def _accepts(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), 1):
            return True
        return False

    def kill(self) -> None:
        """Connections are refused from now on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Requests hang from now on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
