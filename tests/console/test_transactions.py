"""Transactions on pages: listed, described, and ended where they hang."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock.console.options import ConsoleOptions
from penstock.testing import Broker
from tests.console.browser import Browser, text_of
from tests.spark.transactional import data
from tests.spark.workshop import Workshop

HANGING = 4242


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Its partition has records of a transaction that no coordinator ever heard of."""
    store = str(tmp_path / "store")
    with Workshop(store) as workshop:
        workshop.create("t")
        workshop.append("t", data(HANGING, 0, b"hangs"))
    with Broker(store=store) as running:
        yield running


@pytest.fixture
def own(broker: Broker) -> Iterator[Browser]:
    made = Browser(ConsoleOptions(bootstrap=broker.bootstrap_servers))
    yield made
    made.close()


def test_transactions_are_listed_and_shown(browser: Browser, cluster: Broker) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "pay/1"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce("u", b"x")
    producer.flush(20)
    browser.console.everybody.forget()  # type: ignore[union-attr]
    assert "pay/1 Ongoing" in text_of(browser.get("/transactions?find=PAY"))
    assert "No transactional id fits." in text_of(browser.get("/transactions?state=CompleteAbort&find=pay"))
    page = text_of(browser.get("/transactions/pay%2F1"))
    assert "State Ongoing Open for" in page
    assert "u partition 0" in page
    producer.commit_transaction(20)
    assert "No partition is in a transaction of this id now." in text_of(browser.get("/transactions/pay%2F1"))
    assert "There is no transactional id 'nobody'." in text_of(browser.get("/transactions/nobody", 404))


def test_one_that_hangs_is_found_and_aborted(own: Browser) -> None:
    assert "No producer has a transactional id." in text_of(own.get("/transactions"))
    page = text_of(own.get("/hanging-transactions?minutes=0"))
    assert f"Producer {HANGING} has a transaction open in partition 0 of t from offset 0 on." in page
    fields = {"topic": "t", "partition": "0", "start_offset": "0", "typed": "T"}
    here = "/hanging-transactions?minutes=0"
    answer = own.send("/hanging-transactions", fields, on=here)
    assert answer.status_code == 400 and "type 't' to confirm" in text_of(answer.text)
    after = own.sent("/hanging-transactions", {**fields, "typed": "t"}, on=here)
    assert f"Aborted the transaction of producer {HANGING}" in text_of(after)
    assert "None hangs in" in text_of(own.get(here))


def test_one_that_does_not_hang_is_left_alone(browser: Browser, cluster: Broker) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "alive"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce("v", b"x")
    producer.flush(20)
    fields = {"topic": "v", "partition": "0", "start_offset": "0", "typed": "v"}
    answer = browser.send("/hanging-transactions", fields, on="/doctor")
    assert answer.status_code == 400
    assert "This transaction does not hang: it is that of 'alive'" in text_of(answer.text)
    producer.commit_transaction(20)
