"""The pytest plugin: a real broker on a free port, as a fixture.

`penstock_broker` is a broker of the test's own; `penstock_session_broker` is shared by the whole session.
Nothing of Penstock is imported until a test asks for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.testing import Broker


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
