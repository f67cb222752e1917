"""Brokers come and go while somebody looks, also the one that the console was told of."""

from __future__ import annotations

from pathlib import Path

from penstock.console.options import ConsoleOptions
from penstock.testing import Broker
from penstock.testing.waiting import until
from tests.console.browser import Browser, text_of

QUICK = {"broker.session.timeout.ms": 1000, "broker.heartbeat.interval.ms": 100}


def test_a_broker_dies_and_comes_back(tmp_path: Path) -> None:
    with (
        Broker(store=tmp_path, broker_id=1, settings=QUICK) as first,
        Broker(store=tmp_path, broker_id=2, settings=QUICK),
    ):
        browser = Browser(ConsoleOptions(bootstrap=first.bootstrap_servers))
        assert "2 brokers of the cluster" in text_of(browser.get("/brokers"))
        first.kill()

        def gone() -> bool:
            answer = browser.answer("/brokers")
            return answer.status_code == 200 and "1 broker is not there: 1." in text_of(answer.text)

        until(gone, 60, "the death of broker 1")
        assert "Broker 1 is not there." in text_of(browser.get("/"))
        first.start()
        until(lambda: "not there" not in text_of(browser.get("/brokers")), 60, "broker 1")
        assert "2 brokers of the cluster" in text_of(browser.get("/brokers"))
        browser.close()


def test_a_broker_tells_its_settings_and_takes_those_that_can_change(tmp_path: Path) -> None:
    with (
        Broker(store=tmp_path, broker_id=1, settings=QUICK) as first,
        Broker(store=tmp_path, broker_id=2, settings={**QUICK, "message.max.bytes": 12345}),
    ):
        browser = Browser(ConsoleOptions(bootstrap=first.bootstrap_servers))
        page = text_of(browser.get("/brokers/2?changed=1"))
        assert "12345 from the broker's file or command line" in page
        assert "num.partitions" not in page
        assert "12345" not in text_of(browser.get("/brokers/1?find=message.max.bytes"))
        here = "/brokers/2"
        page = browser.sent(here, {"name": "message.max.bytes", "value": "54321"}, on=here)
        assert "message.max.bytes of broker 2 is 54321 now." in text_of(page)
        assert "54321 set for this broker" in text_of(browser.get(here))
        page = browser.sent(here, {"name": "message.max.bytes", "value": "", "do": "unset"}, on=here)
        assert "message.max.bytes of broker 2 is its own no more." in text_of(page)
        assert "54321" not in text_of(browser.get(here))
        answer = browser.send(here, {"name": "message.max.bytes", "value": "many"}, on=here)
        assert answer.status_code == 400
        assert "Changing settings of broker 2 was answered INVALID_REQUEST: Invalid value many" in text_of(
            answer.text
        )
        assert "no broker '7'" in text_of(browser.get("/brokers/7", 404))
        browser.close()
