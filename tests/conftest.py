"""What holds for all tests: which of them run in one process, and how Hypothesis looks.

Hypothesis is small and repeatable here; `HYPOTHESIS_PROFILE=large` looks longer and at random.

This is read before any test is, so that it holds for all of them. Nothing that Hypothesis does may depend on
how fast the machine is: no deadline for an example, no complaint about slow data.
"""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_PATIENT = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("small", _PATIENT, derandomize=True, max_examples=40)
settings.register_profile("large", _PATIENT, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "small"))

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `--dist loadgroup`, a file's tests share what they made once, and everything that needs Spark is
    one group: two JVMs, each with processes of its own, are more than two cores bear. Spark gives a Python
    process ten seconds to start, whatever else the machine does."""
    for item in items:
        room = item.path.relative_to(_HERE).parts[0]
        group = "spark" if room in ("spark", "pipeline") else str(item.path.relative_to(_HERE))
        item.add_marker(pytest.mark.xdist_group(group))
