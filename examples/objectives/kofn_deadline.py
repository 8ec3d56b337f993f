"""The workers that are done within a deadline: an objective for kofn.

The entry point in pyproject.toml gives it its name. It gets a forecast with `ks` = 1..n (n: live workers), and for each
of them `expected_s` and `predicted_s`, two arrays (n,) in seconds, and returns what each k costs: n finite numbers. The
least one wins; what counts is by which share of the present cost another k is cheaper. It has to depend on the forecast
alone, because it is asked several times a decision what another forecast would cost.
"""

import os

import numpy as np

DEADLINE_S = float(os.environ.get("KOFN_DEADLINE_MS", "25")) / 1000


def deadline(forecast):
    """Return 1 / k for every k whose iterations are within the deadline; more than 1 for the others."""
    late = np.maximum(forecast.predicted_s / DEADLINE_S - 1, 0)
    return np.where(late > 0, 1 + late, 1 / forecast.ks)
