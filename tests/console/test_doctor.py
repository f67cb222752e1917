"""The doctor on a page: only when somebody asks, and in plain words."""

from __future__ import annotations

import pytest

from penstock.admin.doctor.checks import CHECKS, Finding
from tests.console.browser import Browser, text_of


def test_a_cluster_that_is_well(browser: Browser) -> None:
    assert "Nobody has asked yet." in text_of(browser.get("/doctor"))
    page = text_of(browser.sent("/doctor", {}, on="/doctor"))
    assert "All checks are well." in page
    assert "Asked 1 broker at" in page
    assert "Not so" not in page


def test_what_is_wrong_is_said(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    check = next(iter(CHECKS))
    found = ([("127.0.0.1", 1)], [Finding(check, "The broker at 127.0.0.1:1 <sleeps>.")])
    monkeypatch.setattr("penstock.console.pages.doctor.check_up", lambda *_: found)
    page = text_of(browser.sent("/doctor", {}, on="/doctor"))
    assert f"1 of {len(CHECKS)} checks found something." in page
    assert f"Not so: {check} The broker at 127.0.0.1:1 <sleeps>." in page
