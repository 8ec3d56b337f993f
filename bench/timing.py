"""How long a call takes."""

import time
from collections.abc import Callable, Mapping

import numpy as np


def median_ms(work: Callable[[], object], repetitions: int) -> float:
    """Median time of one call."""
    return medians_ms({"": work}, repetitions)[""]


def medians_ms(works: Mapping[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Median times of one call of each, taken in turn: what else happens meanwhile happens to all."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repetitions):
        for name, work in works.items():
            begin = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - begin)
    return {name: 1e3 * float(np.median(taken)) for name, taken in times.items()}
