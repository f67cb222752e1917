"""Whether a broker is alive, and whether it really serves.

Alive is whoever answers. Ready is a broker that has all of these:

    registered    its incarnation accepts, and was not told to stop
    not fenced    the newest image has it as a live broker of this epoch, and its lease holds
    image fresh   the whole metadata log was read not longer ago than the session time-out
    store answers a small read of the store succeeded just now

A broker that was told to stop is not ready from that moment on, while its listeners still accept: load
balancers look elsewhere before connections are refused.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import TYPE_CHECKING

from penstock.storage.stores.objects import StoreError
from penstock.web.pages import Page

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.monitor.subject import Serving, Subject

STORE_SECONDS = 3.0
"""Probes of Kubernetes wait for a second unless they are told otherwise, and try three times."""
STORE_AGAIN_SECONDS = 1.0
"""An answer of the store counts for so long: many probes are one request."""
STORE_KEY = "meta/cluster"
"""Small, and there in every store that holds a cluster."""


class Health:
    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._loop = asyncio.get_running_loop()
        self._store_problem: str | None = None
        self._store_asked_at = -STORE_AGAIN_SECONDS
        self._asking = asyncio.Lock()

    def live(self) -> Page:
        return _page(HTTPStatus.OK, {"status": "live"})

    async def ready(self) -> Page:
        problems = await self.problems()
        if not problems:
            return _page(HTTPStatus.OK, {"status": "ready"})
        return _page(HTTPStatus.SERVICE_UNAVAILABLE, {"status": "not ready", "problems": problems})

    async def problems(self) -> list[str]:
        """Why the broker is not ready; none if it is."""
        if self._subject.stopping:
            return ["the broker is stopping"]
        serving = self._subject.serving
        if serving is None:
            return ["the broker is starting"]
        problems = _standing(serving)
        store = await self._ask_store(serving)
        if store is not None:
            problems.append(store)
        # The broker may have been told to stop while the store was asked.
        return ["the broker is stopping"] if self._subject.stopping else problems

    async def _ask_store(self, serving: Serving) -> str | None:
        async with self._asking:
            if self._loop.time() - self._store_asked_at >= STORE_AGAIN_SECONDS:
                self._store_problem = await _store_problem(serving)
                self._store_asked_at = self._loop.time()
            return self._store_problem


async def _store_problem(serving: Serving) -> str | None:
    try:
        async with asyncio.timeout(STORE_SECONDS):
            size = await serving.store.size(STORE_KEY)
    except TimeoutError:
        return f"the store did not answer in {STORE_SECONDS:g} s"
    except StoreError as error:
        return f"the store failed: {error}"
    return None if size is not None else f"the store has no {STORE_KEY} any more"


def _standing(serving: Serving) -> list[str]:
    """What is wrong with the broker's place in the cluster."""
    broker = serving.broker
    problems = []
    info = broker.image.brokers.get(broker.broker_id)
    if info is None or info.epoch != broker.broker_epoch or info.fenced:
        problems.append("the cluster does not count this broker as alive")
    elif not broker.leads_surely:
        problems.append(_lease_problem(broker))
    age_ms = broker.clock.time_ms() - broker.metadata.complete_as_of_ms
    if age_ms > broker.settings.broker_session_timeout_ms:
        problems.append(f"the metadata log was last read to its end {age_ms / 1000:.0f} s ago")
    return problems


def _lease_problem(broker: Broker) -> str:
    """Why the broker is not sure that nobody took over what it leads."""
    timeout_ms = broker.settings.broker_session_timeout_ms
    membership = broker.membership
    if membership is None or broker.clock.monotonic() >= membership.heartbeats.heard_at + timeout_ms / 1000:
        return "no heartbeat was written for the session time-out: the lease may be over"
    return (
        "heartbeats are written again after a pause: until they were for the session time-out "
        f"({timeout_ms / 1000:g} s), others may have taken over"
    )


def _page(status: HTTPStatus, fields: dict[str, object]) -> Page:
    return Page(json.dumps(fields).encode() + b"\n", "application/json", status)
