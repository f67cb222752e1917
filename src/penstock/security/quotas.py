"""Quotas: which one applies to a client, what it has used, and how long it has to wait.

Rates are measured as Kafka measures them: samples of a second, eleven of them, the present one unfinished. A
client that used more than its rate waits until the mean over the samples is back at it. Mutations of the
cluster have a bucket instead: it fills at the rate, and holds what the samples' time would bring.

Kafka lets a client that comes use ten seconds' worth at once, as if it had been there and idle. Then it gets
next to nothing until those samples are forgotten, and so on in turn. Here bytes are measured from their first
use, so a busy client has its rate from its first second.

Client ids are whatever clients say, so what is remembered of them has a limit, and the limit must not be a
way out: a meter is forgotten only when it would not hold its client up any more. Where there is no room, a
further client id of a user shares one meter with all its further ones. What is counted by user, or by a
client id that an administrator named, always has its own.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Mapping
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from penstock.metadata.access import DEFAULT_NAME, QuotaEntity
from penstock.security.addresses import canonical

PRODUCED: Final = "producer_byte_rate"
FETCHED: Final = "consumer_byte_rate"
REQUEST_TIME: Final = "request_percentage"
MUTATIONS: Final = "controller_mutation_rate"
CONNECTIONS: Final = "connection_creation_rate"

CLIENT_KEYS: Final = (PRODUCED, FETCHED, REQUEST_TIME, MUTATIONS)
"""Of users and client ids."""
INTEGRAL: Final = {PRODUCED: 2**63 - 1, FETCHED: 2**63 - 1, CONNECTIONS: 2**31 - 1}
"""Those without a fraction, and the largest value of each."""

SAMPLES: Final = 11
SAMPLE_MS: Final = 1000
BYTE_SAMPLES_MIN: Final = 1
"""The mean of bytes is over one sample at least: a second's worth is there at first."""
REQUEST_DELAY_MAX_MS: Final = 1000
"""A client that used too much time waits for one sample at most."""
SHARES_MAX: Final = 20_000
"""Beyond so many shares of one kind a client id that nobody named gets none of its own. More client ids than
connections are hardly honest. It is some 15 MB of each kind."""
SWEEP_MIN: Final = 1000
"""With fewer shares nobody looks which may be forgotten."""

ID_CHARACTERS_MAX: Final = 255
"""Of a longer client id a digest is kept: what clients make us remember is bounded in bytes, too."""


class Limit(NamedTuple):
    """A quota that applies, and whose use counts towards it."""

    rate: float
    share: tuple[str, str]
    """User and client id; "" where all of them share one."""
    crowd: str | None = None
    """The user with whose further client ids it shares if there is no room. None if there always is: it is
    counted by user, or by a client id that an administrator named."""


