"""What every page has, and which requests no page sees."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from penstock.console.application import LOGIN_BYTES_MAX
from penstock.console.guard import POLICY, way_back
from penstock.console.options import ConsoleOptions
from penstock.testing.waiting import until
from penstock.web.relay import Relay
from tests.console.browser import Browser, text_of


def test_every_answer_has_the_headers_that_browsers_need(browser: Browser) -> None:
    for path in ("/", "/brokers", "/topics", "/static/console.css", "/no-such-page"):
        answer = browser.answer(path)
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_no_page_has_scripts_or_styles_inside_or_asks_other_hosts(browser: Browser) -> None:
    for path in ("/", "/brokers", "/topics", "/no-such-page"):
        page = browser.answer(path).text
        assert "<style" not in page
        assert ' style="' not in page
        assert " onclick" not in page
        assert page.count("<script") == page.count('<script src="/static/') + page.count(
            '<script type="module" src="/static/'
        )
        assert "https://" not in page.replace("https://127.0.0.1", "")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost:8080", 200),
        ("[::1]:8080", 200),
        ("10.1.2.3", 200),
        ("kafka.example.org", 200),
        ("evil.example.com", 421),
        ("127.0.0.1.evil.example.com:8080", 421),
        ("", 421),
        ("[bad", 421),
    ],
)
def test_names_that_nobody_gave_it_are_turned_away(host: str, status: int) -> None:
    browser = Browser(ConsoleOptions(bootstrap="127.0.0.1:1", names=("kafka.example.org",)))
    assert browser.answer("/static/console.css", host=host).status_code == status
    browser.close()


def test_the_overview_says_what_the_doctor_found(browser: Browser) -> None:
    assert "The doctor looks deeper" in text_of(browser.get("/"))
    browser.sent("/doctor", {}, on="/doctor")
    assert "doctor found nothing when it was last asked" in text_of(browser.get("/"))


def test_a_page_that_is_not_there(browser: Browser) -> None:
    assert "There is no such page." in text_of(browser.get("/nothing", 404))


def test_a_cluster_that_is_not_there_is_told_in_a_sentence() -> None:
    browser = Browser(ConsoleOptions(bootstrap="127.0.0.1:1"))
    page = text_of(browser.get("/topics", 502))
    assert page.startswith("No answer ") and "No broker answers at 127.0.0.1:1" in page
    browser.close()


def test_a_link_from_another_site_is_loaded_again_so_that_strict_cookies_come_along(browser: Browser) -> None:
    page = browser.get("/topics", sec_fetch_site="cross-site", sec_fetch_mode="navigate")
    assert 'http-equiv="refresh"' in page
    browser.get("/")
    page = browser.get("/topics", sec_fetch_site="cross-site", sec_fetch_mode="navigate")
    assert "Topics" in text_of(page)


def test_after_a_login_one_goes_back_to_this_console_only() -> None:
    assert way_back("/topics?find=a") == "/topics?find=a"
    for text in ("//evil.example.com", "/\\evil.example.com", "https://evil", "", "/a\r\nb"):
        assert way_back(text) == "/"


def test_a_stranger_sends_little() -> None:
    """Others want to log in, too."""
    browser = Browser(ConsoleOptions(bootstrap="127.0.0.1:1", mechanisms=("SCRAM-SHA-512",)))
    answer = browser.send("/login", {"user": "x" * LOGIN_BYTES_MAX, "password": "y"}, on="/login")
    assert answer.status_code == 413
    browser.close()


def test_who_leaves_within_a_form_leaves_no_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Strangers come so far: a traceback for each would fill a disk."""
    browser = Browser(ConsoleOptions(bootstrap="127.0.0.1:1", mechanisms=("PLAIN",)))
    statuses: list[int] = []
    problem = browser.console._problem

    def noted(request: Request, status: int, sentence: str) -> Response:
        statuses.append(status)
        return problem(request, status, sentence)

    browser.console._problem = noted  # type: ignore[method-assign]
    url = browser.http.base_url
    with socket.create_connection((url.host, url.port or 0)) as connection:
        head = (
            f"POST /login HTTP/1.1\r\nHost: {url.host}\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n"
        )
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(b"user=")
    until(lambda: statuses or caplog.records, 30, "the end of the form")
    browser.close()
    assert statuses == [400]
    assert [record for record in caplog.records if record.name.startswith("penstock")] == []


async def test_one_address_does_not_keep_the_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()
    relay = Relay(dict, 4)

    async def wait(*_: object) -> None:
        await ended.wait()

    monkeypatch.setattr(relay, "_relay", wait)
    told: list[Any] = []

    async def send(message: Any) -> None:
        told.append(message.get("status"))

    async def come(host: str) -> None:
        await relay({"client": (host, 1)}, send, send)  # type: ignore[arg-type]

    tasks = [asyncio.ensure_future(come("10.0.0.1")) for _ in range(2)]
    await asyncio.sleep(0)
    await come("10.0.0.1")
    assert told[0] == 503
    tasks.append(asyncio.ensure_future(come("10.0.0.2")))
    await asyncio.sleep(0)
    assert not tasks[-1].done()
    ended.set()
    await asyncio.gather(*tasks)
    assert not relay._of_hosts
