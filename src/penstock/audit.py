"""The audit: a line for each refusal and for each change of who may do what (logger `penstock.audit`).

- A line names who, from where, what and to what. It holds no secret.
- Names come from strangers, so they are written as literals: nobody can break a line or begin a new one.
- Refusals are limited in number, or whoever is refused could fill a disk. What was left out is counted, and
  the next line says so. Changes are always told: only who may make them makes them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.clock import Clock

log = logging.getLogger("penstock.audit")

REFUSALS_PER_SECOND: Final = 10.0
REFUSALS_AT_ONCE: Final = 100.0
NAME_MAX: Final = 200
"""Characters of a name that a line shows."""


class Audit:
    """The audit of one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._credit = REFUSALS_AT_ONCE
        self._then = clock.monotonic()
        self._left_out = 0

    def refused(self, principal: str, host: str, what: str) -> None:
        """Somebody was refused."""
        if not log.isEnabledFor(logging.INFO):
            return
        now = self._clock.monotonic()
        self._credit = min(REFUSALS_AT_ONCE, self._credit + (now - self._then) * REFUSALS_PER_SECOND)
        self._then = now
        if self._credit < 1:
            self._left_out += 1
            return
        self._credit -= 1
        more = f" left_out_before={self._left_out}" if self._left_out else ""
        self._left_out = 0
        log.info("refused %s principal=%s host=%s%s", what, literal(principal), literal(host), more)

    def changed(self, principal: str, host: str, what: str) -> None:
        """Somebody changed who may do what."""
        log.info("%s principal=%s host=%s", what, literal(principal), literal(host))


def literal(name: str) -> str:
    """A name as a line may show it."""
    return repr(name if len(name) <= NAME_MAX else name[:NAME_MAX] + "...")
