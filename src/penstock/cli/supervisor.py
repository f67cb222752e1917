"""Several brokers on one machine: one process each, kept alive, one cluster in one store.

The supervisor holds no state of the cluster. It starts a process per broker and hands on the signal to stop.
It starts a dead one again, after a pause that grows while it keeps dying. It does not start a broker again
that an administrator removed, or whose id another process took: that would undo their decision. Nor one that
cannot read what the others wrote. If one broker cannot start at all in the beginning, none is run. Brokers
hold the reading end of a pipe that only the supervisor can write to. If it is closed, the supervisor is gone,
and they stop too.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from penstock.cli.logs import tell
from penstock.cli.start import LISTEN, REPLACED

if TYPE_CHECKING:
    from penstock.cli.start_options import Values

BACKOFF_FIRST_SECONDS = 0.2
BACKOFF_MAX_SECONDS = 10.0
STEADY_SECONDS = 30.0
"""A broker that lived so long is started again at once when it dies."""
STOP_SECONDS = 30.0
"""How long brokers may take to drain before they are killed."""


START_FAILED = 1
PORT_MAX = 65535
LIFELINE = "PENSTOCK_LIFELINE"
"""The environment variable that tells a broker the number of its end of the pipe."""


class Child:
    def __init__(self, broker_id: int, command: list[str], lifeline: int) -> None:
        self.broker_id = broker_id
        self.gone = False
        """It is not to be started again."""
        self.refused = False
        """Its very first start failed; it has said why."""
        self._starts = 0
        self._command = command
        self._lifeline = lifeline
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._pause = BACKOFF_FIRST_SECONDS
        self.start_at = 0.0

    def start(self, now: float) -> None:
        self._began = now
        self._starts += 1
        # Its own process group: a Ctrl-C in the terminal reaches the supervisor alone, which hands it on.
        self._process = subprocess.Popen(
            self._command,
            process_group=0,
            pass_fds=(self._lifeline,),
            env={**os.environ, LIFELINE: str(self._lifeline)},
        )

    def tend(self, now: float) -> None:
        """Start the broker if it is due; notice if it died."""
        if self._process is None:
            if now >= self.start_at and not self.gone:
                self.start(now)
            return
        code = self._process.poll()
        if code is None:
            return
        self._process = None
        self.refused = self._starts == 1 and code == START_FAILED
        self.gone = self.refused or code == REPLACED
        if self.gone:
            tell(f"broker {self.broker_id} ended ({_how(code)}) and is not started again.")
            return
        if now - self._began >= STEADY_SECONDS:
            self._pause = BACKOFF_FIRST_SECONDS
        lived = now - self._began
        tell(
            f"broker {self.broker_id} ended ({_how(code)}) after {lived:.1f} s; starting it again in "
            f"{self._pause:.1f} s."
        )
        self.start_at = now + self._pause
        self._pause = min(self._pause * 2, BACKOFF_MAX_SECONDS)

    def signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def wait(self, seconds: float) -> bool:
        """Has it ended in time?"""
        if self._process is None:
            return True
        try:
            self._process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return False
        return True


def supervise(values: Values, count: int) -> int:
    """Run `count` brokers until a signal; the exit code."""
    commands = [command(values, number) for number in range(1, count + 1)]
    wanted = [(*listen(values, number), "--listen") for number in range(1, count + 1)]
    if "http" in values:
        wanted += [(*_consecutive(values["http"][0], number), "--http") for number in range(1, count + 1)]
    problem = next(filter(None, (_unusable(*one) for one in wanted)), None)
    if problem is not None:
        tell(problem)
        return START_FAILED
    lifeline, _held = os.pipe()
    children = [Child(number, made, lifeline) for number, made in enumerate(commands, 1)]
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    stop = False

    def on_signal(number: int, frame: object) -> None:
        nonlocal stop
        stop = stop or number in (signal.SIGTERM, signal.SIGINT)

    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, on_signal)
    with selectors.DefaultSelector() as selector:
        selector.register(woken, selectors.EVENT_READ)
        while not stop:
            now = time.monotonic()
            for child in children:
                child.tend(now)
            if any(child.refused for child in children) or all(child.gone for child in children):
                _stop(children)
                return START_FAILED
            due = [child.start_at - now for child in children if child.start_at > now]
            if selector.select(min(due, default=1.0)):
                woken.recv(4096)
    return _stop(children)


def _stop(children: list[Child]) -> int:
    for child in children:
        child.signal(signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    all_ended = True
    for child in children:
        if not child.wait(deadline - time.monotonic()):
            all_ended = False
            child.signal(signal.SIGKILL)
            child.wait(5.0)
    return 0 if all_ended else 1


def _unusable(host: str, port: int, option: str) -> str | None:
    """Why a broker will not be able to listen there, if that can be seen beforehand."""
    from penstock.server.server import bind_failure

    if port > PORT_MAX:
        return f"There is no port {port}; choose a lower one with {option}."
    try:
        name = host.removeprefix("[").removesuffix("]") or None
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror:
        return None  # The broker says what is wrong with the name.
    family, kind, _protocol, _name, address = found[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            return bind_failure(host, port, error, option)
    return None


def _how(code: int) -> str:
    """How a process ended."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def listen(values: Values, number: int) -> tuple[str, int]:
    """The address of one broker."""
    return _consecutive((values.get("listen") or [LISTEN])[0], number)


def _consecutive(first: str, number: int) -> tuple[str, int]:
    """Consecutive ports from the first one's, or any if that is 0."""
    host, _colon, port = first.rpartition(":")
    return host, int(port) + number - 1 if int(port) else 0


def command(values: Values, number: int) -> list[str]:
    """How one broker is started: the supervisor's own options, with an id and a port of its own."""
    host, port = listen(values, number)
    made = [sys.executable, "-m", "penstock", "start", f"--broker-id={number}", f"--listen={host}:{port}"]
    if "advertise" in values:
        host, _colon, first = values["advertise"][0].rpartition(":")
        made.append(f"--advertise={host}:{int(first) + number - 1}")
    if "http" in values:
        host, port = _consecutive(values["http"][0], number)
        made.append(f"--http={host}:{port}")
    for name, given in values.items():
        if name not in ("brokers", "listen", "advertise", "http"):
            made += [f"--{name.replace('_', '-')}={value}" for value in given]
    return made
