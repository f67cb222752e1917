"""How long to wait for an answer, judged by the latest answers.

A request that takes several times as long as similar ones did is probably stuck in a connection that leads
nowhere, or at a sick server. It is not given up, but a second one is sent beside it (*hedged*), and the first
answer counts. If everything is slow, a second request makes it slower. So a hedge must be earned by ordinary
requests, and recent slow times become the usual ones.

Pure: durations in seconds come in, durations go out.
"""

from bisect import bisect_left
from collections import deque

HEDGE_MIN_SECONDS = 1.0
"""Sooner than that nobody is helped: a collection of garbage or a lost packet takes as long."""
HEDGE_FACTOR = 3.0
SMALL_BYTES = 1024 * 1024
SMALL_SECONDS = 6.0
"""How long one request for at most so many bytes may take. Doubled from attempt to attempt, because a store
that always takes longer would never be heard else."""
LARGE_SECONDS = 30.0
"""The same for larger ones, and the most for any."""

_SIZES = (64 * 1024, SMALL_BYTES, 8 * SMALL_BYTES)
"""What takes about as long as its like: requests up to each of these sizes, and larger ones."""
_SLOWEST_RATE = 4 * SMALL_BYTES
"""Bytes per second that are waited for before anything is known of a store."""
_RECENT = 64
_KNOWN_MIN = 8
_CREDIT_MAX = 10.0
_CREDIT_PER_REQUEST = 0.1


class Patience:
    """The patience of one lane with one store."""

    def __init__(self) -> None:
        self._recent = [deque[float](maxlen=_RECENT) for _ in range(len(_SIZES) + 1)]
        self._credit = _CREDIT_MAX
        self.hedges = 0

    def note(self, size: int, seconds: float) -> None:
        """A request for so many bytes was answered."""
        self._recent[bisect_left(_SIZES, size)].append(seconds)
        self._credit = min(_CREDIT_MAX, self._credit + _CREDIT_PER_REQUEST)

    def before_hedge(self, size: int) -> float:
        """After so long without an answer, ask again beside it."""
        recent = self._recent[bisect_left(_SIZES, size)]
        if len(recent) < _KNOWN_MIN:
            return HEDGE_MIN_SECONDS + size / _SLOWEST_RATE
        # The slowest but one of some dozens: one that hung does not make hanging usual.
        usual = sorted(recent)[-2]
        return min(max(HEDGE_MIN_SECONDS, HEDGE_FACTOR * usual), attempt_seconds(size, 0) / 2)

    def may_hedge(self) -> bool:
        """Whether a hedge is due to whoever waits; it is taken from the credit."""
        if self._credit < 1.0:
            return False
        self._credit -= 1.0
        self.hedges += 1
        return True


def attempt_seconds(size: int, attempt: int) -> float:
    """How long attempt `attempt`, counted from 0, may take in all."""
    if size > SMALL_BYTES:
        return LARGE_SECONDS
    return min(LARGE_SECONDS, SMALL_SECONDS * 2.0 ** (attempt // 2))
