"""Hypothesis profiles: `check` draws the same examples every time; `nightly` (KOFN_NIGHTLY=1) many, and new ones."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("check", deadline=None, derandomize=True)
settings.register_profile(
    "nightly",
    deadline=None,
    max_examples=3000,
    stateful_step_count=100,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("nightly" if os.environ.get("KOFN_NIGHTLY") == "1" else "check")
