"""The pytest plugin: a real broker on a free port, as a fixture.

`penstock_broker` is a broker of the test's own; `penstock_session_broker` is shared by the whole session.
Nothing of Penstock is imported until a test asks for one.

pytest rewrites the assertions of every distribution that has a plugin, be it installed from a wheel or in
place, as its modules are imported: Penstock's, and those of libraries that a broker uses. A broker imports
much in its own thread, when the first requests come, and some versions of Python 3.11 and 3.12 fail if two
threads make syntax trees at once ("AST constructor recursion depth mismatch"). So pytest is not asked for
modules of Penstock, nor for what other threads than the main one import.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.testing import Broker

_PACKAGE = __name__.partition(".")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before the first conftest.py, which may import Penstock."""
    pytest_configure(early_config)


def pytest_configure(config: pytest.Config) -> None:
    """Also where the plugin is named by a conftest.py, which comes later."""
    hook: Any = getattr(config.pluginmanager, "rewrite_hook", None)
    find_spec = getattr(hook, "find_spec", None)  # pytest has another kind of hook with --assert=plain.
    if find_spec is not None and not isinstance(find_spec, _Spared):
        hook.find_spec = _Spared(find_spec)


class _Spared:
    """What pytest's import hook finds, but for modules that stay as they are: others find those."""

    def __init__(self, find_spec: Callable[..., Any]) -> None:
        self._find_spec = find_spec

    def __call__(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] == _PACKAGE or threading.current_thread() is not threading.main_thread():
            return None
        return self._find_spec(name, path, target)


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
