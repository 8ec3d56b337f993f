"""How long a call takes."""

import time
from collections.abc import Callable

import numpy as np


def median_ms(work: Callable[[], object], repetitions: int) -> float:
    """Median time of one call."""
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return 1e3 * float(np.median(times))
