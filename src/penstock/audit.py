"""The audit: a line for each refusal and for each change of who may do what (logger `penstock.audit`).

- A line names who, from where, what and to what, and which request it was. It holds no secret.
- Names come from strangers, so they are written as literals: nobody can break a line or begin a new one.
- Refusals are limited in number, or whoever is refused could fill a disk. What was left out is counted, and
  the next line says so. Changes are always told: only who may make them makes them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.clock import Clock

LOGGER: Final = "penstock.audit"
log = logging.getLogger(LOGGER)

REFUSALS_PER_SECOND: Final = 10.0
REFUSALS_AT_ONCE: Final = 100.0
NAME_MAX: Final = 200
"""Characters of a name that a line shows."""


class Asked:
    """A request, by what the client's own log has of it, too."""

    __slots__ = ("api", "client_id", "correlation_id")

    def __init__(self, api: str, correlation_id: int, client_id: str | None) -> None:
        self.api = api
        self.correlation_id = correlation_id
        self.client_id = None if client_id is None else _cut(client_id)

    def __eq__(self, other: object) -> bool:
        """All are: who is let in by a permit does not depend on which request it was made for, and permits
        are compared."""
        return isinstance(other, Asked)

    def __hash__(self) -> int:
        return 0


class Audit:
    """The audit of one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._credit = REFUSALS_AT_ONCE
        self._then = clock.monotonic()
        self._left_out = 0

    def refused(self, principal: str, host: str, what: str, asked: Asked) -> None:
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
        log.info(
            "refused %s api=%s correlation=%d client=%r principal=%r host=%r%s",
            what,
            asked.api,
            asked.correlation_id,
            asked.client_id,
            _cut(principal),
            _cut(host),
            more,
        )

    def changed(self, principal: str, host: str, what: str, asked: Asked) -> None:
        """Somebody changed who may do what."""
        log.info(
            "%s api=%s correlation=%d client=%r principal=%r host=%r",
            what,
            asked.api,
            asked.correlation_id,
            asked.client_id,
            _cut(principal),
            _cut(host),
        )


def literal(name: str) -> str:
    """A name as a line may show it."""
    return repr(_cut(name))


def _cut(name: str) -> str:
    return name if len(name) <= NAME_MAX else name[:NAME_MAX] + "..."
