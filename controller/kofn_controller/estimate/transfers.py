"""Computes the additional time of a worker's gradient in a link that is slower than the others'.

A report says how long the last packet of a gradient waited in the worker's link, beyond the worker's own pacing.
Workers that compete for processors, or for the switch, also wait for some milliseconds. So only waits far above the
usual wait count, and of such a wait only the part beyond the usual wait. Pure functions.
"""

import numpy as np

from kofn_controller.estimate.measurements import BoolArray, FloatArray

LATEST = 3
"""Number of latest waits whose median is a worker's present wait. A worker with fewer waits has no present wait."""

FENCE = 3.0
"""Number of interquartile ranges above the upper quartile from which a wait is far out."""

SHARE = 0.2
"""Share of the block time without blocking by which a wait must also be above the upper quartile."""


def transfers_s(waits_s: FloatArray, live: BoolArray, service_s: float) -> FloatArray:
    """Return the time (n,) by which each worker's link delays its gradient, relative to the faster half of the live
    workers.

    `waits_s` (n, kept): the latest waits, oldest first, NaN where unknown. A worker has a slower link if its present
    wait is far out: above the upper quartile of the faster half by FENCE times their interquartile range (J. W. Tukey,
    Exploratory Data Analysis, 1977), and by SHARE of `service_s`, the block time without blocking. All other workers
    get 0.
    """
    found = np.zeros(len(waits_s))
    known = np.flatnonzero(live & ~np.isnan(waits_s[:, -LATEST:]).any(axis=1))
    if len(known) < 2:  # there is no other link to compare with
        return found
    ascending = known[np.argsort(np.nanmedian(waits_s[known], axis=1))]
    low_s, usual_s, high_s = np.nanquantile(waits_s[ascending[: (len(known) + 1) // 2]], (0.25, 0.5, 0.75))
    present_s = np.median(waits_s[known, -LATEST:], axis=1)
    fence_s = high_s + max(FENCE * (high_s - low_s), SHARE * service_s)
    found[known] = np.where(present_s > fence_s, present_s - usual_s, 0.0)
    return found
