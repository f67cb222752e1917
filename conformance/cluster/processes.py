"""Several Penstock brokers as real processes on one store: started, stopped, killed and paused one by one."""

import contextlib
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from conformance import parts
from conformance.server import ServerFailed, free_port

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 90.0
HOST = "127.0.0.1"
_SERVING = re.compile(rb"penstock broker (\d+) is serving on")


class Member:
    """One broker of a cluster. Its address stays the same over restarts."""

    def __init__(
        self,
        broker: int,
        port: int,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.broker = broker
        self.port = port
        self.log = log
        self._command = list(command)
        self.environment = environment
        """That of the next process."""
        self._process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"broker {self.broker} is not running"
        return self._process.pid

    def spawn(self) -> None:
        """Start the process without waiting for it."""
        assert not self.running, f"broker {self.broker} is running"
        self.started_at = time.monotonic()
        with self.log.open("ab") as errors:
            self._process = subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=self.log.parent,
                env=self.environment,
            )

    def wait_until_serving(self) -> float:
        """Wait for the line that says so; seconds since the process was started."""
        process = self._process
        assert process is not None and process.stdout is not None
        said = b""
        deadline = self.started_at + START_TIMEOUT_S
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not said.endswith(b"\n"):
                left = deadline - time.monotonic()
                piece = b""
                if left > 0 and selector.select(left):
                    piece = os.read(process.stdout.fileno(), 4096)
                if not piece:
                    self.kill()
                    raise ServerFailed(f"broker {self.broker} did not come to serve:\n{self.tail()}")
                said += piece
        if not _SERVING.match(said):
            raise ServerFailed(f"broker {self.broker} said {said!r}")
        return time.monotonic() - self.started_at

    def start(self) -> float:
        self.spawn()
        return self.wait_until_serving()

    def kill(self) -> None:
        """kill -9, now."""
        if self._process is not None:
            self._process.kill()
            self._forget()

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        os.kill(self.pid, signal.SIGTERM)

    def stop(self) -> float:
        """A controlled stop; seconds it took."""
        began = time.monotonic()
        self.terminate()
        return self.wait_until_ended(began)

    def wait_until_ended(self, began: float) -> float:
        assert self._process is not None
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(f"broker {self.broker} did not end in {STOP_TIMEOUT_S:.0f} s") from None
        self._forget()
        if code:
            raise ServerFailed(f"broker {self.broker} ended with {code}:\n{self.tail()}")
        return time.monotonic() - began

    def wait(self, seconds: float) -> int | None:
        """The exit code of a process that ends by itself; None if it does not."""
        assert self._process is not None
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self._forget()
        return code

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _forget(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def rss_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def tail(self, lines: int = 20) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


class Cluster:
    """Brokers 1 to N, none of them started yet, on a store in a temporary folder."""

    def __init__(
        self,
        count: int = 3,
        settings: Mapping[str, str] | None = None,
        *,
        program: Sequence[str] | None = None,
        environment: Callable[[Path], Mapping[str, str]] | None = None,
        racks: bool = False,
        store: str | None = None,
        options: Callable[[int], Sequence[str]] = lambda _: (),
    ) -> None:
        """`program`: what stands for the `penstock` command; a deliberately broken one, for instance.
        `environment`: that of the brokers, given the folder of the cluster. `store`: if not in that folder.
        `options`: more of its command, for each broker."""
        self.folder = Path(tempfile.mkdtemp(prefix="conformance-cluster-"))
        self.store = store or str(self.folder / "store")
        chosen = [f"--set={name}={value}" for name, value in (settings or {}).items()]
        started = list(program or [penstock()])
        variables = environment(self.folder) if environment is not None else None
        self.members: dict[int, Member] = {}
        for broker in range(1, count + 1):
            port = free_port()
            command = [*started, "start", "--broker-id", str(broker), "--listen", f"{HOST}:{port}"]
            command += ["--store", self.store, *chosen]
            if racks:
                command += ["--rack", f"rack-{broker}"]
            command += options(broker)
            log = self.folder / f"broker-{broker}.log"
            self.members[broker] = Member(broker, port, command, log, variables)

    def __getitem__(self, broker: int) -> Member:
        return self.members[broker]

    @property
    def running(self) -> list[Member]:
        return [member for member in self.members.values() if member.running]

    @property
    def bootstrap(self) -> str:
        """All addresses."""
        return ",".join(member.address for member in self.members.values())

    def start(self, brokers: Iterable[int] | None = None) -> dict[int, float]:
        """Start these (or all) at once; seconds until each served."""
        chosen = [self.members[broker] for broker in (brokers or self.members)]
        for member in chosen:
            member.spawn()
        return {member.broker: member.wait_until_serving() for member in chosen}

    def kill(self) -> None:
        """kill -9 of all that run, as close together as can be."""
        running = self.running
        for member in running:
            os.kill(member.pid, signal.SIGKILL)
        for member in running:
            member.kill()

    def tracebacks(self) -> list[str]:
        """What nobody foresaw, as brokers logged it."""
        found = []
        for member in self.members.values():
            text = member.log.read_text(errors="replace") if member.log.exists() else ""
            for part in text.split("Traceback (most recent call last)")[1:]:
                lines = part.splitlines()[:60]
                end = next((at for at, line in enumerate(lines) if line and not line.startswith(" ")), -1)
                found.append(f"broker {member.broker} logged a traceback:" + "\n".join(lines[: end + 1]))
        return found

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, KeyboardInterrupt):
            for member in self.members.values():
                with contextlib.suppress(OSError):
                    print(f"--- broker {member.broker} said last:\n{member.tail()}", file=sys.stderr)
        self.close()


def penstock() -> str:
    """The command that users run."""
    beside = Path(sys.executable).with_name("penstock")
    found = beside if beside.exists() else parts.ROOT / ".venv" / "bin" / "penstock"
    if not found.exists():
        raise parts.PartMissing("no penstock command beside this Python: run make install first.")
    return str(found)
