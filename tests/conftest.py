"""Settings of the whole suite."""

import os

from hypothesis import settings

# The same examples every time: a red run must mean a change of the code. To look for new counterexamples:
# HYPOTHESIS_PROFILE=explore pytest tests/optimizer
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
