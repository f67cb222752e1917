"""Records and topics: what a user does with them. Each scene gives one line of figures, or raises Wrong."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from playwright.sync_api import Page, expect

from conformance.console.chromium import Chromium
from conformance.console.place import ORDERS, Place, Shown, Writer, commit, create
from conformance.console.scenes import require

RECORDS = f"/topics/{ORDERS}/records"
SEARCH_SECONDS_MAX = 240.0
MADE = "made-by-hand"
HOSTILE = "hostile"
MARKUP = '"><script>window.ran = 1</script><img src=x onerror="window.ran = 1"><b>'
LINES = b"first\nevent: end\ndata: over\n\nlast"


def follow_a_tail(place: Shown, chromium: Chromium) -> str:
    """Records of a client that writes appear by themselves, each once."""
    with chromium.page(place.address) as page:
        place.enter(page)
        page.goto(RECORDS)
        page.get_by_role("button", name="Follow the tail").click()
        expect(page.locator("#tailing")).to_have_text("New records appear at the top.")
        with Writer(place.client, ORDERS) as writer:
            expect(page.locator("#records tbody")).to_contain_text("tick-00019", timeout=60_000)
            page.get_by_role("button", name="Pause").click()
            expect(page.locator("#tailing")).to_contain_text("Paused.")
            shown, sent = page.locator("#records tbody tr").count(), writer.sent
            while writer.sent < sent + 5:
                page.wait_for_timeout(100)
            page.wait_for_timeout(1000)  # longer than a record takes to a page that does not stand still
            require(page.locator("#records tbody tr").count() == shown, "a page that was paused moved on")
            page.get_by_role("button", name="Go on").click()
        last = f"tick-{writer.sent - 1:05d}"
        expect(page.locator("#records tbody")).to_contain_text(last, timeout=20_000)
        keys = re.findall(r"tick-\d{5}", page.locator("#records tbody").inner_text())
        require(len(keys) == len(set(keys)), "a record is shown twice")
        require(len(keys) == writer.sent, f"{writer.sent} records were written, and {len(keys)} are shown")
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("#tailing")).to_have_text("Stopped.")
    return f"{writer.sent} records, each once, while a client wrote them and a pause held some back"


NOTE_PROGRESS = """
window.progressShown = [];
new MutationObserver((changes) => {
  for (const { target } of changes) if (target.tagName === "PROGRESS") window.progressShown.push(target.value);
}).observe(document, { subtree: true, attributes: true, attributeFilter: ["value"] });
"""
"""A search of a million records may be over before a second look at its bar: what the bar shows is noted in the page."""


def search_by_key(place: Shown, chromium: Chromium) -> str:
    """One key among all, with progress on the way."""
    wanted = f"key-{place.records * 3 // 4:07d}"
    with chromium.page(place.address) as page:
        page.add_init_script(NOTE_PROGRESS)
        place.enter(page)
        page.goto(RECORDS)
        page.get_by_label("Search by").select_option("key")
        page.get_by_label("Look for").fill(wanted)
        began = time.monotonic()
        page.get_by_role("button", name="Search all records").click()
        seen = _progress(page, began)
        took = time.monotonic() - began
        words = page.locator("#found").inner_text()
        require(words.startswith("1 found in "), f"the search says: {words}")
        require(len(seen) > 1 or place.records < 1_000_000, "no progress was shown")
        rows = page.locator("#records tbody tr")
        expect(rows).to_have_count(1)
        expect(rows.first).to_contain_text(wanted)
        read = int(re.sub(r"\D", "", words.partition(" in ")[2]))
        require(read >= place.records, f"{read} records were searched of {place.records}")
    return f"{wanted} among {read:,} in {took:.1f} s, progress seen at {len(seen)} points"


def _progress(page: Page, began: float) -> set[str]:
    """What the bar showed until the search ended."""
    while page.locator("#search[data-done]").count() == 0:
        require(time.monotonic() - began < SEARCH_SECONDS_MAX, "the search did not end")
        page.wait_for_timeout(100)
    return {str(value) for value in page.evaluate("window.progressShown")}


def run_the_commands(place: Place, chromium: Chromium) -> str:
    """What is copied is run by a shell as it is, and prints the records of the page."""
    with chromium.page(place.address) as page:
        page.goto(f"{RECORDS}?from=offset&at=7&partition=1&count=25")
        page.locator("summary", has_text="Copy as command").click()
        many = page.locator("#command-penstock").inner_text()
        page.locator("#records summary").first.click()
        one = page.locator("#records details[open]").get_by_role("button", name="Copy as command")
        single = one.get_attribute("data-copy") or ""
    read = [json.loads(line)["offset"] for line in _shell(many).splitlines()]
    require(read == list(range(7, 32)), f"{many} prints the offsets {read}")
    require(json.loads(_shell(single))["offset"] == 7, f"{single} prints another record")
    return f"25 records by {many}"


def _shell(line: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", line],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": path},
    )
    require(done.returncode == 0, f"{line} ends with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def hostile(place: Place, chromium: Chromium) -> str:
    """HTML, line ends of the stream's own protocol, and what UTF-8 cannot say: shown, and nothing else."""
    create(place.cluster.bootstrap, [HOSTILE])
    producer = Producer({**place.client})
    for bytes_of in (MARKUP.encode(), json.dumps({MARKUP: [MARKUP]}).encode(), b'{"half": "\\ud800"}', LINES):
        producer.produce(HOSTILE, bytes_of, MARKUP, headers=[(MARKUP, MARKUP)])
    producer.produce(HOSTILE, None, b"\xff\x00")
    producer.flush(30)
    commit(place.client, MARKUP, HOSTILE, [1])
    seen = 0
    with chromium.page(place.address) as page:
        page.on("dialog", lambda dialog: dialog.accept(f"a script ran: {dialog.message}"))
        page.goto(f"/topics/{HOSTILE}/records?from=oldest")
        expect(page.locator("#records tbody tr")).to_have_count(5)
        for summary in page.locator("#records summary").all():
            summary.click()
        expect(page.locator("#records tbody tr").first).to_contain_text(MARKUP)
        seen += page.locator("#records img, #records script, #records b").count()
        page.goto(f"/topics/{HOSTILE}/records?by=text&find=half")
        expect(page.locator("#found")).to_contain_text("1 found in 5 records")
        page.goto(f"/topics/{HOSTILE}/records?by=text&find=data")
        expect(page.locator("#records tbody tr")).to_have_count(1)
        for path in ("/groups?find=onerror", f"/topics/{HOSTILE}/groups"):
            page.goto(path)
            page.get_by_role("link", name=MARKUP, exact=True).click()
            expect(page.get_by_role("heading", level=1)).to_have_text(f"Group {MARKUP}")
            seen += page.locator("main img, main script").count()
        require(page.evaluate("window.ran === undefined"), "a script of a record ran")
    require(seen == 0, f"{seen} elements of a record are elements of the page")
    return "markup in keys, values, headers and a group's name is text; half a surrogate is shown"


