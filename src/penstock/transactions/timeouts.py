"""What time does to transactional ids: a transaction that is open for too long is aborted, an id that is idle
for too long is forgotten."""

from typing import NamedTuple

from penstock.transactions.core import Context, NoProducerId, Told, ignore, nothing
from penstock.transactions.decisions import Decisions
from penstock.transactions.transaction import fenced, is_expired, is_overdue
from penstock.wire.errors import ErrorCode

_EXPIRY_SLICE = 200
"""Ids looked at in one go when they are checked for expiry; then others get their turn."""
_EXPIRY_PAUSE_MS = 5


class Timing(NamedTuple):
    """The settings that a shard obeys."""

    overdue_check_ms: int
    """How often transactions are looked at that are open for longer than their time-out."""
    expiry_check_ms: int
    expiration_ms: int
    """How long an id may be idle before it is forgotten."""


class Timeouts:
    __slots__ = ("_c", "_decisions", "timing")

    def __init__(self, context: Context, decisions: Decisions, timing: Timing) -> None:
        self._c = context
        self._decisions = decisions
        self.timing = timing
        context.on_open = self._watch_open

    def begin(self) -> None:
        """All ids are loaded."""
        if self._c.open:
            self._schedule_overdue()
        self._schedule_expiry()

    def _watch_open(self) -> None:
        if "overdue" not in self._c.timers:
            self._schedule_overdue()

    def _abort_overdue(self) -> None:
        wall_ms = self._c.now.wall_ms
        for transactional_id in list(self._c.open):
            known = self._c.known[transactional_id]
            if is_overdue(known, wall_ms):
                try:
                    prepared = fenced(known, wall_ms, self._c.new_producer_id)
                except NoProducerId:
                    continue  # At the next look there will be one.
                self._decisions.decide(transactional_id, prepared, None, Told(ErrorCode.NONE))
        if self._c.open:
            self._schedule_overdue()

    def _schedule_overdue(self) -> None:
        check_at = self._c.now.ms + self.timing.overdue_check_ms
        self._c.timers.schedule("overdue", check_at, self._abort_overdue)

    def _schedule_expiry(self) -> None:
        check_at = self._c.now.ms + self.timing.expiry_check_ms
        self._c.timers.schedule("expiry", check_at, lambda: self._expire(list(self._c.known)))

    def _expire(self, ids: list[str]) -> None:
        """Look at some ids now and at the rest a little later."""
        for transactional_id in ids[:_EXPIRY_SLICE]:
            known = self._c.known.get(transactional_id)
            if (
                known is not None
                and is_expired(known, self._c.now.wall_ms, self.timing.expiration_ms)
                and not self._c.journal.changes(transactional_id)
            ):
                self._c.write(transactional_id, None, nothing, ignore)
        rest = ids[_EXPIRY_SLICE:]
        if rest:
            again_at = self._c.now.ms + _EXPIRY_PAUSE_MS
            self._c.timers.schedule("expiry", again_at, lambda: self._expire(rest))
        else:
            self._schedule_expiry()
