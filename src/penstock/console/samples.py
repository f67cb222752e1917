"""The lag of groups over time, for as long as somebody looks.

The first visit to a page of groups starts a thread that looks at all groups now and then, with the rights of
that visitor. It ends an hour after the last visit, and with the visitor's session. Samples live in memory
alone: a console that was started again has none.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import NamedTuple
from weakref import WeakKeyDictionary

from penstock.admin.standing import Standing, standings
from penstock.client import ClientError
from penstock.console.cluster import Cluster

EVERY_SECONDS = 10.0
SAMPLES_MAX = 360
"""An hour of them."""
UNVISITED_SECONDS = 3600.0
FRESH_SECONDS = 2.0
"""How old what a page shows may be."""


class Sample(NamedTuple):
    time: float
    """Seconds since the epoch."""
    lag: int | None
    """None: not known then."""


class LagSamples:
    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.time) -> None:
        self._cluster = cluster
        self._clock = clock
        self._lock = Lock()
        self._times: deque[float] = deque(maxlen=SAMPLES_MAX)
        self._lags: dict[str, deque[int | None]] = {}
        """By group, as many as there are times."""
        self._visited_at = 0.0
        self._ended = Event()
        self._thread: Thread | None = None

    def visit(self) -> list[Standing]:
        """The groups now. From here on samples are taken."""
        self._visited_at = self._clock()
        found = self._cluster.remembered("groups", standings, FRESH_SECONDS)
        with self._lock:
            fresh = self._thread is None or not self._thread.is_alive()
            if fresh:
                self._thread = Thread(target=self._run, name="lag-samples", daemon=True)
        if fresh:
            self.add(found)
            assert self._thread is not None
            self._thread.start()
        return found

    def add(self, found: list[Standing]) -> None:
        """One sample of each group. Groups that are gone are forgotten."""
        with self._lock:
            self._times.append(self._clock())
            known = {one.name: one.lag for one in found}
            for gone in self._lags.keys() - known.keys():
                del self._lags[gone]
            for name, lag in known.items():
                samples = self._lags.get(name)
                if samples is None:
                    before = [None] * (len(self._times) - 1)
                    samples = self._lags[name] = deque(before, SAMPLES_MAX)
                samples.append(lag)

    def of(self, group: str) -> list[Sample]:
        with self._lock:
            return list(map(Sample, self._times, self._lags.get(group, ())))

    def _run(self) -> None:
        while not self._ended.wait(EVERY_SECONDS):
            if self._cluster.closed or self._clock() - self._visited_at > UNVISITED_SECONDS:
                return
            try:
                found = self._cluster.remembered("groups", standings, FRESH_SECONDS)
            except ClientError:
                continue  # a gap in the line says so
            self.add(found)


_samples: WeakKeyDictionary[Cluster, LagSamples] = WeakKeyDictionary()
_lock = Lock()


def lag_samples(cluster: Cluster) -> LagSamples:
    with _lock:
        return _samples.setdefault(cluster, LagSamples(cluster))
