"""Groups: where they stand, their lag over time, moving their offsets with a preview, and their end."""

from __future__ import annotations

import re
import shlex
from html import unescape
from urllib.parse import quote

import pytest

from penstock.admin.offsets import commit, committed
from penstock.admin.standing import Standing
from penstock.cli.group_member import GroupMember
from penstock.client import Client
from penstock.console.charts import lag_chart
from penstock.console.samples import LagSamples, Sample
from penstock.testing import Broker
from tests.console.browser import Browser, text_of
from tests.console.records import fill, make

GROUP = "shop/über 1"
HERE = "/groups/shop%2F%C3%BCber%201"


@pytest.fixture
def standing(client: Client) -> str:
    """A group that has read 3 of 10 records of partition 0, and nothing of partition 1."""
    make(client, "stood", 2) if "stood" not in names(client) else None
    if not committed(client, GROUP):
        fill(client, "stood", 0, 10)
    commit(client, GROUP, {("stood", 0): 3, ("stood", 1): 0})
    return GROUP


def names(client: Client) -> list[str | None]:
    return [topic.name for topic in client.metadata().topics]


def test_groups_are_listed_with_state_and_lag_and_found_by_name(browser: Browser, standing: str) -> None:
    page = text_of(browser.get("/groups?find=ÜBER"))
    assert f"1 group Group State Members Lag Protocol {standing} without members 0 7 classic" in page
    assert "No group fits." in text_of(browser.get("/groups?find=nobody"))
    assert standing in browser.get("/groups?state=Empty&sort=lag&down=1")
    assert "No group fits." in text_of(browser.get("/groups?state=Dead"))


def test_a_group_shows_each_partition(browser: Browser, standing: str) -> None:
    page = text_of(browser.get(HERE))
    assert "7 records behind the end" in page
    assert "stood 0 3 10 7 \u2013" in page
    assert "stood 1 0 0 0 \u2013" in page
    assert "Nobody reads with this group now." in page


def test_members_are_shown_with_their_hosts(
    browser: Browser, client: Client, cluster: Broker, standing: str
) -> None:
    make(client, "membered", 2)
    with Client(cluster.bootstrap_servers) as own:
        member = GroupMember(own, "readers", "membered")
        member.join()
        page = text_of(browser.get("/groups/readers"))
        assert "penstock 127.0.0.1 membered : 0, 1" in page
        assert "A group with members cannot be deleted" in page
        answer = browser.send("/groups/readers", {"action": "delete", "typed": "readers"}, on=HERE)
        assert answer.status_code == 400
        assert "has members: stop them" in text_of(answer.text)
        assert "stop its members" in text_of(browser.get("/groups/readers?view=reset", 400))
        member.leave()


def test_a_group_that_is_not_there(browser: Browser) -> None:
    assert "There is no group 'nobody'." in text_of(browser.get("/groups/nobody", 404))


@pytest.mark.parametrize(
    ("fields", "moved"),
    [
        ("way=earliest", [("0", "3", "0"), ("1", "0", "0")]),
        ("way=latest", [("0", "3", "10"), ("1", "0", "0")]),
        ("way=current&topic=stood", [("0", "3", "3"), ("1", "0", "0")]),
        ("way=offset&value=5&topic=stood:0", [("0", "3", "5")]),
        ("way=offset&value=500&topic=stood:0", [("0", "3", "10")]),
        ("way=shift&value=-2&topic=stood:0", [("0", "3", "1")]),
        ("way=shift&value=%2B2&topic=stood:0", [("0", "3", "5")]),
        ("way=time&value=2001-01-01T00:00:00&topic=stood:0", [("0", "3", "0")]),
        ("way=duration&value=PT0.001S&topic=stood:0", [("0", "3", "10")]),
        ("way=plan&value=stood,0,4", [("0", "3", "4")]),
    ],
)
def test_offsets_are_moved_in_all_ways_as_the_preview_said(
    browser: Browser, client: Client, standing: str, fields: str, moved: list[tuple[str, str, str]]
) -> None:
    page = browser.get(f"{HERE}?view=reset&{fields}")
    shown = re.findall(r"stood (\d) (\d+) (\d+) (?:[\u2013+-]|new)", text_of(page).replace("\u202f", ""))
    assert shown == moved
    before = committed(client, standing)
    plan = re.search(r'name="plan" value="([^"]*)"', page)
    assert plan is not None
    assert committed(client, standing) == before, "a preview commits nothing"
    after = browser.sent(HERE, {"action": "reset", "plan": unescape(plan[1])}, on=HERE)
    assert "Moved the offsets of" in text_of(after)
    for partition, _was, to in moved:
        assert committed(client, standing)["stood", int(partition)] == int(to)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ("way=offset&value=x", "An offset is a number from 0 on, not 'x'."),
        ("way=shift&value=", "A number of records is such as -100 or 100, not ''."),
        ("way=time&value=soon", "A date and time is"),
        ("way=duration&value=1h", "A duration is PnDTnHnMnS"),
        ("way=plan&value=a", "Line 1 is not topic,partition,offset"),
        ("way=latest&topic=stood:7", "has no partition 7"),
        ("way=sideways", "Choose a way"),
    ],
)
def test_what_cannot_be_moved_is_told_in_a_sentence(
    browser: Browser, standing: str, fields: str, sentence: str
) -> None:
    assert sentence in text_of(browser.get(f"{HERE}?view=reset&{fields}", 400))


