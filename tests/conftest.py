"""Hypothesis profiles: `check` draws the same examples every time; `nightly` (KOFN_NIGHTLY=1) many, and new ones.

How fast examples are drawn depends on the machine's load: that is no finding.

And the order of files: those with a slow test come first, so that no core is left with a long one at the end.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("check", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "nightly",
    deadline=None,
    max_examples=3000,
    stateful_step_count=100,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("nightly" if os.environ.get("KOFN_NIGHTLY") == "1" else "check")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
