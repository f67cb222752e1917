"""The one place that reads the machine's clocks. Everything else is handed a `Clock`."""

import time
from typing import Protocol


class Clock(Protocol):
    def time_ms(self) -> int:
        """Wall-clock milliseconds since the epoch: for timestamps that users see, never for safety."""

    def monotonic(self) -> float:
        """Seconds that never go back: for time-outs and leases."""


class SystemClock:
    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
