"""Pipelines on a page: what their own reports say."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from penstock.console.options import ConsoleOptions
from penstock.pipeline import status as statuses
from penstock.pipeline.status import OutputStatus, Status, process_started
from penstock.storage.stores.blocking import BlockingStore
from penstock.testing import Broker
from tests.console.browser import Browser, text_of


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Browser, BlockingStore]]:
    with Broker(store=tmp_path / "store") as broker:
        browser = Browser(ConsoleOptions(bootstrap=broker.bootstrap_servers))
        with closing(browser), closing(BlockingStore(str(tmp_path / "store"))) as store:
            yield browser, store


def test_a_pipeline_and_its_queries(place: tuple[Browser, BlockingStore]) -> None:
    browser, store = place
    assert "No pipeline has been run on this cluster." in text_of(browser.get("/pipelines"))
    now_ms = time.time_ns() // 1_000_000
    status = Status(
        pipeline="shop/1", run="r", state="running", file="shop.py", host=socket.gethostname(),
        pid=os.getpid(), process_started=process_started(os.getpid()), master="local[*]", once=False,
        location="/x", started_ms=now_ms, reported_ms=now_ms,
        outputs=[
            OutputStatus(
                name="clean", kind="table", target="/x/clean", checkpoint="/nowhere", topics=["orders"],
                batches=3, rows_in=1500, rows_out=1400, rows_in_per_second=750.4, lag=500,
            ),
            OutputStatus(name="dead", kind="dead letters", target="dead", checkpoint="/nowhere", rows_out=7),
        ],
    )  # fmt: skip
    statuses.write(store, status)
    browser.console.everybody.forget()  # type: ignore[union-attr]
    assert "shop/1 running 2 750 500 7" in text_of(browser.get("/pipelines"))
    page = text_of(browser.get("/pipelines/shop%2F1"))
    assert "running, by process" in page and "running running" not in page
    assert "clean orders table /x/clean 3 1500 1400 750 500" in page
    status.state, status.error = "failed", "The disk is full."
    statuses.write(store, status)
    browser.console.everybody.forget()  # type: ignore[union-attr]
    assert "The disk is full." in text_of(browser.get("/pipelines/shop%2F1"))
    assert "has never been run" in text_of(browser.get("/pipelines/nobody", 404))
