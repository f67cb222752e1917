"""How long flushes wait and take. To time a quick one costs about as much as the flush, so few are timed."""

from collections.abc import Callable
from time import perf_counter_ns

from penstock.storage.ledger.flush import Flush
from penstock.tally import Histogram

QUICK_SAMPLE = 64
QUICK_NS = 200_000
"""A flush that takes no longer costs little more than to time it."""
NEVER = 1 << 62


def _nobody() -> None:
    """No log is open."""


class FlushTimes:
    """How long flushes wait and take, in nanoseconds, and their bytes.

    Where flushes are quick, one in `QUICK_SAMPLE` is timed, and one each time `ring` was called. It stands
    for those since the last one. A slow flush is followed by one that is timed too.
    """

    __slots__ = ("bytes", "ring", "wait", "write")

    def __init__(self) -> None:
        self.ring: Callable[[], None] = _nobody
        """Time the next flush: some time has passed."""
        self.wait = Histogram()
        """From the first batch of a flush until the flush is begun. While as many flushes are under way as
        the log takes, from when the next one may be."""
        self.write = Histogram()
        """Until it is durable."""
        self.bytes = Histogram()


class Stopwatch:
    """Times the flushes of one log, if somebody watches."""

    __slots__ = ("_last_number", "_times", "next_number", "scheduled_ns")

    def __init__(self) -> None:
        self._times = FlushTimes()
        self.next_number = NEVER
        """The next flush from this number on is timed."""
        self._last_number = -1
        self.scheduled_ns = 0
        """When that flush was scheduled."""

    def begin(self, times: FlushTimes, next_number: int) -> None:
        self._times = times
        self._last_number = next_number - 1
        times.ring = self._time_next
        self._time_next()

    def _time_next(self) -> None:
        self.next_number = 0
        self.scheduled_ns = perf_counter_ns()  # For one that is scheduled already.

    def begun(self, flush: Flush) -> None:
        """Time this flush, which is about to be written."""
        # Numbers of flushes that failed are used again.
        flush.stands_for = max(1, flush.number - self._last_number)
        self._last_number = flush.number
        self.next_number = flush.number + QUICK_SAMPLE
        flush.began_ns = perf_counter_ns()
        times = self._times
        times.wait.add(max(0, flush.began_ns - self.scheduled_ns), flush.stands_for)
        times.bytes.add(flush.size, flush.stands_for)

    def durable(self, flush: Flush) -> None:
        took_ns = perf_counter_ns() - flush.began_ns
        self._times.write.add(took_ns, flush.stands_for)
        if took_ns > QUICK_NS:
            self._time_next()
