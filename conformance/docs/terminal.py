"""One command in a terminal of its own, as a reader has it: tables, colours and Ctrl-C are those of a terminal."""

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROWS, COLUMNS = 50, 120
STOP_LIMIT_S = 30.0
_POLL_S = 0.02


class Terminal:
    """What it prints is gathered from the beginning on."""

    def __init__(self, command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        modes = termios.tcgetattr(theirs)
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, modes)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # So it is for what a script runs in the background, and all that it starts would not hear a Ctrl-C.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._process = subprocess.Popen(
            command,
            cwd=directory,
            env=dict(environment),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._ours = ours
        self._printed: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # A terminal whose other end is closed everywhere says EIO.
        with contextlib.suppress(OSError):
            while data := os.read(self._ours, 65536):
                self._printed.append(data)

    @property
    def printed(self) -> str:
        return b"".join(self._printed).decode(errors="replace").replace("\r\n", "\n")

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None: it still runs."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        # What it left running in the background may hold the terminal open for longer.
        self._reader.join(0.2)
        return code

    def stop(self, kill: bool = False) -> bool:
        """Ctrl-C, or kill -9, for all that runs in it. Whether that ended it."""
        if self.ended:
            return True
        os.killpg(self._process.pid, signal.SIGKILL if kill else signal.SIGINT)
        return self.wait(STOP_LIMIT_S) is not None

    def close(self) -> None:
        """Nothing that it started goes on."""
        for sent, patience_s in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, sent)
            if _gone(self._process, patience_s):
                break
        with contextlib.suppress(OSError):
            os.close(self._ours)


def _gone(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Whether the whole process group ended in time, not only its first process."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        process.poll()
        # The first process of a namespace inherits those whose parents have ended.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-process.pid, os.WNOHANG)
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(_POLL_S)
    return False
