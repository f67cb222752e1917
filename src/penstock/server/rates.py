"""How fast connections may be opened: by everybody together, and by one address.

Credit comes in steadily, a second's worth at most is saved up. Who comes without credit waits until there is
some.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

HOSTS_MAX: Final = 10_000
"""So many addresses are remembered. One that is forgotten has all its credit again."""


class Opened:
    """The connections that were opened, against a rate."""

    __slots__ = ("_credit", "_then")

    def __init__(self, now: float, rate: float) -> None:
        self._credit = max(rate, 1.0)
        self._then = now

    def delay(self, now: float, rate: float) -> float:
        """Count one: how many seconds it comes too early."""
        self._credit = min(max(rate, 1.0), self._credit + (now - self._then) * rate) - 1.0
        self._then = now
        return -self._credit / rate if self._credit < 0 else 0.0

    def take_back(self) -> None:
        """It was not let in, and does not count."""
        self._credit += 1.0


class ConnectionRates:
    """The rates of one server."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._all: Opened | None = None
        self._hosts: dict[str, Opened] = {}

    def delay(self, rate: float) -> float:
        """How long a connection has to wait, whoever opens it."""
        now = self._now()
        if self._all is None:
            self._all = Opened(now, rate)
        return self._all.delay(now, rate)

    def delay_of_host(self, host: str, rate: float) -> float:
        """How much too early an address comes. Such a connection does not count."""
        now = self._now()
        opened = self._hosts.get(host)
        if opened is None:
            if len(self._hosts) >= HOSTS_MAX:
                self._hosts.clear()
            opened = self._hosts[host] = Opened(now, rate)
        delay = opened.delay(now, rate)
        if delay > 0:
            opened.take_back()
        return delay
