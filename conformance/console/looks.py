"""How pages look and feel: to readers of screens, on narrow windows, in the dark, by keyboard, and how fast."""

import http.client
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Page

from conformance.console.chromium import NARROW, WIDE, Chromium, axe, sideways, witness_of
from conformance.console.place import GROUP, ORDERS, Place, Writer

MEDIAN_MS_MAX = 100.0
ROUNDS = 15
STOPS = """
(() => {
  const wanted = 'a[href], button, input, select, textarea, summary, [tabindex="0"]';
  const seen = (e) => {
    if (e.disabled || e.type === 'hidden' || e.closest('[hidden]')) return false;
    const closed = e.closest('details:not([open])');
    if (closed && !(e.tagName === 'SUMMARY' && e.parentElement === closed)) return false;
    return e.getClientRects().length > 0;
  };
  const name = (e) => [e.tagName, e.id, e.name || '', e.getAttribute('href') || '', (e.getAttribute('aria-label') || '').slice(0, 40), e.tagName === 'SELECT' ? '' : (e.textContent || '').trim().slice(0, 40)].join('|');
  window.__name = name;
  return [...document.querySelectorAll(wanted)].filter(seen).map(name);
})()
"""
FOCUSED = """
(() => {
  const e = document.activeElement;
  if (!e || e === document.body) return null;
  const style = getComputedStyle(e);
  return [window.__name(e), style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0 || style.boxShadow !== 'none'];
})()
"""


def accessible(address: str, paths: Sequence[str], chromium: Chromium, script: str) -> list[str]:
    """Findings of axe-core on every page in both themes, and pages that are wider than their window."""
    problems: list[str] = []
    for dark in (False, True):
        theme = "dark" if dark else "light"
        with chromium.page(address, dark=dark) as page, witness_of(page).expects(404):
            for path in paths:
                page.set_viewport_size(WIDE)  # type: ignore[arg-type]
                page.goto(path)
                problems += [f"{path} in the {theme}: {one}" for one in axe(page, script)]
                for size in (WIDE, NARROW):
                    page.set_viewport_size(size)  # type: ignore[arg-type]
                    wider = sideways(page)
                    if wider > 0:
                        problems.append(f"{path} in the {theme} is {wider} px wider than {size['width']} px")
    return problems


def by_keyboard(address: str, paths: Sequence[str], chromium: Chromium) -> tuple[int, list[str]]:
    """Whether Tab reaches everything that can be used, and shows where it is."""
    problems: list[str] = []
    reached = 0
    with chromium.page(address) as page, witness_of(page).expects(404):
        for path in paths:
            page.goto(path)
            wanted = Counter(page.evaluate(STOPS))
            found, blind = _tabbed(page, sum(wanted.values()) + 5)
            reached += sum(found.values())
            for missing in (wanted - found).elements():
                problems.append(f"{path}: Tab does not reach {missing}")
            problems += [f"{path}: nothing shows that {one} has the focus" for one in blind]
    return reached, problems


def _tabbed(page: Page, most: int) -> tuple[Counter[str], list[str]]:
    found: Counter[str] = Counter()
    blind: list[str] = []
    for _ in range(most):
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
        if focused is None:
            break
        name, shown = focused
        found[name] += 1
        if not shown:
            blind.append(name)
    return found, blind


def speeds(address: str, paths: Sequence[str]) -> dict[str, float]:
    """Milliseconds from a request to the whole page, at the client, in the median, warm."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    medians: dict[str, float] = {}
    for path in paths:
        taken: list[float] = []
        for round_ in range(ROUNDS + 2):
            began = time.perf_counter()
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise AssertionError(f"{path} was answered {answer.status}")
            if round_ >= 2:
                taken.append((time.perf_counter() - began) * 1000)
        medians[path] = statistics.median(taken)
    connection.close()
    return medians


PICTURES = {
    "records": (f"/topics/{ORDERS}/records?from=oldest", False),
    "groups": (f"/groups/{GROUP}", False),
    "reset": (f"/groups/{GROUP}?view=reset&way=shift&value=-100", True),
}
"""By name: what is shown, and whether in the dark."""
PICTURE = {"width": 1200, "height": 760}
SAMPLES_SECONDS = 45.0
"""How long a line of lag is drawn before its picture is taken."""


def screenshots(place: Place, chromium: Chromium, folder: Path) -> None:
    """Pictures for the documentation."""
    folder.mkdir(parents=True, exist_ok=True)
    with Writer(place.client, ORDERS, 0.001), chromium.page(place.address) as page:
        page.goto(f"/groups/{GROUP}")
        page.wait_for_timeout(SAMPLES_SECONDS * 1000)
    for name, (path, dark) in PICTURES.items():
        with chromium.page(place.address, dark=dark, size=PICTURE) as page:
            page.goto(path)
            page.screenshot(path=str(folder / f"console-{name}.png"))
