"""Quotas: which one applies to a client, what it has used, and how long it has to wait.

Rates are measured as Kafka measures them: samples of a second, eleven of them, the present one unfinished. A
client that used more than its rate waits until the mean over the samples is back at it. Mutations of the
cluster have a bucket instead: it fills at the rate, and holds what the samples' time would bring.

Kafka lets a client that comes use ten seconds' worth at once, as if it had been there and idle. Then it gets
next to nothing until those samples are forgotten, and so on in turn. Here bytes are measured from their first
use, so a busy client has its rate from its first second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, NamedTuple

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
SHARES_MAX: Final = 50_000
"""So many clients are measured at a time. Clients choose their ids, so the number has no other bound."""


ID_CHARACTERS_MAX: Final = 255
"""Of a longer client id a digest is kept: what clients make us remember is bounded in bytes, too."""


class Limit(NamedTuple):
    """A quota that applies, and whose use counts towards it."""

    rate: float
    share: tuple[str, str]
    """User and client id; "" where all of them share one."""


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
        for entity, share in (
            ((user, client_id, None), both),
            ((user, default, None), both),
            ((user, None, None), (user, "")),
            ((default, client_id, None), both),
            ((default, default, None), both),
            ((default, None, None), (user, "")),
            ((None, client_id, None), ("", one)),
            ((None, default, None), ("", one)),
        ):
            rate = self._quotas.get(entity, {}).get(key)
            if rate is not None:
                return Limit(rate, share)
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
        self._samples: list[list[float]] = []
        """Beginning in milliseconds, and what was used since; the oldest first."""

    def record(self, amount: float, now_ms: float) -> None:
        samples = self._samples
        if samples and now_ms - samples[-1][0] >= SAMPLES * SAMPLE_MS:
            samples.clear()
        if not samples or now_ms - samples[-1][0] >= SAMPLE_MS:
            begins = now_ms
            if samples:
                begins = now_ms - (now_ms - samples[-1][0]) % SAMPLE_MS
            samples.append([begins, 0.0])
        samples[-1][1] += amount

    def delay_ms(self, rate: float, now_ms: float) -> float:
        """How long until the mean is back at `rate`; 0 if it is not above it."""
        used, span_ms = self._measured(now_ms)
        mean = used * 1000 / span_ms
        return (mean - rate) / rate * span_ms if mean > rate else 0.0

    def _measured(self, now_ms: float) -> tuple[float, float]:
        """What was used, and in which time."""
        samples = self._samples
        while samples and now_ms - samples[0][0] >= SAMPLES * SAMPLE_MS:
            del samples[0]
        elapsed = now_ms - samples[0][0] if samples else 0.0
        return sum(amount for _, amount in samples), max(elapsed, self._samples_min * SAMPLE_MS)


class Bucket:
    """Credit for mutations. It fills at the rate, and may be overdrawn once by one request."""

    __slots__ = ("_credit", "_then_ms")

    def __init__(self) -> None:
        self._credit: float | None = None
        self._then_ms = 0.0

    def _filled(self, rate: float, now_ms: float) -> float:
        most = rate * SAMPLES * SAMPLE_MS / 1000
        if self._credit is None:
            self._credit = most
        else:
            self._credit = min(most, self._credit + rate * (now_ms - self._then_ms) / 1000)
        self._then_ms = now_ms
        return self._credit

    def delay_ms(self, rate: float, now_ms: float) -> float:
        """How long until there is no debt."""
        credit = self._filled(rate, now_ms)
        return -credit / rate * 1000 if credit < 0 else 0.0

    def take(self, amount: float, rate: float, now_ms: float) -> None:
        self._credit = self._filled(rate, now_ms) - amount


class Usage:
    """What all clients used of one kind of quota. A client that was not measured for a while is forgotten,
    the one that came first; its meter would be empty."""

    __slots__ = ("_meters", "_samples_min")

    def __init__(self, samples_min: int = SAMPLES - 1) -> None:
        self._samples_min = samples_min
        self._meters: dict[tuple[str, str], Meter] = {}

    def meter(self, share: tuple[str, str]) -> Meter:
        found = self._meters.get(share)
        if found is None:
            if len(self._meters) >= SHARES_MAX:
                del self._meters[next(iter(self._meters))]
            found = self._meters[share] = Meter(self._samples_min)
        return found
