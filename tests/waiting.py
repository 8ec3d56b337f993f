"""Waits for the effects of other threads and processes."""

import time
from collections.abc import Callable


def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Wait for a condition; AssertionError on a timeout."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, f"the condition does not hold within {timeout_s:g} s"
        time.sleep(0.005)
