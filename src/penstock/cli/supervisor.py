"""Several brokers on one machine: one process each, kept alive, one cluster in one store.

The supervisor holds no state of the cluster. It starts a process per broker, starts one again that died,
after a pause that grows while it keeps dying, and hands on the signal to stop. Brokers hold the reading end
of a pipe that only the supervisor can write to: if it is closed, the supervisor is gone, and they stop too.
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

if TYPE_CHECKING:
    from penstock.cli.start_options import Values

BACKOFF_FIRST_SECONDS = 0.2
BACKOFF_MAX_SECONDS = 10.0
STEADY_SECONDS = 30.0
"""A broker that lived so long is started again at once when it dies."""
STOP_SECONDS = 30.0
"""How long brokers may take to drain before they are killed."""


LIFELINE = "PENSTOCK_LIFELINE"
"""The environment variable that tells a broker the number of its end of the pipe."""


class Child:
    def __init__(self, broker_id: int, command: list[str], lifeline: int) -> None:
        self.broker_id = broker_id
        self._command = command
        self._lifeline = lifeline
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._pause = BACKOFF_FIRST_SECONDS
        self.start_at = 0.0

    def start(self, now: float) -> None:
        self._began = now
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
            if now >= self.start_at:
                self.start(now)
            return
        code = self._process.poll()
        if code is None:
            return
        self._process = None
        if now - self._began >= STEADY_SECONDS:
            self._pause = BACKOFF_FIRST_SECONDS
        print(
            f"penstock: broker {self.broker_id} ended (exit code {code}); starting it again in "
            f"{self._pause:.1f} s",
            file=sys.stderr,
            flush=True,
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
    lifeline, _held = os.pipe()
    children = [Child(number, command(values, number), lifeline) for number in range(1, count + 1)]
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


def command(values: Values, number: int) -> list[str]:
    """How one broker is started: the supervisor's own options, with an id and a port of its own."""
    from penstock.cli.start import LISTEN

    host, _colon, port = (values.get("listen") or [LISTEN])[0].rpartition(":")
    own_port = int(port) + number - 1 if int(port) else 0
    made = [sys.executable, "-m", "penstock", "start", f"--broker-id={number}", f"--listen={host}:{own_port}"]
    if "advertise" in values:
        host, _colon, port = values["advertise"][0].rpartition(":")
        made.append(f"--advertise={host}:{int(port) + number - 1}")
    for name, given in values.items():
        if name not in ("brokers", "listen", "advertise"):
            made += [f"--{name.replace('_', '-')}={value}" for value in given]
    return made
