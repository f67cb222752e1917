"""Rules, users and quotas on a page, and what somebody without rights is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.admin.rules import list_rules
from penstock.admin.users import list_users
from penstock.client import Client
from penstock.console.options import ConsoleOptions
from penstock.settings.access import STANDARD_AUTHORIZER
from penstock.testing import Broker
from tests.console.browser import Browser, text_of

RULE = {"principal": "User:alice", "operation": "read", "resource": "topic", "name": "orders"}


@pytest.fixture(scope="module")
def ruled() -> Iterator[Broker]:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    with Broker(settings=settings) as broker:
        yield broker


@pytest.fixture
def own(ruled: Broker) -> Iterator[Browser]:
    made = Browser(ConsoleOptions(bootstrap=ruled.bootstrap_servers))
    yield made
    made.close()


def test_rules_are_added_found_and_removed(own: Browser, ruled: Broker) -> None:
    assert "There are no rules yet" in text_of(own.get("/access"))
    page = own.sent("/access", {"action": "add-rule", **RULE, "pattern": "prefixed"}, on="/access")
    assert "Added a rule: User:alice may read topic every name that begins with orders." in text_of(page)
    own.sent(
        "/access", {"action": "add-rule", **RULE, "permission": "deny", "host": "10.0.0.1"}, on="/access"
    )
    assert "User:alice may not read topic orders 10.0.0.1" in text_of(own.get("/access"))
    assert "No rule fits." in text_of(own.get("/access?find=bob"))
    gone = {"action": "remove-rule", **RULE, "pattern": "prefixed", "typed": "User:alice", "host": "*"}
    assert own.send("/access", {**gone, "typed": "alice"}, on="/access").status_code == 400
    assert "Removed a rule" in text_of(own.sent("/access", gone, on="/access"))
    with Client(ruled.bootstrap_servers) as client:
        assert [(one.name, one.host) for one in list_rules(client)] == [("orders", "10.0.0.1")]
    again = own.send("/access", gone, on="/access")
    assert "There is no such rule any more." in text_of(again.text)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"principal": "alice"}, "'alice' is not a principal such as User:alice."),
        ({"name": " "}, "A rule needs the name of the resource"),
        ({"operation": "juggle"}, "A rule needs an operation and a kind of resource."),
    ],
)
def test_a_rule_that_is_none_is_told(own: Browser, changed: dict[str, str], sentence: str) -> None:
    answer = own.send("/access", {"action": "add-rule", **RULE, **changed}, on="/access")
    assert answer.status_code == 400
    assert sentence in text_of(answer.text)
    assert 'value="User:alice"' in answer.text or "principal" in changed, "what was typed is still there"


def test_users_come_and_go_and_their_passwords_are_never_shown(own: Browser, ruled: Broker) -> None:
    fields = {"action": "add-user", "user": "carol", "password": "pencil-9", "mechanism": "SCRAM-SHA-512"}
    page = own.sent("/access", fields, on="/access")
    assert "User carol can log in with SCRAM-SHA-512." in text_of(page)
    assert "pencil-9" not in page
    with Client(ruled.bootstrap_servers) as client:
        assert [one[:2] for one in list_users(client)] == [("carol", "SCRAM-SHA-512")]
    empty = own.send("/access", {**fields, "password": ""}, on="/access")
    assert "The password is empty." in text_of(empty.text)
    gone = {"action": "remove-user", "user": "carol", "typed": "carol"}
    assert "can no longer log in" in text_of(own.sent("/access", gone, on="/access"))
    assert "There is no such user: carol." in text_of(own.send("/access", gone, on="/access").text)


def test_without_rights_each_part_says_so() -> None:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:root"}
    with Broker(settings=settings) as broker:
        browser = Browser(ConsoleOptions(bootstrap=broker.bootstrap_servers))
        page = text_of(browser.get("/access"))
        browser.close()
    for what in ("rules", "users", "quotas"):
        assert f"You may not see the {what} of this cluster." in page


def test_a_cluster_without_rules_says_so(browser: Browser) -> None:
    page = text_of(browser.get("/access"))
    assert "This cluster has no access rules: everybody may do everything." in page
    assert "There are no quotas: nobody is slowed down." in page
