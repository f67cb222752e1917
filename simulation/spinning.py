"""Finds a step that never ends: time stands still in it, so no deadline of the world finds it."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

CPU_SECONDS_MAX = 30.0
"""A hundred times what a seed takes. CPU time, because the machine may be busy with other things."""
FRAMES_SHOWN = 8


class Spinning(BaseException):
    """Ends the step, whatever it is in."""


@contextmanager
def ends_in_time(found: Callable[[str], None], seconds: float = CPU_SECONDS_MAX) -> Iterator[None]:
    """`found` is called with where the process is if it is not done after so many seconds of CPU time."""

    def tell(number: int, frame: FrameType | None) -> None:
        where = "".join(traceback.format_stack(frame)[-FRAMES_SHOWN:])
        found(f"this world is not at its end after {seconds} s of CPU time:\n{where}")
        raise Spinning

    before = signal.signal(signal.SIGVTALRM, tell)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
