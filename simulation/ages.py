"""Retention by time: a record that goes is old enough, by the clock of the broker that looks.

Nothing of it is promised where clocks are wrong, so worlds that check it have clocks that differ by little.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.metadata.image import PartitionKey
from simulation.topics import AGE_SECONDS

if TYPE_CHECKING:
    from simulation.checker import Checker

APART_SECONDS_MAX = 0.5
"""By how much the clock of a broker is ahead of the clients', at most."""


class Ages:
    def __init__(self, checker: Checker, now: Callable[[], float]) -> None:
        self._checker = checker
        self._now = now
        self.aged: set[bytes] = set()
        """Ids of topics whose records go when they are old."""
        self.sent: dict[bytes, float] = {}
        """When the record of each value was made, which is its timestamp."""

    def start_told(self, key: PartitionKey, start: int) -> None:
        """A partition begins there: all before it is old."""
        if key[0] not in self.aged:
            return
        young = self._now() - AGE_SECONDS + APART_SECONDS_MAX
        for offset, value in self._checker.log[key].items():
            if offset < start and self.sent[value] > young:
                age = self._now() - self.sent[value]
                self._checker.fail("P3 retention", f"{value!r} at {offset} is gone, {age:.3f} s old")
                return