class QuotaTable:
    """All quotas of the cluster, as an immutable value."""

    __slots__ = ("_quotas",)

    def __init__(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        self._quotas = {
            (user, client_id, address if address is None else canonical(address)): values
            for (user, client_id, address), values in quotas.items()
        }

    def limit(self, user: str, client_id: str, key: str) -> Limit | None:
        """The quota of a client: the most specific one that says something about `key`."""
        default = DEFAULT_NAME
        one = client_id if len(client_id) <= ID_CHARACTERS_MAX else _digest(client_id)
        both = (user, one)
        for entity, share, crowd in (
            ((user, client_id, None), both, None),
            ((user, default, None), both, user),
            ((user, None, None), (user, ""), None),
            ((default, client_id, None), both, None),
            ((default, default, None), both, user),
            ((default, None, None), (user, ""), None),
            ((None, client_id, None), ("", one), None),
            ((None, default, None), ("", one), user),
        ):
            rate = self._quotas.get(entity, {}).get(key)
            if rate is not None:
                return Limit(rate, share, crowd)
        return None

    def connection_rate(self, address: str) -> float | None:
        """How many connections a second an address may open."""
        for name in (address, DEFAULT_NAME):
            rate = self._quotas.get((None, None, name), {}).get(CONNECTIONS)
            if rate is not None:
                return rate
        return None

    def has(self, *keys: str) -> bool:
        return any(key in values for values in self._quotas.values() for key in keys)


def _digest(client_id: str) -> str:
    return hashlib.sha256(client_id.encode(errors="surrogatepass")).hexdigest()


class Meter:
    """What was used in the last samples."""

    __slots__ = ("_samples", "_samples_min")

    def __init__(self, samples_min: int = SAMPLES - 1) -> None:
        """`samples_min`: the mean is over the time of so many samples at least."""
        self._samples_min = samples_min
        self._samples = array("d")
        """Beginning in milliseconds, what was used since, the next beginning and so on; the oldest first."""

    def record(self, amount: float, now_ms: float) -> None:
        samples = self._samples
        if samples and now_ms - samples[-2] >= SAMPLES * SAMPLE_MS:
            del samples[:]
        if not samples or now_ms - samples[-2] >= SAMPLE_MS:
            begins = now_ms
            if samples:
                begins = now_ms - (now_ms - samples[-2]) % SAMPLE_MS
            samples.append(begins)
            samples.append(0.0)
        samples[-1] += amount

    def delay_ms(self, rate: float, now_ms: float) -> float:
        """How long until the mean is back at `rate`; 0 if it is not above it."""
        used, span_ms = self._measured(now_ms)
        mean = used * 1000 / span_ms
        return (mean - rate) / rate * span_ms if mean > rate else 0.0

    def settled(self, now_ms: float) -> bool:
        """Whether what was used counts no more: a new meter would say the same."""
        return not self._samples or now_ms - self._samples[-2] >= SAMPLES * SAMPLE_MS

    def _measured(self, now_ms: float) -> tuple[float, float]:
        """What was used, and in which time."""
        samples = self._samples
        while samples and now_ms - samples[0] >= SAMPLES * SAMPLE_MS:
            del samples[:2]
        elapsed = now_ms - samples[0] if samples else 0.0
        return sum(samples[1::2]), max(elapsed, self._samples_min * SAMPLE_MS)


class Bucket:
    """Credit for mutations. It fills at the rate, and may be overdrawn once by one request."""

    __slots__ = ("_credit", "_rate", "_then_ms")

    def __init__(self) -> None:
        self._credit: float | None = None
        self._rate = 0.0
        """The one that it was asked with last."""
        self._then_ms = 0.0

    def _filled(self, rate: float, now_ms: float) -> float:
        most = _most(rate)
        if self._credit is None:
            self._credit = most
        else:
            self._credit = min(most, self._credit + rate * (now_ms - self._then_ms) / 1000)
        self._rate = rate
        self._then_ms = now_ms
        return self._credit

    def delay_ms(self, rate: float, now_ms: float) -> float:
        """How long until there is no debt."""
        credit = self._filled(rate, now_ms)
        return -credit / rate * 1000 if credit < 0 else 0.0

    def take(self, amount: float, rate: float, now_ms: float) -> None:
        self._credit = self._filled(rate, now_ms) - amount

    def settled(self, now_ms: float) -> bool:
        """Whether it is full again, as a new one is."""
        return self._credit is None or self._filled(self._rate, now_ms) >= _most(self._rate)


def _most(rate: float) -> float:
    return rate * SAMPLES * SAMPLE_MS / 1000


class Settling(Protocol):
    """What measures one share."""

    def settled(self, now_ms: float) -> bool:
        """Whether a new one would say the same from now on."""


T = TypeVar("T", bound=Settling)


class Usage(Generic[T]):
    """What all clients used of one kind of quota.

    Those whose use counts no more are forgotten now and then: whenever there are twice as many as the last
    look left, and once in a sample's time where there is no room. So a look costs each new one little.
    """

    __slots__ = ("_crowds", "_looked_ms", "_make", "_shares", "_sweep_at")

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._shares: dict[tuple[str, str], T] = {}
        self._crowds: dict[str, T] = {}
        """By user, for client ids beyond the limit. There are no more than users who logged in."""
        self._sweep_at = SWEEP_MIN
        self._looked_ms = float("-inf")

    def __len__(self) -> int:
        return len(self._shares) + len(self._crowds)

    def of(self, limit: Limit, now_ms: float) -> T:
        """What measures the share of a quota."""
        found = self._shares.get(limit.share)
        if found is not None:
            return found
        count = len(self._shares)
        full = count >= SHARES_MAX
        if (full and now_ms - self._looked_ms >= SAMPLE_MS) or (not full and count >= self._sweep_at):
            self._sweep(now_ms)
            full = len(self._shares) >= SHARES_MAX
        if limit.crowd is not None:
            crowd = self._crowds.get(limit.crowd)
            if crowd is None and full:
                crowd = self._crowds[limit.crowd] = self._make()
            if crowd is not None and (full or not crowd.settled(now_ms)):
                # As long as the crowd owes, nobody leaves it for a new meter.
                return crowd
        found = self._shares[limit.share] = self._make()
        return found

    def _sweep(self, now_ms: float) -> None:
        """Forget those whose use counts no more."""
        self._shares = {share: one for share, one in self._shares.items() if not one.settled(now_ms)}
        self._crowds = {user: one for user, one in self._crowds.items() if not one.settled(now_ms)}
        self._sweep_at = max(SWEEP_MIN, 2 * len(self._shares))
        self._looked_ms = now_ms
