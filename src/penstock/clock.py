"""The one place that reads the machine's clocks. Everything else is handed a `Clock`."""

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol


class Clock(Protocol):
    def time_ms(self) -> int:
        """Wall-clock milliseconds since the epoch: for timestamps that users see, never for safety."""

    def monotonic(self) -> float:
        """Seconds that never go back, and go on while the machine is suspended: for time-outs and leases."""


class SystemClock:
    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return _monotonic()


def monotonic_clock() -> Callable[[], float]:
    """Linux's CLOCK_MONOTONIC stands still while a machine sleeps: who wakes would believe in a lease that
    others saw end."""
    boot_time: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if boot_time is None else partial(time.clock_gettime, boot_time)


_monotonic = monotonic_clock()
