"""Computes the additional time of a worker's gradient in a link that is slower than the others'.

A report says how long the last packet of a gradient waited in the worker's link, beyond the worker's own pacing.
Workers that compete for processors, or for the switch, also wait for some milliseconds. So only waits far above the
usual wait count, and of such a wait only the part beyond the usual wait. Pure functions.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from kofn_controller.estimate.measurements import BoolArray, FloatArray

LATEST = 3
"""Number of latest waits whose median is a worker's present wait. A worker with fewer waits has no present wait."""

FENCE = 3.0
"""Number of interquartile ranges above the upper quartile from which a wait is far out."""

SHARE = 0.2
"""Share of the block time without blocking by which a wait must also be above the upper quartile."""

SLOW = 1.0
"""Share of the block time without blocking by which a wait must be above the noise to make a link slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkDelays:
    """The links of n workers."""

    delays_s: FloatArray
    """Time (n,) by which each worker's link delays its gradient beyond the others'; 0: no slower than the others."""
    slow: BoolArray
    """Whether (n,) each worker's link is so slow that the worker paces itself for the link."""
    usual_s: float
    """The usual wait in the links of the faster half of the workers, in seconds."""
    fence_s: float
    """The longest wait that the noise of these links explains."""

    @classmethod
    def unknown(cls, workers: int) -> Self:
        return cls(delays_s=np.zeros(workers), slow=np.zeros(workers, np.bool_), usual_s=0.0, fence_s=0.0)


def compare(
    waits_s: FloatArray, unsure: BoolArray, live: BoolArray, service_s: float, before: LinkDelays
) -> LinkDelays:
    """Compare the links of the live workers.

    `waits_s` (n, kept): the latest waits, oldest first, NaN where unknown; `unsure` (n, kept): whether the probe may
    have been lost. A worker has a slower link if its present wait and a sure one are far out: above the upper
    quartile of the faster half by FENCE times their interquartile range (J. W. Tukey, Exploratory Data Analysis,
    1977), and by SHARE of `service_s`, the block time without blocking. A link is slow whose wait is also SLOW times
    `service_s` above that fence. A worker whose link was slow `before` paces itself, so its waits are exact: the link
    stays slow until the present wait is at most SHARE of `service_s` above the usual wait.
    """
    delays_s = np.zeros(len(waits_s))
    known = np.flatnonzero(live & ~np.isnan(waits_s[:, -LATEST:]).any(axis=1))
    if len(known) < 2:  # there is no other link to compare with
        return LinkDelays.unknown(len(waits_s))
    ascending = known[np.argsort(np.nanmedian(waits_s[known], axis=1))]
    low_s, usual_s, high_s = np.nanquantile(waits_s[ascending[: (len(known) + 1) // 2]], (0.25, 0.5, 0.75))
    latest_s = waits_s[known, -LATEST:]
    present_s, sure_s = np.median(latest_s, axis=1), np.where(unsure[known, -LATEST:], 0.0, latest_s).max(axis=1)
    least_s = SHARE * service_s
    fence_s = high_s + max(FENCE * (high_s - low_s), least_s)
    far_s = np.where(before.slow[known], usual_s + least_s, fence_s)
    delays_s[known] = np.where(np.minimum(present_s, sure_s) > far_s, present_s - usual_s, 0.0)
    slow = (delays_s > fence_s - usual_s + SLOW * service_s) | (before.slow & (delays_s > 0))
    return LinkDelays(delays_s=delays_s, slow=slow, usual_s=float(usual_s), fence_s=float(fence_s))
