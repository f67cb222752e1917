"""Catching up before an answer: a broker that slept meanwhile gives the store its time."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker import freshness
from penstock.clock import SystemClock
from penstock.cluster.metadata_log import MetadataUnavailableError


def broker_with(catch_up: Any) -> Any:
    metadata = SimpleNamespace(catch_up=catch_up, unavailable_since=None)
    return SimpleNamespace(metadata=metadata, clock=SystemClock())


async def test_a_sleep_takes_little_of_the_time_that_the_store_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freshness, "CATCH_UP_SECONDS_MAX", 1.0)

    async def catch_up() -> None:
        time.sleep(1.1)  # noqa: ASYNC251 - the whole process sleeps
        await asyncio.sleep(0.05)

    assert await freshness.caught_up(broker_with(catch_up))


async def test_a_store_that_does_not_answer_is_not_waited_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freshness, "CATCH_UP_SECONDS_MAX", 0.01)
    given_up = []

    async def catch_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            given_up.append(1)

    assert not await freshness.caught_up(broker_with(catch_up))
    await asyncio.sleep(0)
    assert given_up


async def test_a_log_that_cannot_be_read_is_not_waited_for() -> None:
    async def catch_up() -> None:
        raise MetadataUnavailableError("no")

    assert not await freshness.caught_up(broker_with(catch_up))
