"""The pages of topics: found, made, changed and deleted, and what is refused in words."""

from __future__ import annotations

from penstock.admin.offsets import EARLIEST, LATEST, commit, list_offsets
from penstock.admin.records import Sender
from penstock.client import Client
from penstock.wire.batch import Record
from tests.console.browser import Browser, text_of
from tests.console.records import fill, make


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
    assert "There is no topic 'nothing': it was deleted, or never created." in text_of(
        browser.get("/topics/nothing", 404)
    )
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


def test_a_topic_of_many_partitions_is_counted_as_a_whole_and_shown_in_pages(
    browser: Browser, client: Client
) -> None:
    make(client, "broad", partitions=130)
    fill(client, "broad", 129, 7)
    page = text_of(browser.get("/topics/broad"))
    assert "130 partitions" in page
    assert "7 offsets with records" in page  # though its partition is not on this page
    assert "Page 1 of 2" in page
    assert "129 1 0 1 1 0 7 " in text_of(browser.get("/topics/broad?page=2"))


def test_the_records_of_a_topic_are_deleted_and_it_goes_on_at_the_next_offset(
    browser: Browser, client: Client
) -> None:
    make(client, "emptied", partitions=2)
    fill(client, "emptied", 1, 5)
    refused = browser.send("/topics/emptied/empty", {"typed": "empty"}, on="/topics/emptied")
    assert refused.status_code == 400
    places = [("emptied", 0), ("emptied", 1)]
    assert list_offsets(client, places, EARLIEST) == {("emptied", 0): 0, ("emptied", 1): 0}
    page = browser.sent("/topics/emptied/empty", {"typed": "emptied"}, on="/topics/emptied")
    assert "Deleted the records of topic emptied that were there." in text_of(page)
    assert "0 offsets with records" in text_of(page)
    assert list_offsets(client, places, EARLIEST) == {("emptied", 0): 0, ("emptied", 1): 5}
    fill(client, "emptied", 1, 1)
    assert list_offsets(client, places, LATEST)["emptied", 1] == 6


def test_a_topic_names_the_groups_that_read_it_and_how_far_they_are(browser: Browser, client: Client) -> None:
    make(client, "followed", partitions=2)
    make(client, "elsewhere")
    fill(client, "followed", 0, 10)
    fill(client, "elsewhere", 0, 10)
    assert "No group has committed offsets of this topic." in text_of(browser.get("/topics/followed/groups"))
    commit(client, "near & far", {("followed", 0): 4, ("followed", 1): 0, ("elsewhere", 0): 0})
    commit(client, "stranger", {("elsewhere", 0): 1})
    browser.console.everybody.forget()  # type: ignore[union-attr]
    page = text_of(browser.get("/topics/followed/groups"))
    assert "near & far without members 0 2 6" in page
    assert "stranger" not in page


def test_a_wrong_number_of_partitions_is_said_on_the_page_of_the_topic(
    browser: Browser, client: Client
) -> None:
    make(client, "grown", partitions=3)
    for count, sentence in (("²", "The number of partitions is a number"), ("2", "INVALID_PARTITIONS")):
        answer = browser.send("/topics/grown/partitions", {"count": count}, on="/topics/grown")
        assert answer.status_code == 400
        assert sentence in text_of(answer.text)
        assert "3 partitions" in text_of(answer.text)


def test_a_setting_that_was_refused_need_not_be_typed_again(browser: Browser, client: Client) -> None:
    make(client, "retyped")
    fields = {"name": "retention.ms", "value": "two weeks"}
    answer = browser.send("/topics/retyped/settings", fields, on="/topics/retyped/settings")
    assert answer.status_code == 400
    assert 'value="two weeks" aria-label="New value of retention.ms"' in answer.text
