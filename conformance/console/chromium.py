"""Chromium, and a witness to everything that goes wrong in it."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Page,
    Request,
    Response,
    sync_playwright,
)

from conformance import parts

WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 360, "height": 740}
FLAGS = (
    "--no-sandbox",  # root has none
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-default-apps",
)
PATIENCE_MS = 20_000
SEVERE = ("serious", "critical")
LEFT = "net::ERR_ABORTED"
"""What follows something ends when its page is left."""


@dataclass
class Witness:
    """What no user should ever see. Everything that is not empty at the end is a failure."""

    host: str = ""
    errors: list[str] = field(default_factory=list)
    """Of JavaScript's console."""
    failed: list[str] = field(default_factory=list)
    """Requests without an answer, and answers that say so."""
    elsewhere: list[str] = field(default_factory=list)
    """Requests to other hosts."""
    expected: set[int] = field(default_factory=set)
    """Answers that a scene provokes."""
    requests: int = 0

    def watch(self, page: Page) -> None:
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._asked)
        page.on("requestfailed", self._failed)
        page.on("response", self._answered)

    @contextlib.contextmanager
    def expects(self, *statuses: int) -> Iterator[None]:
        self.expected |= set(statuses)
        try:
            yield
        finally:
            self.expected -= set(statuses)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type not in ("error", "warning"):
            return
        if any(f"status of {status} " in message.text for status in self.expected):
            return
        self.errors.append(f"{message.type}: {message.text} ({message.location.get('url', '')})")

    def _asked(self, request: Request) -> None:
        self.requests += 1
        if urlsplit(request.url).netloc != self.host and not request.url.startswith("data:"):
            self.elsewhere.append(request.url)

    def _failed(self, request: Request) -> None:
        if request.failure != LEFT:
            self.failed.append(f"{request.url}: {request.failure}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self.expected:
            self.failed.append(f"{response.url}: {response.status}")

    def problems(self) -> list[str]:
        return [
            *(f"console {one}" for one in self.errors),
            *(f"failed request {one}" for one in self.failed),
            *(f"request to another host {one}" for one in self.elsewhere),
        ]


class Chromium:
    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.version = browser.version
        self.witnesses: list[Witness] = []

    @contextlib.contextmanager
    def page(self, address: str, *, dark: bool = False, size: dict[str, int] | None = None) -> Iterator[Page]:
        """A page of a visitor who was never here before."""
        context: BrowserContext = self._browser.new_context(
            base_url=address,
            color_scheme="dark" if dark else "light",
            viewport=size or WIDE,  # type: ignore[arg-type]
            reduced_motion="reduce",
            # Chromium does not know the authority. Whoever serves https here has its certificate checked elsewhere.
            ignore_https_errors=address.startswith("https:"),
        )
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        witness = Witness(urlsplit(address).netloc)
        witness.watch(page)
        self.witnesses.append(witness)
        page.witness = witness  # type: ignore[attr-defined]
        try:
            yield page
        finally:
            with contextlib.suppress(Error):
                context.close()

    def problems(self) -> list[str]:
        return [problem for witness in self.witnesses for problem in witness.problems()]


def witness_of(page: Page) -> Witness:
    found: Witness = page.witness  # type: ignore[attr-defined]
    return found


@contextlib.contextmanager
def chromium() -> Iterator[Chromium]:
    program = parts.chromium()
    with sync_playwright() as playwright, tempfile.TemporaryDirectory(prefix="chromium-"):
        # Playwright gives each start a new folder for its user's data, and removes it.
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        try:
            yield Chromium(browser)
        finally:
            browser.close()


def axe(page: Page, script: str) -> list[str]:
    """Findings of axe-core that shut people out, as one line each. The script comes through the debugger:
    the page's own policy stays as strict as it is."""
    session = page.context.new_cdp_session(page)
    try:
        session.send("Runtime.evaluate", {"expression": script})
    finally:
        session.detach()
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['impact']} {one['id']}: {one['help']} at {', '.join(' '.join(map(str, node['target'])) for node in one['nodes'][:3])}"
        for one in found["violations"]
        if one["impact"] in SEVERE
    ]


def sideways(page: Page) -> int:
    """How many pixels a page is wider than its window."""
    wide: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return wide
