"""Quotas at work: what clients use is measured, and who used too much waits.

An answer says for how long (`throttle_time_ms`), and the connection is muted so long: clients that do not
listen wait all the same. A Produce counts when it is started, and mutes its connection then: what the client
sent after it waits unread. A Fetch counts when it is answered; a throttled one is answered without records,
and does not count (KIP-219). Of an answer that is larger than what a second brings only a second's worth must
fit: it is paid for afterwards, or else it would never come.

This exists only while the cluster has quotas for clients (`broker.access`); without, requests do not come by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.observing import FETCH, Seen, counted, observed
from penstock.security.quotas import (
    BYTE_SAMPLES_MIN,
    FETCHED,
    ID_CHARACTERS_MAX,
    MUTATIONS,
    PRODUCED,
    REQUEST_DELAY_MAX_MS,
    REQUEST_TIME,
    Bucket,
    Limit,
    Meter,
    QuotaTable,
    Usage,
)

if TYPE_CHECKING:
    from penstock.broker.metering import Meters
    from penstock.broker.observing import Answer, Handle
    from penstock.broker.registry import Api
    from penstock.clock import Clock
    from penstock.wire.exchange import Request, Session

PRODUCE: Final = 0
_BROKERS_ONLY: Final = frozenset((27,))
"""What only brokers ask of each other is not measured, as in Kafka."""
_STRICT_FROM: Final = {19: 6, 20: 5, 37: 3}
"""From these versions on, what does not fit is refused (KIP-599). Older clients only wait."""
_KEPT_MAX: Final = 10_000
THROTTLE_MS_MAX: Final = 2**31 - 1
"""What an answer has room for, 24 days: with a byte in a second some megabytes are paid for longer."""

_Limits = tuple[Limit | None, Limit | None, Limit | None]


class ClientQuotas:
    """All clients of one broker."""

    def __init__(self, table: QuotaTable, clock: Clock, meters: Meters) -> None:
        self._hook = counted(self.count, meters)
        """Made once: a way that it sees is recognised by it."""
        self._table = table
        self._clock = clock
        self._bytes = {key: Usage(_meter_of_bytes) for key in (PRODUCE, FETCH)}
        self._time = Usage(Meter)
        self._buckets = Usage(Bucket)
        self._kept: dict[tuple[str, str], _Limits] = {}
        self._measured: dict[Handle, Handle] = {}

    def change(self, table: QuotaTable) -> None:
        """Other quotas hold. What was used stays used."""
        self._table = table
        self._kept = {}

    def measured(self, route: Handle, request: Request) -> Answer:
        """Answer a request, and count it."""
        handle = self._measured.get(route)
        if handle is None:
            handle = self._measured[route] = observed(route, self._hook, self._clock, start=self.start)
        return handle(request)

    def start(self, session: Session, api: Api, request_bytes: int, client_id: str) -> int:
        """A request was started: count what it brought, and mute its connection if that was too much. For how
        many milliseconds."""
        if api.key != PRODUCE:
            return 0
        limit = self._limits(session, client_id)[0]
        if limit is None:
            return 0
        now_ms = self._clock.monotonic() * 1000
        meter = self._bytes[PRODUCE].of(limit, now_ms)
        meter.record(request_bytes, now_ms)
        return _muted(session, meter.delay_ms(limit.rate, now_ms))

    def count(self, session: Session, seen: Seen) -> int:
        """The hook: what else a client used, and how many milliseconds it has to wait for all of it."""
        if seen.api.key in _BROKERS_ONLY:
            return 0
        _, fetched, time = self._limits(session, seen.client_id)
        now_ms = self._clock.monotonic() * 1000
        delay = 0.0
        if time is not None:
            meter = self._time.of(time, now_ms)
            meter.record(seen.busy_seconds * 100, now_ms)
            delay = min(meter.delay_ms(time.rate, now_ms), REQUEST_DELAY_MAX_MS)
        if fetched is not None and seen.api.key == FETCH:
            meter = self._bytes[FETCH].of(fetched, now_ms)
            must_fit = min(seen.answer_bytes, fetched.rate)
            meter.record(must_fit, now_ms)
            delay = max(delay, meter.delay_ms(fetched.rate, now_ms))
            meter.record(-must_fit if round(delay) else seen.answer_bytes - must_fit, now_ms)
        return max(_muted(session, delay), seen.delayed_ms)

    def _limits(self, session: Session, client_id: str) -> _Limits:
        key = (session.principal, client_id)
        found = self._kept.get(key)
        if found is None:
            user = user_of(session)
            limit = self._table.limit
            found = (
                limit(user, client_id, PRODUCED),
                limit(user, client_id, FETCHED),
                limit(user, client_id, REQUEST_TIME),
            )
            if len(client_id) <= ID_CHARACTERS_MAX:
                if len(self._kept) >= _KEPT_MAX:
                    self._kept.clear()
                self._kept[key] = found
        return found

    def mutations(self, request: Request) -> MutationQuota | None:
        """The quota for changes that a request makes to the cluster, if there is one."""
        client_id = request.client_id or ""
        limit = self._table.limit(user_of(request.session), client_id, MUTATIONS)
        if limit is None:
            return None
        bucket = self._buckets.of(limit, self._clock.monotonic() * 1000)
        strict = request.api_version >= _STRICT_FROM[request.api_key]
        return MutationQuota(bucket, limit.rate, self._clock, strict=strict)


class MutationQuota:
    """What one request may change of the cluster."""

    def __init__(self, bucket: Bucket, rate: float, clock: Clock, *, strict: bool) -> None:
        self._bucket = bucket
        self._rate = rate
        self._clock = clock
        self._strict = strict
        self._taken: dict[str, bool] = {}
        self._delay_ms = 0.0

    def take(self, name: str, partitions: int) -> bool:
        """May this topic be changed? Asked again for the same one, the answer is the same."""
        taken = self._taken.get(name)
        if taken is None:
            now_ms = self._clock.monotonic() * 1000
            delay_ms = self._bucket.delay_ms(self._rate, now_ms)
            taken = self._taken[name] = not (self._strict and delay_ms > 0)
            if taken:
                self._bucket.take(partitions, self._rate, now_ms)
            if not self._strict:
                delay_ms = self._bucket.delay_ms(self._rate, now_ms)
            self._delay_ms = max(self._delay_ms, delay_ms)
        return taken

    def throttle(self, session: Session) -> int:
        """How many milliseconds the client has to wait. Its connection does."""
        return _muted(session, self._delay_ms)


def _meter_of_bytes() -> Meter:
    return Meter(BYTE_SAMPLES_MIN)


def _muted(session: Session, delay_ms: float) -> int:
    """Mute the connection for so long, in whole milliseconds."""
    throttle_ms = round(min(delay_ms, THROTTLE_MS_MAX))
    if throttle_ms > 0 and session.mute is not None:
        session.mute(throttle_ms / 1000)
    return throttle_ms


def user_of(session: Session) -> str:
    """The user that a quota names: principals without their kind."""
    return session.principal.partition(":")[2]