def produce_a_record(place: Place, chromium: Chromium) -> str:
    """By a form; a client reads what was written."""
    with chromium.page(place.address) as page:
        page.goto(RECORDS)
        page.get_by_text("Write a record").click()
        page.get_by_label("Key", exact=True).fill(MADE)
        page.get_by_label("Value", exact=True).fill('{"by": "hand"}')
        page.get_by_label("Headers, NAME: VALUE, one a line").fill("origin: browser")
        page.get_by_role("button", name="Write", exact=True).click()
        said = page.get_by_role("status").filter(has_text=re.compile(r"offset", re.I)).first.inner_text()
    found = re.search(r"partition (\d+).*?offset ([\d\u202f]+)|offset ([\d\u202f]+).*?partition (\d+)", said)
    require(found is not None, f"the console does not say where the record is: {said}")
    assert found is not None
    partition, offset = (found[1], found[2]) if found[1] else (found[4], found[3])
    consumer = Consumer({**place.client, "group.id": "reads-by-hand"})
    consumer.assign([TopicPartition(ORDERS, int(partition), int(re.sub(r"\D", "", offset)))])
    message = consumer.poll(20)
    consumer.close()
    require(message is not None, "the record is not there")
    assert message is not None
    read = (message.key(), message.value(), message.headers())
    require(read == (MADE.encode(), b'{"by": "hand"}', [("origin", b"browser")]), f"a client reads {read}")
    return f"a client reads it with its header: {said}"


def life_of_a_topic(place: Place, chromium: Chromium) -> str:
    """It is created, changed and deleted."""
    name = "short-lived"
    with chromium.page(place.address) as page:
        page.goto("/topics")
        page.get_by_role("link", name="Create a topic").click()
        page.get_by_label("Name", exact=True).fill(name)
        page.get_by_label("Partitions", exact=True).fill("3")
        page.get_by_role("button", name="Create", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        page.get_by_role("link", name="Settings").click()
        value = page.get_by_label("New value of retention.ms")
        value.fill("86400000")
        value.press("Enter")
        expect(page.get_by_role("status")).to_contain_text("retention.ms is 86400000 now.")
        page.get_by_role("link", name="Partitions").click()
        page.get_by_role("link", name="Delete", exact=True).click()
        page.get_by_label("Write its name").fill(name)
        page.get_by_role("button", name="Delete the topic").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
        page.get_by_label("Find").fill(name)
        page.get_by_label("Find").press("Enter")
        expect(page.get_by_role("link", name=name, exact=True)).to_have_count(0)
    return "3 partitions, retention.ms set, deleted after its name was typed"


def by_keys_alone(place: Place, chromium: Chromium) -> str:
    """From the front page to the records of a topic, without a mouse."""
    with chromium.page(place.address) as page:
        page.goto("/")
        _tab_to(page, "a[href='/topics']")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
        _tab_to(page, "input[name=find]")
        page.keyboard.type(ORDERS)
        page.keyboard.press("Enter")
        page.wait_for_url("**find=*")
        _tab_to(page, f"tbody a[href='/topics/{ORDERS}']")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text(ORDERS)
        _tab_to(page, f"a[href='{RECORDS}']")
        page.keyboard.press("Enter")
        expect(page.locator("#records tbody tr").first).to_be_visible()
        _tab_to(page, "#records summary")
        page.keyboard.press("Enter")
        expect(page.locator("#records details[open] pre").first).to_be_visible()
    return "front page, topics, find, topic, records, one of them opened: Tab and Enter"


def _tab_to(page: Page, selector: str) -> None:
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement?.matches(selector) ?? false", selector):
            return
    require(False, f"Tab does not reach {selector}")
