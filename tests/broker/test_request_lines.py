"""A line about a request says which one it was, in words that the client's own log has, too."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker import dispatch
from penstock.broker.context import Broker
from penstock.broker.metering import Meters
from penstock.broker.registry import APIS
from penstock.wire.exchange import Reply, Request, Session

METADATA = 3


def request(api_key: int) -> Request:
    return Request(Session(peer_host="10.0.0.7"), api_key, 1, 4711, "shop\nforged", memoryview(b""), 0)


@pytest.fixture
def broker() -> Broker:
    return cast(Broker, SimpleNamespace(meters=Meters(), quotas=None, clock=None))


def test_a_request_that_closes_its_connection(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, dispatch.__name__)
    answer: Any = dispatch.make_handle(broker)(request(9999))
    assert isinstance(answer, Reply) and answer.closed
    (line,) = caplog.messages
    wanted = r"api_key=9999 version=1 correlation=4711 client='shop\nforged' peer=10.0.0.7"
    assert line == f"closed the connection: unknown api; {wanted}"


def test_a_request_whose_handler_failed(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("a bug")
    except ValueError:
        dispatch._log_failure(APIS[METADATA], request(METADATA))
    (line,) = caplog.messages
    wanted = r"api=Metadata version=1 correlation=4711 client='shop\nforged' peer=10.0.0.7"
    assert line == f"handler failed {wanted}"
