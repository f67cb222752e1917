"""The store on a page: asked of the brokers, compared on demand, reckoned in money."""

from __future__ import annotations

import shutil
from pathlib import Path

from penstock.client import Client
from penstock.console.options import ConsoleOptions
from penstock.console.pages.store import reckoned
from penstock.settings.access import STANDARD_AUTHORIZER
from penstock.testing import Broker
from tests.console.browser import Browser, text_of
from tests.console.records import fill, make


def test_the_store_is_looked_at_on_demand(browser: Browser, client: Client) -> None:
    make(client, "stored", 1)
    fill(client, "stored", 0, 100)
    page = text_of(browser.get("/store"))
    assert "Nobody has looked yet." in page
    page = text_of(browser.sent("/store", {}, on="/store"))
    assert "Everything that the cluster needs is there." in page
    assert "write-ahead logs" in page
    priced = text_of(browser.get("/store?price=1000000"))
    assert "Price of a GiB for a month" in priced


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with Broker(store=store) as broker, Client(broker.bootstrap_servers) as client:
        make(client, "lost", 1)
        fill(client, "lost", 0, 100)
    for kind in ("segments", "wal"):
        shutil.rmtree(store / kind, ignore_errors=True)
    browser = Browser(ConsoleOptions(bootstrap="127.0.0.1:1", store=str(store)))
    page = text_of(browser.sent("/store", {}, on="/store"))
    browser.close()
    assert "missing." in page and "Missing: " in page
    assert "Everything that the cluster needs is there." not in page


def test_reckoning() -> None:
    assert [reckoned(size, 0.5) for size in (2**31, 2**20, 0)] == ["1.00", "< 0.01", "0.00"]


def test_who_may_not_see_settings_does_not_see_the_store(tmp_path: Path) -> None:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:root"}
    with Broker(settings=settings, store=tmp_path / "store") as broker:
        browser = Browser(ConsoleOptions(bootstrap=broker.bootstrap_servers))
        for path in ("/store", "/pipelines"):
            assert "AUTHORIZATION_FAILED" in text_of(browser.get(path, 403))
        browser.close()