def test_a_preview_that_is_old_moves_nothing(browser: Browser, client: Client, standing: str) -> None:
    answer = browser.send(HERE, {"action": "reset", "plan": "stood,0,2,9"}, on=HERE)
    assert answer.status_code == 400
    assert "The group has committed offsets since the preview" in text_of(answer.text)
    assert committed(client, standing)["stood", 0] == 3


def test_offsets_of_a_topic_are_forgotten_and_the_group_deleted(
    browser: Browser, client: Client, standing: str
) -> None:
    make(client, "left", 1)
    make(client, "kept", 1)
    commit(client, "leavers", {("left", 0): 0, ("kept", 0): 0})
    answer = browser.send("/groups/leavers", {"action": "forget", "topic": "left", "typed": "lef"}, on=HERE)
    assert "type 'left' to confirm" in text_of(answer.text)
    browser.sent("/groups/leavers", {"action": "forget", "topic": "left", "typed": "left"}, on=HERE)
    assert committed(client, "leavers") == {("kept", 0): 0}
    assert browser.send("/groups/leavers", {"action": "delete", "typed": ""}, on=HERE).status_code == 400
    page = browser.sent("/groups/leavers", {"action": "delete", "typed": "leavers"}, on=HERE)
    assert "Deleted group leavers" in text_of(page)
    browser.get("/groups/leavers", 404)


def test_samples_make_a_line_and_gaps_stay_gaps(browser: Browser) -> None:
    now = 1000.0
    samples = LagSamples(browser.console.everybody, lambda: now)  # type: ignore[arg-type]
    for seconds, lag in ((0, 5), (10, 8), (20, None), (300, 2), (310, 0)):
        now = 1000.0 + seconds
        samples.add([Standing("g", "Empty", "classic", 0, {}, lag)])
    found = samples.of("g")
    assert [one.lag for one in found] == [5, 8, None, 2, 0]
    chart = lag_chart(found)
    assert chart is not None
    assert len(chart.lines) == 2
    assert "5 at first, at most 8, 0 now." in chart.words
    samples.add([])
    assert samples.of("g") == []


def test_no_line_of_one_sample() -> None:
    assert lag_chart([Sample(1.0, 5)]) is None
    assert lag_chart([Sample(1.0, 0), Sample(2.0, 0)]) is not None


@pytest.mark.parametrize("group", ["spaces; rm -rf ~", "it's", "-rf", "$(reboot)"])
def test_the_command_of_a_preview_is_safe_in_a_shell(browser: Browser, client: Client, group: str) -> None:
    if not any(topic.name == "quoted" for topic in client.metadata().topics):
        make(client, "quoted")
    commit(client, group, {("quoted", 0): 0})
    page = browser.get(f"/groups/{quote(group, safe='')}?view=reset&way=time&value=2026-01-31T12:00:00")
    found = re.search(r'<pre id="command">(.*)</pre>', page)
    assert found
    words = shlex.split(unescape(found[1]))
    reset = ["penstock", "groups", "reset-offsets", "--all-topics", "--to-datetime", "2026-01-31T12:00:00"]
    assert words[:6] == reset
    assert words[-1] == group
    assert ("--" in words) == group.startswith("-")


@pytest.mark.parametrize("value", ["²", "1" * 5000])
def test_numbers_that_are_none_are_told(browser: Browser, standing: str, value: str) -> None:
    for way in ("offset", "shift", "time"):
        browser.get(f"{HERE}?view=reset&way={way}&value={value}", 400)
    browser.get(f"{HERE}?view=reset&way=time&value=@{value}", 400)
