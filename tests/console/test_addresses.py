"""A name has an address of its own, whatever its characters, and a browser asks for exactly that one."""

from __future__ import annotations

import re
from html import unescape

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from penstock.admin.offsets import commit
from penstock.client import Client
from penstock.console.addresses import name_of, segment
from penstock.console.options import ConsoleOptions
from penstock.testing import Broker
from tests.console.browser import Browser, text_of
from tests.console.records import make

NAMES = ["..", ".", "~..", "~", "~~.", "a/b", "/", "a/../..", "a%2fb", "%2e%2e", "what?view=reset", "a#b",
         "a b", "two\nlines", "ends\n", "\u00fcber", "reset", "+", "&amp;", "..."]  # fmt: skip
STEPS = {"", ".", "..", "%2e", ".%2e", "%2e.", "%2e%2e"}
"""What browsers do not ask for as it is written (WHATWG's URLs, 4.1), and what is not there."""


@given(st.text(alphabet="~./%2eE?#ab\n ", max_size=6) | st.text(max_size=20))
def test_a_name_is_one_part_of_a_path_and_comes_back(name: str) -> None:
    part = segment(name)
    assert name_of(part) == name
    assert re.fullmatch(r"[A-Za-z0-9._~%-]+", part)
    assert part.lower() not in STEPS


def test_names_that_are_asked_for_as_they_are_typed() -> None:
    assert (name_of("shop"), name_of("~shop"), name_of("a...b")) == ("shop", "~shop", "a...b")
    assert segment("~shop") == "~shop"


def link_to(page: str, name: str) -> str:
    """Where the link with this name leads."""
    links = re.findall(r'<a href="([^"]*)">([^<]*)</a>', page)
    return {unescape(words): unescape(link) for link, words in links}[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_group_has_a_link_and_forms_that_work(browser: Browser, client: Client, name: str) -> None:
    if not any(topic.name == "addressed" for topic in client.metadata().topics):
        make(client, "addressed")
    commit(client, name, {("addressed", 0): 0})
    link = link_to(browser.get("/groups"), name)
    assert not STEPS & set(link.lower().split("/")[1:])
    page = browser.get(link)
    assert f"<h1>Group {name}</h1>" in unescape(page)
    assert 'href="/groups" aria-current="page"' in page
    move = re.search(r'href="([^"]*view=reset[^"]*)"', page)
    assert move
    assert "addressed" in browser.get(f"{unescape(move[1])}&way=latest")
    typed = {"action": "delete", "typed": "not it"}
    assert "to confirm" in text_of(browser.send(link, typed, on=link).text)
    after = browser.sent(link, {"action": "delete", "typed": name}, on=link)
    assert f"Deleted group {' '.join(name.split())}" in text_of(after)


@pytest.mark.parametrize("name", ["..", "a/b", "what?", "~."])
def test_a_transactional_id_is_opened_by_its_link(browser: Browser, cluster: Broker, name: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(20)
    browser.console.everybody.forget()  # type: ignore[union-attr]
    link = link_to(browser.get("/transactions"), name)
    assert f"<h1>Transactional id {name}</h1>" in unescape(browser.get(link))


@pytest.mark.parametrize("name", ["records", "groups", "settings", "delete", "static", "create-topic", "..."])
def test_a_topic_that_is_called_as_a_page_is(browser: Browser, client: Client, name: str) -> None:
    make(client, name)
    browser.console.everybody.forget()  # type: ignore[union-attr]
    link = link_to(browser.get("/topics"), name)
    assert f"<h1>{name}</h1>" in browser.get(link)
    for page in ("records", "settings", "groups", "delete"):
        assert name in text_of(browser.get(f"{link}/{page}"))


def test_a_group_that_is_not_there_is_named(browser: Browser) -> None:
    page = browser.get("/groups/~..", 404)
    assert "There is no group '..'." in text_of(page)
    assert "There is no group ''." in text_of(browser.get("/groups/~", 404))


def test_after_a_login_one_is_where_one_wanted_to_be() -> None:
    """Also where the name has spaces, a question mark or the end of a line."""
    browser = Browser(ConsoleOptions(bootstrap="127.0.0.1:1", mechanisms=("SCRAM-SHA-512",)))
    link = f"/groups/{segment('my group? yes')}"
    answer = browser.answer(link)
    assert answer.status_code == 303
    page = browser.get(answer.headers["location"])
    assert f'name="back" value="{link}"' in page
    browser.close()
