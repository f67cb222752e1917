"""A key that ends a command as Ctrl-C does, for commands that draw on a terminal until somebody ends them.

A thread waits for the key and interrupts the main thread, which may be waiting for a broker that does not
answer.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from select import select

TURN_SECONDS = 0.1
NextKey = Callable[[], str | None]
"""The next key; nothing if none came for a moment, None if none will come any more."""


@contextmanager
def interrupted_by(key: str) -> Iterator[None]:
    """Meanwhile keys are not shown, and KeyboardInterrupt is raised if this one is pressed, large or small.
    Then the terminal is as it was. Where no terminal is read from, no key is waited for."""
    if not sys.stdin.isatty():
        yield
        return
    over = threading.Event()
    with ExitStack() as stack:
        try:
            next_key = stack.enter_context(_unix())
        except ModuleNotFoundError:
            next_key = _windows()
        watch = threading.Thread(target=_watch, args=[next_key, key, over], name="keys", daemon=True)
        watch.start()
        try:
            yield
        finally:
            over.set()
            watch.join()


def _watch(next_key: NextKey, wanted: str, over: threading.Event) -> None:
    while not over.is_set():
        pressed = next_key()
        if pressed is None:
            return
        if pressed.lower() == wanted:
            _interrupt_main()
            return


def _interrupt_main() -> None:
    if hasattr(signal, "pthread_kill"):
        # A signal to the thread itself: what it waits for in the kernel ends, too.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()


@contextmanager
def _unix() -> Iterator[NextKey]:
    import termios
    import tty

    terminal = sys.stdin.fileno()

    def next_key() -> str | None:
        if not select([terminal], [], [], TURN_SECONDS)[0]:
            return ""
        try:
            return os.read(terminal, 1).decode(errors="replace") or None
        except OSError:  # the terminal is gone
            return None

    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield next_key
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _windows() -> NextKey:
    console = import_module("msvcrt")
    pause = threading.Event()

    def next_key() -> str:
        if not console.kbhit():
            pause.wait(TURN_SECONDS)
            return ""
        pressed: str = console.getwch()
        return pressed

    return next_key
