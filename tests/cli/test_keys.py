"""A key that ends a command: on a terminal of its own, as a person has one."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from select import select
from types import SimpleNamespace

import pytest

from penstock.cli.keys import interrupted_by
from penstock.testing import Broker

PATIENCE_SECONDS = 30.0


class Terminal:
    """The end that a person sees."""

    def __init__(self, descriptor: int, other_end: int) -> None:
        self._descriptor = descriptor
        self._other_end = other_end
        self._attributes = termios.tcgetattr(other_end)
        self.seen = b""

    @property
    def as_it_was(self) -> bool:
        return termios.tcgetattr(self._other_end) == self._attributes

    def press(self, keys: bytes) -> None:
        os.write(self._descriptor, keys)

    def look_for(self, words: bytes) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while words not in self.seen:
            assert select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))[0], self.seen
            self.seen += os.read(self._descriptor, 65536)

    def read_on(self) -> threading.Thread:
        """A program cannot end before what it wrote is read."""

        def read() -> None:
            try:
                while part := os.read(self._descriptor, 65536):
                    self.seen += part
            except OSError:
                pass  # nobody writes to it any more

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        return reader


@contextmanager
def on_terminal(*arguments: str) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    ours, theirs = pty.openpty()
    terminal = Terminal(ours, theirs)
    command = [sys.executable, "-m", "penstock", *arguments]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        try:
            yield terminal, process
        finally:
            process.kill()
    os.close(theirs)
    os.close(ours)


@pytest.mark.parametrize("key", [b"q", b"Q", b"x..q"])
def test_q_ends_top(key: bytes) -> None:
    with (
        Broker() as broker,
        on_terminal("top", "--bootstrap", broker.bootstrap_servers, "--every", "60") as (terminal, top),
    ):
        terminal.look_for(b"RECORDS/S")  # the figures are there, and the next ones come in a minute
        assert not terminal.as_it_was
        terminal.press(key)
        terminal.read_on()
        assert top.wait(PATIENCE_SECONDS) == 0
        assert terminal.as_it_was
    assert b"Traceback" not in terminal.seen


def test_q_ends_top_also_while_a_broker_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with on_terminal("top", "--bootstrap", f"127.0.0.1:{port}") as (terminal, top):
            silent.settimeout(PATIENCE_SECONDS)
            connection, _ = silent.accept()
            with connection:
                assert connection.recv(1)  # it asks, and nobody answers
                terminal.press(b"q")
                terminal.read_on()
                assert top.wait(PATIENCE_SECONDS) == 0
    assert b"Traceback" not in terminal.seen


def test_where_keys_come_from_another_console(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has no termios, and a module of its own."""
    keys = iter("abQ")
    console = SimpleNamespace(kbhit=lambda: True, getwch=lambda: next(keys))
    monkeypatch.setitem(sys.modules, "termios", None)
    monkeypatch.setitem(sys.modules, "msvcrt", console)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    with pytest.raises(KeyboardInterrupt), interrupted_by("q"):
        threading.Event().wait(PATIENCE_SECONDS)
    assert list(keys) == []


def test_without_a_terminal_no_key_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))
    with interrupted_by("q"):
        assert not any(one.name == "keys" for one in threading.enumerate())
