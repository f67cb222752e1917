"""Hypothesis is small and repeatable here; `HYPOTHESIS_PROFILE=large` looks longer and at random.

This is read before any test is, so that it holds for all of them. Nothing that Hypothesis does may depend on
how fast the machine is: no deadline for an example, no complaint about slow data.
"""

import os

from hypothesis import HealthCheck, settings

_PATIENT = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("small", _PATIENT, derandomize=True, max_examples=40)
settings.register_profile("large", _PATIENT, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "small"))
