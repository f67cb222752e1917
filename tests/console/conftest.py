from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.client import Client
from penstock.console.options import ConsoleOptions
from penstock.testing import Broker
from tests.console.browser import Browser


@pytest.fixture(scope="package")
def cluster() -> Iterator[Broker]:
    """A broker that all tests of the console share: each uses topics of its own."""
    with Broker() as broker:
        yield broker


@pytest.fixture
def client(cluster: Broker) -> Iterator[Client]:
    with Client(cluster.bootstrap_servers, 10.0) as client:
        yield client


@pytest.fixture
def browser(cluster: Broker) -> Iterator[Browser]:
    made = Browser(ConsoleOptions(bootstrap=cluster.bootstrap_servers))
    yield made
    made.close()
