"""Clocks that tests move."""

from penstock.clock import SystemClock


class HandClock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.seconds = 0.0

    def time_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, ms: int) -> None:
        """Both clocks."""
        self.now_ms += ms
        self.seconds += ms / 1000


class AheadClock(SystemClock):
    """The system's, with a wall clock that a test sets ahead: for brokers whose timers are real."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def time_ms(self) -> int:
        return super().time_ms() + self.ahead_ms
