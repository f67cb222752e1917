"""Drives the console in Chromium, as a user would: `python -m conformance.console`.

On three brokers with 5,000 topics, and a topic of a million records: a topic is found, its tail followed while a
client writes, a record searched by its key, a group's offsets moved with a preview, a broker killed and started
again, a topic created, changed, written to and deleted. On a secured cluster a user of few rights logs in and
is refused in words. The console at a broker's own HTTP port is looked at, open, and with a login over https. The same
console shows Apache Kafka. On every page, light and dark, 360 and 1440 px wide:
axe-core, no sideways scrolling, everything by keyboard, and the time of the server. Errors of JavaScript,
failed requests and requests to other hosts must all be none.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from conformance import parts
from conformance.console import looks, own_port, records, scenes
from conformance.console.chromium import Chromium, chromium
from conformance.console.elsewhere import apache_kafka, few_rights
from conformance.console.place import PAGES, TOPICS, Place
from conformance.console.scenes import Scene, Wrong
from conformance.server import ServerFailed, interrupted_cleanly

SCENES: dict[str, Scene] = {
    "find a topic": scenes.find_a_topic,
    "follow a tail": records.follow_a_tail,
    "search a record by key": records.search_by_key,
    "copy commands, and run them": records.run_the_commands,
    "records and names that are hostile": records.hostile,
    "produce a record": records.produce_a_record,
    "create, change and delete a topic": records.life_of_a_topic,
    "by keyboard alone": records.by_keys_alone,
    "watch lag grow": scenes.watch_lag,
    "move a group's offsets with a preview": scenes.reset_a_group,
    "see a broker die and come back": scenes.see_a_broker_die,
    "transactions": scenes.look_at_transactions,
    "doctor and store": scenes.ask_the_doctor,
}
SLOW = ("/hanging-transactions", "/no-such-page")
"""Looked at, and not timed: the first asks every partition, and only when somebody wants that."""


class Report:
    def __init__(self) -> None:
        self.failed = 0

    def say(self, what: str, problems: list[str], figures: str = "") -> None:
        self.failed += bool(problems)
        print(f"{'FAILED' if problems else 'held'}: {what}{': ' + figures if figures else ''}", flush=True)
        for problem in problems[:20]:
            print(f"    {problem}", flush=True)


def play(name: str, scene: Callable[[], str], report: Report) -> None:
    began = time.monotonic()
    try:
        figures = scene()
        report.say(name, [], f"{figures} ({time.monotonic() - began:.0f} s)")
    except (Wrong, AssertionError) as wrong:
        report.say(name, [str(wrong).splitlines()[0], *str(wrong).splitlines()[1:6]])
    except Exception as error:
        if type(error).__module__.split(".")[0] != "playwright":
            raise
        report.say(name, str(error).splitlines()[:6])


def look(place: Place, browser: Chromium, report: Report) -> None:
    script = parts.axe()
    paths = [*PAGES, *SLOW]
    report.say(
        "axe-core without serious findings, and no sideways scrolling",
        looks.accessible(place.address, paths, browser, script),
        f"{len(paths)} pages, light and dark, 1440 and 360 px",
    )
    reached, problems = looks.by_keyboard(place.address, paths, browser)
    report.say("everything by keyboard", problems, f"{reached} stops of Tab on {len(paths)} pages")
    medians = looks.speeds(place.address, PAGES)
    slow = [f"{path} takes {ms:.0f} ms" for path, ms in medians.items() if ms > looks.MEDIAN_MS_MAX]
    slowest = max(medians.items(), key=lambda item: item[1])
    said = ", ".join(f"{path} {ms:.0f}" for path, ms in medians.items())
    report.say(
        f"pages under {looks.MEDIAN_MS_MAX:.0f} ms in the median on {place.topics + 1:,} topics",
        slow,
        f"slowest {slowest[0]} {slowest[1]:.0f} ms; at the client, warm: {said}",
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.console", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--short", action="store_true", help="100,000 records instead of a million, and no Apache Kafka"
    )
    parser.add_argument(
        "--only", action="append", metavar="SCENE", help="only these scenes, looks, own port, rights or kafka"
    )
    parser.add_argument(
        "--screenshots", metavar="DIR", type=Path, help="write pictures for the documentation there"
    )
    parser.add_argument("--topics", type=int, default=TOPICS, help=f"how many topics (default: {TOPICS})")
    chosen = parser.parse_args()
    report = Report()

    def wanted(name: str) -> bool:
        return chosen.only is None or any(one in name for one in chosen.only)

    try:
        with interrupted_cleanly(), chromium() as browser:
            print(f"Chromium {browser.version}", flush=True)
            if chosen.screenshots or any(map(wanted, [*SCENES, "looks"])):
                began = time.monotonic()
                with Place(100_000 if chosen.short else 1_000_000, chosen.topics) as place:
                    print(
                        f"three brokers, {place.topics + 1:,} topics, {place.records:,} records, in {time.monotonic() - began:.0f} s",
                        flush=True,
                    )
                    for name, scene in SCENES.items():
                        if wanted(name):
                            play(name, partial(scene, place, browser), report)
                    if wanted("looks"):
                        look(place, browser, report)
                    if chosen.screenshots:
                        looks.screenshots(place, browser, chosen.screenshots)
            if wanted("own port"):
                for way, options in own_port.WAYS.items():
                    with own_port.BrokersPort(*options) as shown:
                        for name, visit in own_port.SCENES.items():
                            play(f"{way}: {name}", partial(visit, shown, browser), report)
            if wanted("rights"):
                report.say("a user of few rights on a secured cluster", *few_rights(browser))
            if wanted("kafka") and not chosen.short:
                report.say(f"Apache Kafka {parts.KAFKA_NEWEST}", *apache_kafka(browser))
            report.say(
                "no errors of JavaScript, no failed requests, none to other hosts",
                browser.problems(),
                f"{sum(one.requests for one in browser.witnesses):,} requests",
            )
    except parts.PartMissing as why:
        return parts.not_run(why)
    except ServerFailed as why:
        print(f"FAILED: {why}")
        return 1
    return 1 if report.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
