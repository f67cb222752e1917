"""The pages of topics: found, made, changed and deleted, and what is refused in words."""

from __future__ import annotations

from penstock.admin.records import Sender
from penstock.client import Client
from penstock.wire.batch import Record
from tests.console.browser import Browser, text_of
from tests.console.records import make


def test_a_topic_is_made_found_changed_and_deleted(browser: Browser, client: Client) -> None:
    page = browser.sent(
        "/create-topic",
        {"name": "console.orders", "partitions": "3", "configs": "retention.ms=7200000\n\n"},
        on="/create-topic",
    )
    assert "Created topic console.orders." in text_of(page)
    assert client.partitions("console.orders") == [0, 1, 2]
    found = text_of(browser.get("/topics?find=SOLE.ORD"))
    assert "1 topic" in found
    assert "console.orders 3" in found
    settings = text_of(browser.get("/topics/console.orders/settings"))
    assert "7200000 set for this topic" in settings
    page = browser.sent(
        "/topics/console.orders/settings",
        {"name": "retention.ms", "value": "3600000"},
        on="/topics/console.orders/settings",
    )
    assert "retention.ms is 3600000 now." in text_of(page)
    page = browser.sent(
        "/topics/console.orders/settings",
        {"name": "retention.ms", "value": "", "do": "unset"},
        on="/topics/console.orders/settings",
    )
    assert "604800000 default" in text_of(page)
    page = browser.sent("/topics/console.orders/partitions", {"count": "5"}, on="/topics/console.orders")
    assert "has 5 partitions now" in text_of(page)
    refused = browser.send(
        "/topics/console.orders/delete", {"confirm": "console"}, on="/topics/console.orders/delete"
    )
    assert refused.status_code == 400
    assert "nothing was deleted" in text_of(refused.text)
    assert client.partitions("console.orders") == [0, 1, 2, 3, 4]
    page = browser.sent(
        "/topics/console.orders/delete", {"confirm": "console.orders"}, on="/topics/console.orders/delete"
    )
    assert "Deleted topic console.orders." in text_of(page)
    assert "No topic has this in its name." in text_of(browser.get("/topics?find=console.orders"))


def test_what_the_cluster_refuses_is_told_in_its_words(browser: Browser, client: Client) -> None:
    make(client, "refusals")
    answer = browser.send(
        "/topics/refusals/settings",
        {"name": "retention.ms", "value": "soon"},
        on="/topics/refusals/settings",
    )
    assert answer.status_code == 400
    assert "Changing settings of topic 'refusals' was answered INVALID_CONFIG" in text_of(answer.text)
    for fields, sentence in (
        ({"name": "refusals"}, "TOPIC_ALREADY_EXISTS"),
        ({"name": "no/such/name"}, "INVALID_TOPIC_EXCEPTION"),
        ({"name": "fine", "partitions": "many"}, "The number of partitions is a number"),
        ({"name": "fine", "configs": "retention"}, "A setting is NAME=VALUE"),
    ):
        answer = browser.send("/create-topic", fields, on="/create-topic")
        assert answer.status_code == 400
        assert sentence in text_of(answer.text)
        assert fields["name"] in answer.text  # nothing has to be typed again
    assert "UNKNOWN_TOPIC_OR_PARTITION: there is none" in text_of(browser.get("/topics/nothing", 404))
    browser.get("/topics/nothing/records", 404)
    browser.get("/topics/nothing/settings", 404)


def test_forms_without_their_token_change_nothing(browser: Browser, client: Client) -> None:
    make(client, "safe")
    for token in ("", "0" * 64):
        answer = browser.http.post("/topics/safe/delete", data={"token": token, "confirm": "safe"})
        assert answer.status_code == 403
    browser.get("/topics")
    answer = browser.send("/topics/safe/delete", {"confirm": "safe"}, origin="http://evil.example.com")
    assert answer.status_code == 403
    assert "not sent from a page of this console" in text_of(answer.text)
    assert client.partitions("safe") == [0]


def test_a_topic_shows_its_offsets_and_sizes(browser: Browser, client: Client) -> None:
    make(client, "sized", partitions=2)
    sender = Sender(client, "sized", [0, 1], 0, -1)
    for number in range(10):
        sender.send(Record(0, 1000 + number, None, b"x" * 100, ()), number % 2)
    sender.flush()
    page = text_of(browser.get("/topics/sized"))
    assert "2 partitions" in page
    assert "10 offsets with records" in page
    assert "sized 2 1 10 served" in text_of(browser.get("/topics?find=sized"))


def test_pages_of_many_topics(browser: Browser, client: Client) -> None:
    for number in range(60):
        make(client, f"many-{number:03d}")
    first = text_of(browser.get("/topics?find=many-"))
    assert "60 topics" in first
    assert "Page 1 of 2" in first
    assert "many-049" in first
    assert "many-050" not in first
    assert "many-059" in text_of(browser.get("/topics?find=many-&page=2"))
    assert "many-059" in text_of(browser.get("/topics?find=many-&down=1"))
