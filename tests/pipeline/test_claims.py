"""One run of a pipeline at a time, whoever is paused, dead or late. No Spark."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.pipeline import PipelineError
from penstock.pipeline import status as statuses
from penstock.pipeline.claims import PREFIX, Claim, take
from penstock.pipeline.status import Status, process_started
from penstock.storage.stores.blocking import BlockingStore

HELD = r"^The pipeline 'shop' is being run by process \d+ on "


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockingStore]:
    with closing(BlockingStore(str(tmp_path))) as opened:
        yield opened


@pytest.fixture
def other(tmp_path: Path) -> Iterator[BlockingStore]:
    """The same, as another process opens it."""
    with closing(BlockingStore(str(tmp_path))) as opened:
        yield opened


def run(pid: int | None = None) -> Status:
    return Status(
        pipeline="shop", run=uuid4().hex, state="starting", file="f.py", host=socket.gethostname(),
        pid=os.getpid() if pid is None else pid, process_started=process_started(os.getpid()),
        master="local[*]", once=False, location="/x", started_ms=0, reported_ms=0,
    )  # fmt: skip


GONE = 2**22 + 1
"""No process has such a number."""


def test_a_pipeline_that_is_run_is_refused_from_the_first_moment(store: BlockingStore) -> None:
    first = take(store, run(), 0)
    with pytest.raises(PipelineError, match=HELD):
        take(store, run(), 0)  # The first has not even reported.
    first.check()


def test_who_ended_or_died_makes_room(store: BlockingStore) -> None:
    ended = run()
    first = take(store, ended, 0)
    ended.state = "stopped"
    statuses.write(store, ended)
    second = take(store, run(GONE), 0)
    with pytest.raises(PipelineError, match=r"^Another run of pipeline 'shop' has taken over\.$"):
        first.check()
    third = take(store, run(), 0)  # The second died before it reported.
    with pytest.raises(PipelineError, match="taken over"):
        second.check()
    third.check()


def test_a_late_report_of_another_run_says_nothing_of_the_newest(store: BlockingStore) -> None:
    late = run(GONE)
    take(store, late, 0)
    take(store, run(), 0)
    late.state = "finished"
    statuses.write(store, late)
    with pytest.raises(PipelineError, match=HELD):
        take(store, run(), 0)


def test_a_starter_that_was_overtaken_gets_no_claim(
    store: BlockingStore, other: BlockingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saw claim 0 as the newest; since then others came and went, and claim 1 is deleted again."""
    plain = type(store.store).create
    overtaken: list[object] = []

    async def create(self: object, key: str, *parts: bytes) -> bool:
        if not overtaken:
            overtaken.append(key)
            await asyncio.to_thread(_come_and_go, other)
        return await plain(self, key, *parts)  # type: ignore[arg-type]

    monkeypatch.setattr(type(store.store), "create", create)
    with pytest.raises(PipelineError, match=HELD):
        take(store, run(), 0)
    assert overtaken == [f"{PREFIX}shop/000000001"]


def _come_and_go(other: BlockingStore) -> None:
    take(other, run(GONE), 0)
    take(other, run(), 0)


def test_of_two_that_start_at_once_one_runs(
    store: BlockingStore, other: BlockingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = type(store.store).create
    others: list[Claim] = []
    raced: list[object] = []

    async def create(self: object, key: str, *parts: bytes) -> bool:
        if not raced:
            raced.append(key)
            others.append(await asyncio.to_thread(take, other, run(), 0))
        return await plain(self, key, *parts)  # type: ignore[arg-type]

    monkeypatch.setattr(type(store.store), "create", create)
    with pytest.raises(PipelineError, match=HELD):
        take(store, run(), 0)
    others[0].check()
