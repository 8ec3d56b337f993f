"""Waits for the effects of other threads and processes."""

import time
from collections.abc import Callable

PATIENCE_S = 60.0
"""How long a test waits for what must come, at most, on a machine that is busy with other things."""


def until(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    """Wait for a condition; AssertionError on a timeout."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, f"the condition does not hold within {timeout_s:g} s"
        time.sleep(0.005)
