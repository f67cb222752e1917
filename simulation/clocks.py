"""The clocks of machines: they differ, jump, and are not equally fast."""

from __future__ import annotations

import random

from simulation.loop import World
from simulation.worlds import HOURS_MAX

AHEAD_SECONDS_MAX = 5.0
"""By how much wall clocks differ from the clients' before anything happens to them."""
DRIFT_MAX = 0.01
"""Far more than any clock that is worth its name."""


class MachineClock:
    """Clocks of machines differ, and say nothing about each other."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._since = rng.random() * 1e6
        self.wall_ahead = rng.uniform(-AHEAD_SECONDS_MAX, AHEAD_SECONDS_MAX)
        self.rate = 1.0

    def time_ms(self) -> int:
        return 1_700_000_000_000 + int((self._world.time() + self.wall_ahead) * 1000)

    def monotonic(self) -> float:
        return self._since + self._world.time() * self.rate

    def slept(self, seconds: float) -> None:
        """The machine was suspended, and its timers with it. This clock counted on: it counts from boot."""

    def drift(self, rng: random.Random) -> None:
        self.rate = 1.0 + rng.uniform(-DRIFT_MAX, DRIFT_MAX)

    def jump(self, rng: random.Random) -> None:
        """By minutes or hours, back or forward, and never so far that something kept for a day is old."""
        hours = rng.choice((0.1, 1.0, HOURS_MAX)) * rng.uniform(-1, 1)
        self.wall_ahead = max(-HOURS_MAX * 3600, min(self.wall_ahead + hours * 3600, HOURS_MAX * 3600))
