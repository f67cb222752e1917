"""What a user does on a cluster that is open. Each scene gives one line of figures, or raises Wrong."""

import re
import time
from collections.abc import Callable

from confluent_kafka import Producer
from playwright.sync_api import Page, expect

from conformance.console.chromium import Chromium, witness_of
from conformance.console.place import GROUP, ORDERS, PARTITIONS, Place, Writer, name_of
from penstock.admin.offsets import committed
from penstock.client import Client

Scene = Callable[[Place, Chromium], str]


class Wrong(Exception):
    """The console did not show or do what it should."""


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise Wrong(sentence)


def find_a_topic(place: Place, chromium: Chromium) -> str:
    wanted = name_of(place.topics - 289)
    with chromium.page(place.address) as page:
        page.goto("/")
        page.get_by_role("navigation", name="Main").get_by_role("link", name="Topics").click()
        expect(page.get_by_text(f"{place.topics + 1:,}".replace(",", "\u202f") + " topics")).to_be_visible()
        began = time.monotonic()
        page.get_by_label("Find").fill(wanted[-4:])
        page.get_by_label("Find").press("Enter")
        page.get_by_role("link", name=wanted, exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(wanted)
        took = time.monotonic() - began
        require(page.url.endswith(f"/topics/{wanted}"), f"its address is {page.url}")
    return f"one of {place.topics + 1:,} in {took:.1f} s, typing included"


def reset_a_group(place: Place, chromium: Chromium) -> str:
    with chromium.page(place.address) as page:
        page.goto("/groups")
        page.get_by_role("link", name=GROUP, exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Group {GROUP}")
        before = _committed(place)
        page.get_by_role("link", name="Move offsets").click()
        page.get_by_label("Where to").select_option("earliest")
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_role("heading", name="Preview")).to_be_visible()
        shown = [
            tuple(int(re.sub(r"\D", "", cell)) for cell in row.get_by_role("cell").all_inner_texts()[:3])
            for row in page.locator("#preview tbody tr").all()
        ]
        wanted = [(number, before[ORDERS, number], 0) for number in range(PARTITIONS)]
        require(shown == wanted, f"the preview shows {shown}, and should {wanted}")
        require(_committed(place) == before, "the preview committed something")
        page.get_by_role("button", name="Move the offsets").click()
        expect(page.get_by_role("status")).to_contain_text("Moved the offsets of billing in 4 partitions.")
    after = _committed(place)
    require(after == {(ORDERS, number): 0 for number in range(PARTITIONS)}, f"committed is {after}")
    return f"{PARTITIONS} partitions, as the preview said"


def _committed(place: Place) -> dict[tuple[str, int], int]:
    with Client(place.cluster.bootstrap) as client:
        return committed(client, GROUP)


def see_a_broker_die(place: Place, chromium: Chromium) -> str:
    with chromium.page(place.address) as page:
        page.goto("/brokers")
        row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=re.compile("^2")))
        expect(row).to_contain_text("alive")
        began = time.monotonic()
        place.cluster[2].kill()
        try:
            expect(row).to_contain_text("not there", timeout=60_000)
            gone = time.monotonic() - began
            page.get_by_role("link", name="Overview").click()
            expect(page.get_by_text("Broker 2 is not there.")).to_be_visible()
            page.go_back()
        finally:
            began = time.monotonic()
            place.cluster[2].start()
        expect(row).to_contain_text("alive", timeout=60_000)
        back = time.monotonic() - began
        require(not witness_of(page).problems(), "; ".join(witness_of(page).problems()))
    return f"seen {gone:.1f} s after kill -9, and back {back:.1f} s after its start, without a reload"


def watch_lag(place: Place, chromium: Chromium) -> str:
    """Lag grows while records come, on a page that nobody touches, and a line is drawn."""
    with chromium.page(place.address) as page, Writer(place.client, ORDERS, 0.05) as writer:
        page.goto(f"/groups/{GROUP}")
        lag = page.locator("#lag")
        first, words = _number(page, "#lag"), lag.inner_text()
        # The line may be there already: samples are taken since somebody looked at groups first.
        expect(lag).not_to_have_text(words, timeout=60_000)
        expect(page.locator(".chart polyline").first).to_be_attached(timeout=60_000)
        last = _number(page, "#lag")
        require(last > first, f"lag was {first} and is {last} after {writer.sent} records")
        words = page.locator(".chart").get_attribute("aria-label") or ""
    return f"lag {first:,} to {last:,} while it was looked at; {words}"


def _number(page: Page, selector: str) -> int:
    return int(re.sub(r"\D", "", page.locator(selector).inner_text()) or 0)


def ask_the_doctor(place: Place, chromium: Chromium) -> str:
    with chromium.page(place.address) as page:
        page.goto("/doctor")
        expect(page.get_by_text("Nobody has asked yet.")).to_be_visible()
        began = time.monotonic()
        page.get_by_role("button", name="Check now").click()
        expect(page.get_by_role("status")).to_contain_text("All checks are well.", timeout=90_000)
        took = time.monotonic() - began
        page.goto("/store")
        page.get_by_role("button", name="Look now").click()
        expect(page.get_by_role("status")).to_contain_text(
            "Everything that the cluster needs is there.", timeout=90_000
        )
    return f"all checks are well, in {took:.1f} s; the store has what the cluster needs"


def look_at_transactions(place: Place, chromium: Chromium) -> str:
    producer = Producer({**place.client, "transactional.id": "pay-1"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(ORDERS, b"paid", b"key-paid")
    producer.flush(30)
    with chromium.page(place.address) as page:
        page.goto("/transactions")
        page.get_by_role("link", name="pay-1").click()
        expect(page.get_by_text("Ongoing")).to_be_visible()
        producer.commit_transaction(30)
        expect(page.get_by_text("CompleteCommit")).to_be_visible()
        page.goto("/transactions")
        page.get_by_role("link", name="Find those that hang").click()
        expect(page.get_by_text("None hangs in")).to_be_visible(timeout=90_000)
    return "one followed from Ongoing to CompleteCommit; none hangs"
