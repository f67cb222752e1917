"""What holds for all tests: which run in one process, what they leave behind, how Hypothesis looks.

Hypothesis is small and repeatable here; `HYPOTHESIS_PROFILE=large` looks longer and at random.

This is read before any test is, so that it holds for all of them. Nothing that Hypothesis does may depend on
how fast the machine is: no deadline for an example, no complaint about slow data.
"""

import os
import resource
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.leftovers import close_blocking_stores, left_open, open_descriptors, told

_PATIENT = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("small", _PATIENT, derandomize=True, max_examples=40)
settings.register_profile("large", _PATIENT, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "small"))


FILES_LEAST, FILES = 8192, 20_000
"""Files and sockets that one process of the tests may have open. Many systems allow 1024 until they are asked
for more; with that few, a client or a broker ends the process somewhere in the middle of the tests."""

LEFT_OPEN_MAX = 40
"""Descriptors that the tests of one file may leave open: a broker that a whole folder shares has a dozen, and
py4j keeps a connection for each streaming query."""


def pytest_configure(config: pytest.Config) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if wanted < FILES_LEAST:
        pytest.exit(
            f"The tests need {FILES_LEAST} open files, and this user may have {hard} (ulimit -Hn).", 3
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@pytest.fixture(scope="module", autouse=True)
def little_left_open() -> Iterator[None]:
    """Who forgets to close what each test opens is told so by the last test of the file."""
    before = open_descriptors()
    yield
    close_blocking_stores()
    left = left_open(before, LEFT_OPEN_MAX)
    assert not left, told(left)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests run in one process and share what they made once; all that need Spark run in one, and
    begin first. Two JVMs, each with processes of its own, would be more than two cores bear: Spark gives a
    Python process ten seconds to start, whatever else the machine does."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "spark" if {"spark", "pipeline"} & set(file.split("/")) else file

        def _assign_work_unit(self, node: Any) -> None:
            if "spark" in self.workqueue:
                self.workqueue.move_to_end("spark", last=False)
            super()._assign_work_unit(node)

    return ByFile(config, log)
