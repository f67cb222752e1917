"""The pytest plugin: a real broker on a free port, as a fixture.

`penstock_broker` is a broker of the test's own; `penstock_session_broker` is shared by the whole session.
Nothing of Penstock is imported until a test asks for one.

pytest rewrites the assertions of every package that has a plugin, as its modules are imported. Those of
Penstock stay as they are: a broker imports much in its own thread, when the first requests come, and some
versions of Python 3.11 fail if two threads parse at once ("AST constructor recursion depth mismatch").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.testing import Broker


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before the first conftest.py, which may import Penstock."""
    pytest_configure(early_config)


def pytest_configure(config: pytest.Config) -> None:
    hook = getattr(config.pluginmanager, "rewrite_hook", None)
    getattr(hook, "_must_rewrite", set()).discard("penstock")


@pytest.fixture
def penstock_broker() -> Iterator[Broker]:
    """A broker of this test's own, with an empty store that goes away with it."""
    from penstock.testing import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def penstock_session_broker() -> Iterator[Broker]:
    """One broker for the whole session: quicker, but tests must not get into each other's topics."""
    from penstock.testing import Broker

    with Broker() as broker:
        yield broker
