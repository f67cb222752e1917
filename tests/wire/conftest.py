"""Hypothesis is small and repeatable here; `HYPOTHESIS_PROFILE=large` looks longer and at random."""

import os

from hypothesis import settings

settings.register_profile("small", derandomize=True, max_examples=40, deadline=None, database=None)
settings.register_profile("large", max_examples=2_000, deadline=None, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "small"))
