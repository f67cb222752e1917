"""Measures by how much the event loop is late: a timer ten times a second, and how late it came.

The same timer lets others know that time has passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter_ns

from penstock.tally import Histogram

PERIOD_SECONDS = 0.1


class Stalls:
    def __init__(self, ring: Callable[[], None]) -> None:
        """`ring` is called each time."""
        self._tell = ring
        self.late = Histogram()
        """In nanoseconds."""
        self._loop = asyncio.get_running_loop()
        self._due_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._due_ns = perf_counter_ns() + int(PERIOD_SECONDS * 1e9)
        self._timer = self._loop.call_later(PERIOD_SECONDS, self._ring)

    def _ring(self) -> None:
        self.late.add(max(0, perf_counter_ns() - self._due_ns))
        self._tell()
        self.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
