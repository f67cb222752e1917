"""Catching up before an answer: a broker that slept meanwhile gives the store its time."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.topics import partitions
from penstock.clock import SystemClock


def broker_with(catch_up: Any) -> Any:
    metadata = SimpleNamespace(catch_up=catch_up, unavailable_since=None)
    return SimpleNamespace(metadata=metadata, clock=SystemClock())


async def test_after_a_sleep_the_store_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "CATCH_UP_SECONDS_MAX", 0.01)
    calls = []

    async def catch_up() -> None:
        calls.append(1)
        if len(calls) == 1:
            time.sleep(0.2)  # noqa: ASYNC251 - the whole process sleeps
            await asyncio.sleep(60)

    assert await partitions.caught_up(broker_with(catch_up))
    assert len(calls) == 2


async def test_a_store_that_does_not_answer_is_not_waited_for_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "CATCH_UP_SECONDS_MAX", 0.01)
    monkeypatch.setattr(partitions, "_LATE_SECONDS", 5.0)
    calls = []

    async def catch_up() -> None:
        calls.append(1)
        await asyncio.sleep(60)

    assert not await partitions.caught_up(broker_with(catch_up))
    assert len(calls) == 1
