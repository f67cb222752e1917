"""Waits for a condition: asks until the answer is yes, and fails if that takes too long."""

import asyncio
import time
from collections.abc import Callable


class Late(AssertionError):
    """It did not come in time. The message says what."""


def until(holds: Callable[[], object], within_s: float, what: str, *, every_s: float = 0.02) -> float:
    """Ask until the answer is true; seconds that took. `Late` when time is up."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > within_s:
            raise Late(f"{what} did not come within {within_s:.0f} s")
        time.sleep(every_s)
    return time.monotonic() - began


async def eventually(holds: Callable[[], object], what: str = "it", within_s: float = 60.0) -> None:
    """The same on an event loop, where every other task has its turn between two questions."""
    deadline = time.monotonic() + within_s
    turns = 0
    while not holds():
        if time.monotonic() > deadline:
            raise Late(f"{what} did not come within {within_s:.0f} s")
        turns += 1
        # Most of what is waited for needs a few turns of this loop. The rest is done by threads and sockets.
        await asyncio.sleep(0 if turns < 100 else 0.001)
