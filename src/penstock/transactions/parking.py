"""Requests that came a moment too early: the markers of the transaction before are being written.

Kafka refuses them with CONCURRENT_TRANSACTIONS, and clients come again after 20 ms or more. Mostly markers
are written in less. So such a request is held back until they are, and is then looked at once more. One
that would wait too long is refused as in Kafka.
"""

from collections.abc import Callable
from typing import NamedTuple

from penstock.shards.timers import Timers
from penstock.wire.errors import ErrorCode

PATIENCE_MS = 50
"""No longer than a client would let pass until it comes again: a dead leader's markers take seconds."""
PARKED_MAX = 64
"""Requests to one id that may wait. A producer has few under way at a time."""


class _Parked(NamedTuple):
    again: Callable[[], None]
    refuse: Callable[[ErrorCode], None]


class Parking:
    __slots__ = ("_by_id", "_timers")

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._by_id: dict[str, list[_Parked]] = {}

    def park(
        self,
        transactional_id: str,
        now_ms: int,
        again: Callable[[], None],
        refuse: Callable[[ErrorCode], None],
    ) -> None:
        """Call one of the two: `again` when the id is free, `refuse` when that takes too long."""
        parked = self._by_id.setdefault(transactional_id, [])
        if len(parked) >= PARKED_MAX:
            refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
            return
        if not parked:
            self._timers.schedule(
                ("parked", transactional_id),
                now_ms + PATIENCE_MS,
                lambda: self._refuse(transactional_id, ErrorCode.CONCURRENT_TRANSACTIONS),
            )
        parked.append(_Parked(again, refuse))

    def release(self, transactional_id: str) -> None:
        """The id is free."""
        self._timers.cancel(("parked", transactional_id))
        for one in self._by_id.pop(transactional_id, ()):
            one.again()

    def refuse_all(self, code: ErrorCode) -> None:
        for transactional_id in list(self._by_id):
            self._refuse(transactional_id, code)

    def _refuse(self, transactional_id: str, code: ErrorCode) -> None:
        for one in self._by_id.pop(transactional_id, ()):
            one.refuse(code)
